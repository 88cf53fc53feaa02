"""What a tree consists of: one entry for each file, directory and symbolic link, by its path.

A path is relative to the root of the tree, with ``/`` between its parts. File names are bytes; those that are not UTF-8 are
text with surrogates in their place, as Python itself shows them, and ``raw`` gives the bytes back. The root itself is no entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

Kind = Literal["file", "dir", "symlink"]
MODE_BITS = 0o7777
"""What of a mode is kept: permissions, and the bits beside them."""
ZEROS = b""
"""In the place of an object's digest: so many zeros, which are stored nowhere."""


class ContentPiece(NamedTuple):
    """Some bytes of a file: which object they lie in, and where. Without an object they are zeros."""

    object: bytes
    start: int
    length: int


class TreeEntry(Struct, frozen=True):
    """A file, a directory or a symbolic link, as it was."""

    path: str
    kind: Kind
    mode: int
    mtime_ns: int
    size: int = 0
    """Bytes of a file."""
    target: str = ""
    """Where a symbolic link points to; such as it is written, whatever it means."""
    digest: bytes = b""
    """Of a file's content: equal exactly if the content is. For how it is made see ``contents``."""
    pieces: tuple[ContentPiece, ...] = ()
    """Of a file, one after the other."""


class Tree(Struct, frozen=True):
    """A whole tree: its entries by their paths, in no particular order, and what was ignored when it was captured."""

    entries: Mapping[str, TreeEntry]
    ignore: Sequence[str] = ()
    """The patterns, the defaults among them, in the syntax of gitignore."""


class Difference(Struct, frozen=True):
    """What one tree has that another has not: entries that are new or other, and the paths of those that are gone."""

    entries: Sequence[TreeEntry]
    removed: Sequence[str] = ()
    ignore: Sequence[str] = ()
    """As in the tree that comes out."""

    def applied(self, entries: Mapping[str, TreeEntry]) -> dict[str, TreeEntry]:
        """The entries that come out of these."""
        found = dict(entries)
        self.apply(found)
        return found

    def apply(self, entries: dict[str, TreeEntry]) -> None:
        """Make of these entries those that come out."""
        for path in self.removed:
            entries.pop(path, None)
        entries.update([(entry.path, entry) for entry in self.entries])


def raw(path: str) -> bytes:
    """The bytes of a name."""
    return path.encode("utf-8", "surrogateescape")


def shown(name: bytes) -> str:
    """The text that stands for a name."""
    return name.decode("utf-8", "surrogateescape")


def objects_of(entries: Sequence[TreeEntry]) -> set[bytes]:
    """The digests of all objects that these need."""
    found = {piece.object for entry in entries for piece in entry.pieces}
    found.discard(ZEROS)
    return found


def folders_of(path: str) -> Iterator[str]:
    """The directories that a path lies in, each with a slash at its end; the root is empty."""
    yield ""
    at = path.find("/")
    while at >= 0:
        yield path[: at + 1]
        at = path.find("/", at + 1)
