"""Fetching the content of files in the order in which it is needed, in batches.

The code that writes files is a generator: it yields the objects that it needs and is sent their contents. So it does
not know where they are stored, and one implementation serves threads and event loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import Corrupt
from .entries import ContentPiece

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of content requested at once."""
MAX_HELD = 64 * 1024 * 1024
"""Bytes of content kept in memory because another file needs them too."""
ObjectBodies = Mapping[bytes, bytes]
"""The content of objects by digest."""


class ObjectRequest(NamedTuple):
    """Objects needed now, and those that will be needed next."""

    now: Sequence[bytes]
    next: Sequence[bytes]


class Prefetch:
    """Fetches the contents of pieces of files, in their order.

    An object that several pieces need is kept until the last of them was written, within ``MAX_HELD``.
    """

    def __init__(self, pieces: Iterable[ContentPiece]) -> None:
        sizes: dict[bytes, int] = {}
        self._uses: Counter[bytes] = Counter()
        for digest, start, length in pieces:
            if digest:
                sizes[digest] = max(sizes.get(digest, 0), start + length)
                self._uses[digest] += 1
        self._order = list(sizes.items())
        self._requested = 0
        """Number of objects requested so far; later ones have not been needed yet."""
        self._bodies: dict[bytes, bytes] = {}
        self._held = 0

    def of(self, piece: ContentPiece) -> Generator[ObjectRequest, ObjectBodies, memoryview]:
        """Return the bytes of a piece that is stored in an object.

        Raises:
            Corrupt: the object is too short for the piece.
        """
        digest, start, length = piece
        body = self._bodies.get(digest)
        if body is None:
            yield from self._fetch(digest)
            body = self._bodies[digest]
        self._uses[digest] -= 1
        if not self._uses[digest]:
            self._held -= len(self._bodies.pop(digest))
        content = memoryview(body)[start : start + length]
        if len(content) != length:
            raise Corrupt(f"object {digest.hex()} is too short for a file stored in it")
        return content

    def _fetch(self, needed: bytes) -> Generator[ObjectRequest, ObjectBodies, None]:
        while self._held > MAX_HELD:  # drop the oldest; it is requested again when needed
            self._held -= len(self._bodies.pop(next(iter(self._bodies))))
        now = [needed]
        if self._requested < len(self._order) and self._order[self._requested][0] == needed:
            now, self._requested = self._batch(self._requested)
        fetched = yield ObjectRequest(now, self._batch(self._requested)[0])
        for digest in now:
            self._bodies[digest] = fetched[digest]
            self._held += len(fetched[digest])

    def _batch(self, start: int) -> tuple[list[bytes], int]:
        """Return the digests of a batch of objects, and the start of the next batch."""
        size, end = 0, start
        while end < len(self._order) and (end == start or size + self._order[end][1] <= BATCH_BYTES):
            size += self._order[end][1]
            end += 1
        return [digest for digest, _ in self._order[start:end]], end
