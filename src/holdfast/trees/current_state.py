"""What is in a directory now, as far as it must be known to make another tree of it.

Where a picture of the directory is known, only what is not as in the picture is looked at. Files are read only where they may be
what is wanted, and nothing is packed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from hmac import compare_digest

from msgspec import Struct

from ..core.objects import Packed, digest_of
from ..limits import Limits
from . import safe_open
from .contents import CHUNK
from .entries import MODE_BITS, Tree, TreeEntry
from .ignore_rules import IgnoreRules
from .scan import Scan
from .stat_cache import CachedTree
from .walk import ChangedPath, OpenDirectory

MAX_DEPTH = 2_000
"""Directories in each other that are looked into: more than a path can name."""
OTHER = b"other"
"""In the place of a digest: a content that is another than the one wanted, whichever it is."""


class CurrentState(Struct, frozen=True):
    """What is there; and, if there was a picture, the paths in which it differs from that."""

    entries: Mapping[str, TreeEntry]
    apart: Set[str] | None


def read_directory(
    root: str, wanted: Tree, *, now: IgnoreRules, limits: Limits, picture: CachedTree | None = None
) -> CurrentState:
    """Everything in a directory that is wanted, or not ignored: by the rules of then, or by those of now.

    Something that is neither file, directory nor link is given as a file of another content.

    Raises:
        NotFound: there is no such directory.
        LimitExceeded: there is too much in it.
    """
    # What was ignored when the picture was made is not in it, and must be ignored now.
    if picture is not None and picture.ignore != tuple(wanted.ignore):
        picture = None
    glance = _Glance(root, wanted, now, limits, picture)
    for _ in glance.parts():
        pass  # there are none: nothing is packed
    found = glance.result()
    difference = found.difference
    apart = {*difference.removed, *(entry.path for entry in difference.entries)}
    return CurrentState(found.entries, apart if picture is not None else None)


class _Glance(Scan):
    """A scan that looks, and takes nothing."""

    def __init__(self, root: str, wanted: Tree, now: IgnoreRules, limits: Limits, picture: CachedTree | None) -> None:
        self._wanted = wanted.entries
        super().__init__(
            root,
            entries={} if picture is None else picture.entries,
            stats={} if picture is None else picture.stats,
            ignores=_Unwanted(wanted, now),
            max_depth=MAX_DEPTH,
            max_entries=limits.tree_entries,
        )

    def _take(self, folder: OpenDirectory, found: ChangedPath) -> Iterator[list[Packed]]:
        self._taken.append(found.path)
        entry = _entry(folder, found, [self._wanted.get(found.path), self._before.get(found.path)])
        if entry is None:
            self._gone.add(found.path)
        else:
            self._entries.append(entry)
        return iter(())


class _Unwanted(IgnoreRules):
    """What is ignored, then or now, and is not wanted."""

    def __init__(self, wanted: Tree, now: IgnoreRules) -> None:
        super().__init__(wanted.ignore)
        self._wanted, self._now = wanted.entries, now

    def __call__(self, path: str, is_folder: bool) -> bool:
        return path not in self._wanted and (super().__call__(path, is_folder) or self._now(path, is_folder))


def _entry(folder: OpenDirectory, found: ChangedPath, known: Iterable[TreeEntry | None]) -> TreeEntry | None:
    """What something is; its content is one of those that are known, or another."""
    mode, size, mtime_ns, _, _ = found.stat
    bits = mode & MODE_BITS
    if stat.S_ISDIR(mode):
        return TreeEntry(found.path, "dir", bits, mtime_ns)
    try:
        if stat.S_ISLNK(mode):
            return TreeEntry(found.path, "symlink", bits, mtime_ns, 0, os.readlink(found.name, dir_fd=folder.handle))
        if stat.S_ISREG(mode):
            for entry in known:
                if entry is None or entry.kind != "file" or entry.size != size:
                    continue
                with safe_open.open_file(folder.handle, found.name) as file:
                    if _holds(file.handle, entry):
                        return TreeEntry(found.path, "file", bits, mtime_ns, size, "", entry.digest, entry.pieces)
    except FileNotFoundError:
        return None
    except OSError:
        pass  # what cannot be read is written anew
    return TreeEntry(found.path, "file", bits, mtime_ns, size, "", OTHER)


def _holds(handle: int, wanted: TreeEntry) -> bool:
    """Whether an open file holds just what an entry says."""
    if wanted.size <= CHUNK:
        content = _read(handle, wanted.size)
        return len(content) == wanted.size and compare_digest(digest_of(content), wanted.digest)
    for piece in wanted.pieces:
        left = piece.length
        while left:
            chunk = _read(handle, min(CHUNK, left))
            left -= len(chunk)
            if not chunk or (not piece.object and chunk.strip(b"\0")):
                return False
            if piece.object and not compare_digest(digest_of(chunk), piece.object):
                return False
    return True


def _read(handle: int, length: int) -> bytes:
    content = os.read(handle, length)
    while content and len(content) < length and (more := os.read(handle, length - len(content))):
        content += more
    return content
