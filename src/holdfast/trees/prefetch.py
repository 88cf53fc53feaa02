"""Asking for the content of files in the order in which it is needed, some of it at a time.

Who writes files is a generator: it yields the objects that it wants and is sent their contents. So it knows nothing of where
those lie, and one source serves threads and event loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import Corrupt
from .entries import ContentPiece

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of content that are asked for at once."""
MAX_HELD = 64 * 1024 * 1024
"""Bytes of content that are held because another file needs them too."""
ObjectBodies = Mapping[bytes, bytes]
"""Objects by their digests."""


class ObjectRequest(NamedTuple):
    """Objects that are needed now, and those that will be asked for next."""

    now: Sequence[bytes]
    next: Sequence[bytes]


class Prefetch:
    """The contents of some pieces of files, to be asked for in their order.

    What several need is held until the last of them had it, as long as that is not too much.
    """

    def __init__(self, pieces: Iterable[ContentPiece]) -> None:
        sizes: dict[bytes, int] = {}
        self._uses: Counter[bytes] = Counter()
        for lies_in, start, length in pieces:
            if lies_in:
                sizes[lies_in] = max(sizes.get(lies_in, 0), start + length)
                self._uses[lies_in] += 1
        self._order = list(sizes.items())
        self._asked = 0
        """So many of them were asked for: those that come later are needed for the first time."""
        self._bodies: dict[bytes, bytes] = {}
        self._held = 0

    def of(self, piece: ContentPiece) -> Generator[ObjectRequest, ObjectBodies, memoryview]:
        """The bytes of a piece that lies in an object.

        Raises:
            Corrupt: the object is too short for it.
        """
        lies_in, start, length = piece
        body = self._bodies.get(lies_in)
        if body is None:
            yield from self._ask(lies_in)
            body = self._bodies[lies_in]
        self._uses[lies_in] -= 1
        if not self._uses[lies_in]:
            self._held -= len(self._bodies.pop(lies_in))
        found = memoryview(body)[start : start + length]
        if len(found) != length:
            raise Corrupt(f"the object {lies_in.hex()} is shorter than the file that lies in it")
        return found

    def _ask(self, lies_in: bytes) -> Generator[ObjectRequest, ObjectBodies, None]:
        while self._held > MAX_HELD:  # the one that is held longest; it is asked for again
            self._held -= len(self._bodies.pop(next(iter(self._bodies))))
        now = [lies_in]
        if self._asked < len(self._order) and self._order[self._asked][0] == lies_in:
            now, self._asked = self._batch(self._asked)
        found = yield ObjectRequest(now, self._batch(self._asked)[0])
        for digest in now:
            self._bodies[digest] = found[digest]
            self._held += len(found[digest])

    def _batch(self, start: int) -> tuple[list[bytes], int]:
        """Objects from one on, and where the next batch begins."""
        size, end = 0, start
        while end < len(self._order) and (end == start or size + self._order[end][1] <= BATCH_BYTES):
            size += self._order[end][1]
            end += 1
        return [digest for digest, _ in self._order[start:end]], end
