"""The current state of a directory, as far as it is needed to restore another tree there.

If a cached tree of the directory is available, only paths that differ from it are examined. Files are read only where
they may have the wanted content, and nothing is packed.
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
from .walk import ChangedDirectory, ChangedPath

MAX_DEPTH = 2_000
"""Maximum nesting of directories: more than a path can name."""
OTHER = b"other"
"""Placeholder digest of a content that differs from the wanted one."""


class CurrentState(Struct, frozen=True):
    """The entries of a directory; and, if there was a cached tree, the paths that differ from it."""

    entries: Mapping[str, TreeEntry]
    apart: Set[str] | None


def read_directory(
    root: str, wanted: Tree, *, now: IgnoreRules, limits: Limits, cached_tree: CachedTree | None = None
) -> CurrentState:
    """Return everything in a directory that is wanted, or not ignored by either set of rules.

    Anything that is not a file, directory or link is returned as a file with other content.

    Raises:
        NotFound: the directory does not exist.
        LimitExceeded: it has too many entries.
    """
    # Paths ignored when the cached tree was captured are not in it, so the same patterns must apply now.
    if cached_tree is not None and cached_tree.ignore != tuple(wanted.ignore):
        cached_tree = None
    scan = _StateScan(root, wanted, now, limits, cached_tree)
    for _ in scan.parts():
        pass  # no parts: nothing is packed
    scanned = scan.result()
    difference = scanned.difference
    apart = {*difference.removed, *(entry.path for entry in difference.entries)}
    return CurrentState(scanned.entries, apart if cached_tree is not None else None)


class _StateScan(Scan):
    """A scan that examines entries without storing their content."""

    def __init__(
        self, root: str, wanted: Tree, now: IgnoreRules, limits: Limits, cached_tree: CachedTree | None
    ) -> None:
        self._wanted = wanted.entries
        super().__init__(
            root,
            entries={} if cached_tree is None else cached_tree.entries,
            stats={} if cached_tree is None else cached_tree.stats,
            ignores=_UnwantedRules(wanted, now),
            max_depth=MAX_DEPTH,
            max_entries=limits.tree_entries,
        )

    def _take(self, folder: ChangedDirectory, changed: ChangedPath) -> Iterator[list[Packed]]:
        self._seen.append(changed.path)
        entry = _entry(folder, changed, [self._wanted.get(changed.path), self._before.get(changed.path)])
        if entry is None:
            self._removed_paths.add(changed.path)
        else:
            self._entries.append(entry)
        return iter(())


class _UnwantedRules(IgnoreRules):
    """Ignores paths that either set of rules ignores and that are not wanted."""

    def __init__(self, wanted: Tree, now: IgnoreRules) -> None:
        super().__init__(wanted.ignore)
        self._wanted, self._now = wanted.entries, now

    def __call__(self, path: str, is_folder: bool) -> bool:
        return path not in self._wanted and (super().__call__(path, is_folder) or self._now(path, is_folder))


def _entry(folder: ChangedDirectory, changed: ChangedPath, known: Iterable[TreeEntry | None]) -> TreeEntry | None:
    """Return the entry of a path; its content is that of one of the known entries, or ``OTHER``."""
    mode, size, mtime_ns, _, _ = changed.stat
    bits = mode & MODE_BITS
    if stat.S_ISDIR(mode):
        return TreeEntry(changed.path, "dir", bits, mtime_ns)
    try:
        if stat.S_ISLNK(mode):
            return TreeEntry(
                changed.path, "symlink", bits, mtime_ns, 0, os.readlink(changed.name, dir_fd=folder.handle)
            )
        if stat.S_ISREG(mode):
            for entry in known:
                if entry is None or entry.kind != "file" or entry.size != size:
                    continue
                with safe_open.open_file(folder.handle, changed.name) as file:
                    if _has_content(file.handle, entry):
                        return TreeEntry(changed.path, "file", bits, mtime_ns, size, "", entry.digest, entry.pieces)
    except FileNotFoundError:
        return None
    except OSError:
        pass  # an unreadable file is written again
    return TreeEntry(changed.path, "file", bits, mtime_ns, size, "", OTHER)


def _has_content(handle: int, wanted: TreeEntry) -> bool:
    """Return whether an open file has exactly the content of an entry."""
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
