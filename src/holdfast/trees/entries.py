"""The contents of a tree: one entry for each file, directory and symbolic link, by path.

A path is relative to the root of the tree, with ``/`` between its parts. File names are bytes; names that are not
UTF-8 are represented with surrogate escapes, as in Python itself, and ``raw`` returns the bytes. The root itself has
no entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

Kind = Literal["file", "dir", "symlink"]
MODE_BITS = 0o7777
"""The bits of a mode that are stored: permissions, set-uid, set-gid and sticky."""
ZEROS = b""
"""The digest used for a run of zeros, which is not stored as an object."""


class ContentPiece(NamedTuple):
    """A range of a file's bytes: the object that contains them, and their offset in it. Without an object they are
    zeros.
    """

    object: bytes
    start: int
    length: int


class TreeEntry(Struct, frozen=True):
    """A captured file, directory or symbolic link."""

    path: str
    kind: Kind
    mode: int
    mtime_ns: int
    size: int = 0
    """Size of a file in bytes."""
    target: str = ""
    """Target of a symbolic link, as written in the link."""
    digest: bytes = b""
    """Digest of a file's content, equal if and only if the content is. See ``contents`` for how it is computed."""
    pieces: tuple[ContentPiece, ...] = ()
    """Pieces of a file's content, in order."""


class Tree(Struct, frozen=True):
    """A whole tree: its entries by path, unordered, and the ignore patterns of its capture."""

    entries: Mapping[str, TreeEntry]
    ignore: Sequence[str] = ()
    """The patterns, including the defaults, in gitignore syntax."""


class Difference(Struct, frozen=True):
    """The difference from one tree to another: new or changed entries, and the paths of removed ones."""

    entries: Sequence[TreeEntry]
    removed: Sequence[str] = ()
    ignore: Sequence[str] = ()
    """The ignore patterns of the resulting tree."""

    def applied(self, entries: Mapping[str, TreeEntry]) -> dict[str, TreeEntry]:
        """Return the entries that result from applying the difference to these."""
        result = dict(entries)
        self.apply(result)
        return result

    def apply(self, entries: dict[str, TreeEntry]) -> None:
        """Apply the difference to these entries in place."""
        for path in self.removed:
            entries.pop(path, None)
        entries.update([(entry.path, entry) for entry in self.entries])


def path_bytes(path: str) -> bytes:
    """Return a name as bytes."""
    return path.encode("utf-8", "surrogateescape")


def path_text(name: bytes) -> str:
    """Return a name as text."""
    return name.decode("utf-8", "surrogateescape")


def objects_of(entries: Sequence[TreeEntry]) -> set[bytes]:
    """Return the digests of all objects that these entries need."""
    digests = {piece.object for entry in entries for piece in entry.pieces}
    digests.discard(ZEROS)
    return digests


def folders_of(path: str) -> Iterator[str]:
    """Yield the directories that contain a path, each with a trailing slash; the root is the empty string."""
    yield ""
    at = path.find("/")
    while at >= 0:
        yield path[: at + 1]
        at = path.find("/", at + 1)
