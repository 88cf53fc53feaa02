"""Making a file out of the one that lies in its place: what they have in common is not fetched.

What is in the place is read anew, and what comes out must have the digest that is wanted; where it has not, all of it is fetched.
So nothing depends on the file being what it was thought to be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hmac import compare_digest

from msgspec import Struct

from ..core.objects import digest_of
from . import safe_open
from .contents import CHUNK
from .entries import ContentPiece, TreeEntry


class Patch(Struct, frozen=True):
    """A file that is wanted, and where in the file that is there its pieces lie, as far as it has them."""

    entry: TreeEntry
    there: Mapping[ContentPiece, int]

    @property
    def fetched(self) -> list[ContentPiece]:
        """The pieces that lie elsewhere."""
        return [piece for piece in self.entry.pieces if piece.object and piece not in self.there]

    def content(self, folder: int, name: str, bodies: Mapping[ContentPiece, memoryview]) -> bytes | None:
        """What the file comes to, with the pieces that lie elsewhere; ``None`` if what is there is not what it was."""
        try:
            with safe_open.open_file(folder, name) as file:
                there = os.read(file.handle, CHUNK)
        except OSError:
            return None
        made = b"".join(self._part(piece, there, bodies) for piece in self.entry.pieces)
        return made if compare_digest(digest_of(made), self.entry.digest) else None

    def _part(self, piece: ContentPiece, there: bytes, bodies: Mapping[ContentPiece, memoryview]) -> bytes | memoryview:
        at = self.there.get(piece)
        if at is not None:
            return there[at : at + piece.length]
        return bodies[piece] if piece.object else bytes(piece.length)


def patch(wanted: TreeEntry, there: TreeEntry | None) -> Patch:
    """How to make a file of the one that is there. Large files are not made so: they would have to be read as a whole."""
    if there is None or not there.pieces or max(wanted.size, there.size) > CHUNK:
        return Patch(wanted, {})
    found: dict[ContentPiece, int] = {}
    for piece in wanted.pieces:
        offset = 0
        for lies_in, start, length in there.pieces:
            if (
                lies_in
                and lies_in == piece.object
                and start <= piece.start
                and piece.start + piece.length <= start + length
            ):
                found[piece] = offset + piece.start - start
            offset += length
    return Patch(wanted, found)
