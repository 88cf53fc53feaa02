"""Capturing a tree: what is in it that was not there before, packed, and what is gone.

``Scan.parts`` gives packed objects as they come to be, so that a large tree need not fit into memory; when it has ended,
``Scan.result`` says what there is.
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
from .walk import ChangedPath, OpenDirectory, SkippedEntry, Stat, Walk, unusual


class ScanResult(Struct, frozen=True):
    """What a tree came to."""

    difference: Difference
    entries: Mapping[str, TreeEntry]
    stats: Mapping[str, Stat]
    """Of files that were at rest: what is known of them the next time."""
    skipped: Sequence[SkippedEntry]
    unsettled: Sequence[str]
    """Files that changed each time they were read; they are in the snapshot as they were read last."""


class _File(NamedTuple):
    """A file that was read, and lies somewhere."""

    path: str
    stat: Stat
    size: int
    content: SmallContent | ChunkedContent


class Scan:
    """One capture of a tree, as a difference to what was captured before.

    Args:
        root: the directory.
        entries: what was captured before.
        stats: what is known of files that were captured before.
        ignores: what is left out.
        max_depth: how many directories may lie in each other.
        max_entries: how many entries there may be.
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
        # The root is known, and is no entry. Where nothing is known everything is walked over, and other things may be ignored.
        is_all_known = len(entries) + 1 == len(stats) or not stats
        unsure = () if is_all_known else [path for path in entries if path not in stats]
        self._walk = Walk(
            root, known=stats, unsure=unsure, ignores=ignores, max_depth=max_depth, max_entries=max_entries
        )
        self._packer = Packer(entries.values())
        self._entries: list[TreeEntry] = []
        self._files: list[_File] = []
        self._now: dict[str, Stat] = {}
        self._taken: list[str] = []
        self._gone: set[str] = set()
        self._unsettled: list[str] = []
        self._started_ns = 0

    def parts(self) -> Iterator[list[Packed]]:
        """Packed objects, some at a time. What was given away is not kept.

        Raises:
            NotFound: there is no such directory.
            LimitExceeded: the tree is too deep or too large.
        """
        self._started_ns = stat_cache.now_ns()
        try:
            for folder in self._walk.folders():
                self._enter(folder)
                for found in folder.found:
                    yield from self._take(folder, found)
                    if self._packer.is_full:
                        yield self._packer.take()
            yield self._packer.finish()
        finally:
            self._packer.close()

    def result(self) -> ScanResult:
        """What there is, when all parts were given away."""
        changed = [entry for entry in self._made() if self._before.get(entry.path) != entry]
        removed = self._removed()
        difference = Difference(changed, removed, self._ignores.patterns)
        is_same = not changed and not removed
        entries = self._before if is_same else difference.applied(self._before)
        return ScanResult(difference, entries, self._known(removed), self._walk.skipped, self._unsettled)

    def _enter(self, folder: OpenDirectory) -> None:
        """A directory, before what is in it."""

    def _take(self, folder: OpenDirectory, found: ChangedPath) -> Iterator[list[Packed]]:
        mode = found.stat[0]
        self._taken.append(found.path)
        if stat.S_ISREG(mode):
            yield from self._take_file(folder, found)
        elif stat.S_ISDIR(mode):
            self._entries.append(TreeEntry(found.path, "dir", mode & MODE_BITS, found.stat[2]))
            self._now[found.path] = found.stat
        elif stat.S_ISLNK(mode):
            self._take_link(folder, found)
        else:
            self._skip(found.path, unusual(mode) or "not a file")

    def _take_link(self, folder: OpenDirectory, found: ChangedPath) -> None:
        try:
            target = os.readlink(found.name, dir_fd=folder.handle)
        except OSError as error:
            self._lost(found.path, error)
            return
        self._entries.append(TreeEntry(found.path, "symlink", found.stat[0] & MODE_BITS, found.stat[2], 0, target))
        self._now[found.path] = found.stat

    def _take_file(self, folder: OpenDirectory, found: ChangedPath) -> Iterator[list[Packed]]:
        """Read a file until it stays as it was meanwhile, or it was tried often enough."""
        for turn in range(1, safe_open.TRIES + 1):
            try:
                with safe_open.open_file(folder.handle, found.name) as file:
                    read = self._file(found.path, file) if file.stat[1] <= CHUNK else None
                    if read is None:
                        read = yield from self._large_file(found.path, file)
                    is_settled = read.size == file.stat[1] and safe_open.is_same(file)
            except OSError as error:
                self._lost(found.path, error)
                return
            if is_settled or turn == safe_open.TRIES:
                self._took(read, is_settled=is_settled)
                return

    def _file(self, path: str, file: OpenFile) -> _File:
        content = safe_open.content(file)[:CHUNK]
        return _File(path, file.stat, len(content), self._packer.whole(content, self._before.get(path)))

    def _large_file(self, path: str, file: OpenFile) -> Generator[list[Packed], None, _File]:
        content = self._packer.chunked()
        for chunk in safe_open.chunks(file):
            content.add(chunk)
            if self._packer.is_full:
                yield self._packer.take()
        return _File(path, file.stat, content.size, content)

    def _took(self, read: _File, *, is_settled: bool) -> None:
        self._files.append(read)
        if is_settled:
            self._now[read.path] = read.stat
        else:
            self._unsettled.append(read.path)

    def _skip(self, path: str, reason: str) -> None:
        self._walk.skipped.append(SkippedEntry(path, reason))
        self._gone.add(path)

    def _lost(self, path: str, error: OSError) -> None:
        """Something that was there when its directory was looked at, and cannot be read."""
        self._gone.add(path)
        if not isinstance(error, FileNotFoundError):
            self._walk.skipped.append(SkippedEntry(path, (error.strerror or type(error).__name__).lower()))

    def _made(self) -> Iterator[TreeEntry]:
        yield from self._entries
        for path, (mode, _, mtime_ns, _, _), size, content in self._files:
            digest, pieces = content.placed()
            was = self._before.get(path)
            # What lies in two places may be named by either: the one that was named before makes no difference.
            if was is not None and compare_digest(was.digest, digest):
                pieces = was.pieces
            yield TreeEntry(path, "file", mode & MODE_BITS, mtime_ns, size, "", digest, pieces)

    def _removed(self) -> list[str]:
        there = set(self._taken) - self._gone
        if not self._stats:
            return [path for path in self._before if path not in there]
        # What lay in a directory that is none any longer may still be reached by its path: through a link.
        folders = {entry.path for entry in self._entries if entry.kind == "dir"}
        replaced = {
            f"{path}/" for path in self._walk.doubted if path not in folders and self._before[path].kind == "dir"
        }
        below = [path for path in self._before if not replaced.isdisjoint(folders_of(path))] if replaced else []
        return [path for path in {*self._walk.doubted, *below} if path not in there]

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
            # That it can be read by now would not show in its directory: that is to be looked into again.
            known.pop(skipped.path, None)
            known.pop(skipped.path.rpartition("/")[0], None)
        return known
