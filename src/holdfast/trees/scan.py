"""Capturing a tree: packing content that was not stored before, and finding removed paths.

``Scan.parts`` yields packed objects as they are produced, so that a large tree need not fit into memory; afterwards,
``Scan.result`` returns the entries.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from hmac import compare_digest
from typing import NamedTuple

from msgspec import Struct

from ..core.objects import Packed
from . import safe_open, stat_cache
from .contents import CHUNK, ChunkedContent, Packer, SmallContent
from .entries import MODE_BITS, Difference, TreeEntry, folders_of
from .ignore_rules import IgnoreRules
from .safe_open import OpenFile
from .walk import ChangedDirectory, ChangedPath, SkippedEntry, Stat, Walk, unusual


class ScanResult(Struct, frozen=True):
    """The result of scanning a tree."""

    difference: Difference
    entries: Mapping[str, TreeEntry]
    stats: Mapping[str, Stat]
    """States of files that were at rest, for the next capture."""
    skipped: Sequence[SkippedEntry]
    unsettled: Sequence[str]
    """Files that changed each time they were read; the snapshot has the last content read."""


class _File(NamedTuple):
    """A file that was read and packed."""

    path: str
    stat: Stat
    size: int
    content: SmallContent | ChunkedContent


class Scan:
    """One capture of a tree, as a difference to an earlier one.

    Args:
        root: the directory.
        entries: the entries of the earlier capture.
        stats: known states of captured files.
        ignores: the ignore rules.
        max_depth: maximum nesting of directories.
        max_entries: maximum number of entries.
    """

    def __init__(
        self,
        root: str,
        *,
        entries: Mapping[str, TreeEntry],
        stats: Mapping[str, Stat],
        ignores: IgnoreRules,
        max_depth: int,
        max_entries: int,
    ) -> None:
        self._before, self._stats, self._ignores = entries, stats, ignores
        # The root has a state and no entry. Without any known state the whole tree is walked, and the ignore rules may differ.
        is_all_known = len(entries) + 1 == len(stats) or not stats
        unsure = () if is_all_known else [path for path in entries if path not in stats]
        self._walk = Walk(
            root, known=stats, unsure=unsure, ignores=ignores, max_depth=max_depth, max_entries=max_entries
        )
        self._packer = Packer(entries.values())
        self._entries: list[TreeEntry] = []
        self._files: list[_File] = []
        self._now: dict[str, Stat] = {}
        self._seen: list[str] = []
        self._removed_paths: set[str] = set()
        self._unsettled: list[str] = []
        self._started_ns = 0

    def parts(self) -> Iterator[list[Packed]]:
        """Yield packed objects in parts. Yielded objects are not kept.

        Raises:
            NotFound: the directory does not exist.
            LimitExceeded: the tree is too deep or too large.
        """
        self._started_ns = stat_cache.now_ns()
        try:
            for folder in self._walk.folders():
                self._enter(folder)
                for changed in folder.changed:
                    yield from self._take(folder, changed)
                    if self._packer.is_full:
                        yield self._packer.take()
            yield self._packer.finish()
        finally:
            self._packer.close()

    def result(self) -> ScanResult:
        """Return the result, after all parts were yielded."""
        changed = [entry for entry in self._all_entries() if self._before.get(entry.path) != entry]
        removed = self._removed()
        difference = Difference(changed, removed, self._ignores.patterns)
        is_same = not changed and not removed
        entries = self._before if is_same else difference.applied(self._before)
        return ScanResult(difference, entries, self._known(removed), self._walk.skipped, self._unsettled)

    def _enter(self, folder: ChangedDirectory) -> None:
        """Called for each directory before its entries; for subclasses."""

    def _take(self, folder: ChangedDirectory, changed: ChangedPath) -> Iterator[list[Packed]]:
        mode = changed.stat[0]
        self._seen.append(changed.path)
        if stat.S_ISREG(mode):
            yield from self._take_file(folder, changed)
        elif stat.S_ISDIR(mode):
            self._entries.append(TreeEntry(changed.path, "dir", mode & MODE_BITS, changed.stat[2]))
            self._now[changed.path] = changed.stat
        elif stat.S_ISLNK(mode):
            self._take_link(folder, changed)
        else:
            self._skip(changed.path, unusual(mode) or "not a file")

    def _take_link(self, folder: ChangedDirectory, changed: ChangedPath) -> None:
        try:
            target = os.readlink(changed.name, dir_fd=folder.handle)
        except OSError as error:
            self._skip_unreadable(changed.path, error)
            return
        self._entries.append(
            TreeEntry(changed.path, "symlink", changed.stat[0] & MODE_BITS, changed.stat[2], 0, target)
        )
        self._now[changed.path] = changed.stat

    def _take_file(self, folder: ChangedDirectory, changed: ChangedPath) -> Iterator[list[Packed]]:
        """Read a file until it is unchanged while being read, at most ``TRIES`` times."""
        for turn in range(1, safe_open.TRIES + 1):
            try:
                with safe_open.open_file(folder.handle, changed.name) as file:
                    read_file = self._file(changed.path, file) if file.stat[1] <= CHUNK else None
                    if read_file is None:
                        read_file = yield from self._large_file(changed.path, file)
                    is_settled = read_file.size == file.stat[1] and safe_open.is_same(file)
            except OSError as error:
                self._skip_unreadable(changed.path, error)
                return
            if is_settled or turn == safe_open.TRIES:
                self._add_file(read_file, is_settled=is_settled)
                return

    def _file(self, path: str, file: OpenFile) -> _File:
        content = safe_open.content(file)[:CHUNK]
        return _File(path, file.stat, len(content), self._packer.add_small(content, self._before.get(path)))

    def _large_file(self, path: str, file: OpenFile) -> Generator[list[Packed], None, _File]:
        content = self._packer.start_large()
        for chunk in safe_open.chunks(file):
            content.add(chunk)
            if self._packer.is_full:
                yield self._packer.take()
        return _File(path, file.stat, content.size, content)

    def _add_file(self, read_file: _File, *, is_settled: bool) -> None:
        self._files.append(read_file)
        if is_settled:
            self._now[read_file.path] = read_file.stat
        else:
            self._unsettled.append(read_file.path)

    def _skip(self, path: str, reason: str) -> None:
        self._walk.skipped.append(SkippedEntry(path, reason))
        self._removed_paths.add(path)

    def _skip_unreadable(self, path: str, error: OSError) -> None:
        """Handle a path that was listed and cannot be read."""
        self._removed_paths.add(path)
        if not isinstance(error, FileNotFoundError):
            self._walk.skipped.append(SkippedEntry(path, (error.strerror or type(error).__name__).lower()))

    def _all_entries(self) -> Iterator[TreeEntry]:
        yield from self._entries
        for path, (mode, _, mtime_ns, _, _), size, content in self._files:
            digest, pieces = content.digest_and_pieces()
            previous = self._before.get(path)
            # A content stored in two places may refer to either: keep the previous one, so that the entry does not differ.
            if previous is not None and compare_digest(previous.digest, digest):
                pieces = previous.pieces
            yield TreeEntry(path, "file", mode & MODE_BITS, mtime_ns, size, "", digest, pieces)

    def _removed(self) -> list[str]:
        present = set(self._seen) - self._removed_paths
        if not self._stats:
            return [path for path in self._before if path not in present]
        # A path in a directory that was replaced by a link may still resolve, through the link.
        folders = {entry.path for entry in self._entries if entry.kind == "dir"}
        replaced = {
            f"{path}/" for path in self._walk.doubted if path not in folders and self._before[path].kind == "dir"
        }
        below = [path for path in self._before if not replaced.isdisjoint(folders_of(path))] if replaced else []
        return [path for path in {*self._walk.doubted, *below} if path not in present]

    def _known(self, removed: Sequence[str]) -> Mapping[str, Stat]:
        if self._stats.get("") != self._walk.root_stat:
            self._now[""] = self._walk.root_stat
        if not self._now and not removed:
            return self._stats
        known = dict(self._stats)
        for path in removed:
            known.pop(path, None)
        for path, now in self._now.items():
            if stat_cache.at_rest(now, self._started_ns):
                known[path] = now
            else:
                known.pop(path, None)
        for skipped in self._walk.skipped:
            # If it becomes readable, its directory does not change: the directory must be examined again next time.
            known.pop(skipped.path, None)
            known.pop(skipped.path.rpartition("/")[0], None)
        return known
