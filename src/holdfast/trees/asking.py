"""Asking for the content of files in the order in which it is needed, some of it at a time.

Who writes files is a generator: it yields the objects that it wants and is sent their contents. So it knows nothing of where
those lie, and one source serves threads and event loops.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import Corrupt
from .entries import Entry, Piece

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of content that are asked for at once."""
Contents = Mapping[bytes, bytes]
"""Objects by their digests."""


class Wanted(NamedTuple):
    """Objects that are needed now, and those that will be asked for next."""

    now: Sequence[bytes]
    next: Sequence[bytes]


class Asking:
    """The contents of some files, to be asked for in their order."""

    def __init__(self, files: Iterable[Entry]) -> None:
        sizes: dict[bytes, int] = {}
        for entry in files:
            for lies_in, start, length in entry.pieces:
                if lies_in:
                    sizes[lies_in] = max(sizes.get(lies_in, 0), start + length)
        self._order = list(sizes.items())
        self._at = {digest: number for number, digest in enumerate(sizes)}
        self._bodies: Contents = {}

    def of(self, piece: Piece) -> Generator[Wanted, Contents, memoryview]:
        """The bytes of a piece that lies in an object.

        Raises:
            Corrupt: the object is too short for it.
        """
        lies_in, start, length = piece
        if lies_in not in self._bodies:
            now, end = self._batch(self._at[lies_in])
            self._bodies = {}
            self._bodies = yield Wanted(now, self._batch(end)[0])
        found = memoryview(self._bodies[lies_in])[start : start + length]
        if len(found) != length:
            raise Corrupt(f"the object {lies_in.hex()} is shorter than the file that lies in it")
        return found

    def _batch(self, start: int) -> tuple[list[bytes], int]:
        """Objects from one on, and where the next batch begins."""
        size, end = 0, start
        while end < len(self._order) and (end == start or size + self._order[end][1] <= BATCH_BYTES):
            size += self._order[end][1]
            end += 1
        return [digest for digest, _ in self._order[start:end]], end
