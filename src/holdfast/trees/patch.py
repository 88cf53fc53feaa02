"""Building a file from the existing file in its place, without fetching the parts they have in common.

The existing file is read again, and the result must have the expected digest; otherwise the whole file is fetched. So
correctness does not depend on the existing file being unchanged.
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
    """A file to be written, and the offsets of its pieces in the existing file, as far as that contains them."""

    entry: TreeEntry
    offsets: Mapping[ContentPiece, int]

    @property
    def fetched(self) -> list[ContentPiece]:
        """The pieces that must be fetched."""
        return [piece for piece in self.entry.pieces if piece.object and piece not in self.offsets]

    def content(self, folder: int, name: str, bodies: Mapping[ContentPiece, memoryview]) -> bytes | None:
        """Return the content of the new file, given the fetched pieces; ``None`` if the existing file has changed."""
        try:
            with safe_open.open_file(folder, name) as file:
                existing = os.read(file.handle, CHUNK)
        except OSError:
            return None
        content = b"".join(self._part(piece, existing, bodies) for piece in self.entry.pieces)
        return content if compare_digest(digest_of(content), self.entry.digest) else None

    def _part(
        self, piece: ContentPiece, existing: bytes, bodies: Mapping[ContentPiece, memoryview]
    ) -> bytes | memoryview:
        offset = self.offsets.get(piece)
        if offset is not None:
            return existing[offset : offset + piece.length]
        return bodies[piece] if piece.object else bytes(piece.length)


def patch(wanted: TreeEntry, existing: TreeEntry | None) -> Patch:
    """Plan how to build a file from the existing one. Large files are not patched, because they would have to be read
    whole.
    """
    if existing is None or not existing.pieces or max(wanted.size, existing.size) > CHUNK:
        return Patch(wanted, {})
    offsets: dict[ContentPiece, int] = {}
    for piece in wanted.pieces:
        offset = 0
        for stored_in, start, length in existing.pieces:
            if (
                stored_in
                and stored_in == piece.object
                and start <= piece.start
                and piece.start + piece.length <= start + length
            ):
                offsets[piece] = offset + piece.start - start
            offset += length
    return Patch(wanted, offsets)
