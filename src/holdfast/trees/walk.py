"""Walking a directory tree: what in it is not as it was known to be.

Most of a tree is mostly as it was. So everything that is known is asked for its state first, directories too: one in which a
name came or went has another time, and all others need not be read again. That is quicker than reading every directory. Only
then the directories in which something is new or other are opened, each below the one it lies in and never through a link, so
that a tree that changes meanwhile cannot lead out of its root; what is read, is read by these handles.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from ..errors import InvalidInput, LimitExceeded, NotFound

Stat = tuple[int, int, int, int, int]
"""Mode, size, mtime and ctime in nanoseconds, and inode: who changes a file changes one of these."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SkippedEntry(Struct, frozen=True):
    """Something in a tree that is not in its snapshot, and why."""

    path: str
    reason: str


class ChangedPath(NamedTuple):
    """Something that is new, or not as it was known to be."""

    name: str
    path: str
    stat: Stat


class OpenDirectory(NamedTuple):
    """A directory that is open, and what in it is new or other, in the order of their names."""

    handle: int
    prefix: str
    found: list[ChangedPath]


class Walk:
    """One walk over a tree.

    Args:
        root: the directory.
        known: what is known of paths, the root being the empty one. What is the same is not looked at more closely.
        unsure: paths that were there, of which nothing is known.
        ignores: whether a path that was not there, given with whether it is a directory, is ignored.
        max_depth: how many directories may lie in each other.
        max_entries: how many entries there may be.
    """

    def __init__(
        self,
        root: str,
        *,
        known: Mapping[str, Stat],
        unsure: Iterable[str] = (),
        ignores: Callable[[str, bool], bool],
        max_depth: int,
        max_entries: int,
    ) -> None:
        self.skipped: list[SkippedEntry] = []
        self.root_stat: Stat = (0, 0, 0, 0, 0)
        self.doubted: list[str] = []
        """What was there, and is not as it was known to be; it is there still if it is found."""
        self._root, self._known, self._unsure, self._ignores = root, known, unsure, ignores
        self._max_depth, self._max_entries = max_depth, max_entries
        self._due: dict[str, set[str]] = {}
        """What is to be looked at in which directory, by its path with a slash at the end."""
        self._whole: set[str] = set()
        """Directories in which everything is to be looked at."""
        self._count = 0

    def folders(self) -> Iterator[OpenDirectory]:
        """Every directory in which something is new or other, while it is open.

        Raises:
            NotFound: there is no such directory.
            LimitExceeded: the tree is too deep or too large.
        """
        root = open_root(self._root)
        try:
            self._doubt(root)
            for prefix in sorted(self._due):
                yield from self._visit(root, prefix)
        finally:
            os.close(root)

    def _doubt(self, root: int) -> None:
        """Ask for the state of everything that is known, and note where to look more closely."""
        self.root_stat = _stat(os.fstat(root))
        if self._known.get("") != self.root_stat:
            self._look_into("")
        look, doubted = os.stat, [*self._unsure]
        for path, was in self._known.items():
            try:
                now = look(path, dir_fd=root, follow_symlinks=False)
            except OSError:
                doubted.append(path)
                continue
            if (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino) != was:
                doubted.append(path)
        self.doubted = [path for path in doubted if path]
        self._count = len(self._known)
        for path in self.doubted:
            folder, slash, name = path.rpartition("/")
            self._due.setdefault(folder + slash, set()).add(name)
            if path not in self._known or stat.S_ISDIR(self._known[path][0]):
                self._look_into(f"{path}/")

    def _look_into(self, prefix: str) -> None:
        self._due.setdefault(prefix, set())
        self._whole.add(prefix)

    def _visit(self, root: int, prefix: str) -> Iterator[OpenDirectory]:
        """A directory, and those in it that were not there before."""
        handle = self._enter_all(root, prefix)
        if handle is None:
            return
        stack: list[tuple[int, str, tuple[list[ChangedPath], list[str]]]] = [(handle, prefix, ([], []))]
        try:
            self._check(prefix)
            stack[0] = (handle, prefix, self._look(handle, prefix))
            yield OpenDirectory(handle, prefix, stack[0][2][0])
            yield from self._visit_new(stack)
        finally:
            for opened, _, _ in stack:
                os.close(opened)

    def _visit_new(self, stack: list[tuple[int, str, tuple[list[ChangedPath], list[str]]]]) -> Iterator[OpenDirectory]:
        while stack:
            parent, prefix, (_, below) = stack[-1]
            if not below:
                os.close(stack.pop()[0])
                continue
            name = below.pop()
            handle = self._enter(parent, prefix, name)
            if handle is None:
                continue
            inner = f"{prefix}{name}/"
            stack.append((handle, inner, ([], [])))
            self._check(inner)
            stack[-1] = (handle, inner, self._scan(handle, inner))
            yield OpenDirectory(handle, inner, stack[-1][2][0])

    def _enter_all(self, root: int, prefix: str) -> int | None:
        """Open a directory, one step after the other."""
        handle: int | None = os.dup(root)
        at = 0
        while handle is not None and at < len(prefix):
            end = prefix.index("/", at)
            inner = self._enter(handle, prefix[:at], prefix[at:end])
            os.close(handle)
            handle, at = inner, end + 1
        return handle

    def _enter(self, parent: int, prefix: str, name: str) -> int | None:
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            # What is gone, or is a file or a link by now, is none of ours.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                skipped = SkippedEntry(prefix + name, _why(error))
                if skipped not in self.skipped:
                    self.skipped.append(skipped)
            return None

    def _look(self, handle: int, prefix: str) -> tuple[list[ChangedPath], list[str]]:
        if prefix in self._whole:
            return self._scan(handle, prefix)
        found, below = [], []
        for name in sorted(self._due[prefix], reverse=True):
            try:
                now = _stat(os.stat(name, dir_fd=handle, follow_symlinks=False))
            except OSError as error:
                self._gone(prefix + name, error)
                continue
            found.append(ChangedPath(name, prefix + name, now))
            if stat.S_ISDIR(now[0]) and f"{prefix}{name}/" not in self._whole:
                below.append(name)
        return found[::-1], below

    def _scan(self, handle: int, prefix: str) -> tuple[list[ChangedPath], list[str]]:
        """What is new or other in a directory, and the directories in it that nobody knows of, the last first."""
        found: list[ChangedPath] = []
        below: list[str] = []
        due = self._due.get(prefix, ())
        with os.scandir(handle) as there:
            for each in there:
                name = each.name
                path = prefix + name
                is_due = name in due
                is_folder = each.is_dir(follow_symlinks=False)
                if not is_due and (path in self._known or self._ignores(path, is_folder)):
                    continue
                try:
                    now = _stat(each.stat(follow_symlinks=False))
                except OSError as error:
                    self._gone(path, error)
                    continue
                if is_folder and not (is_due and f"{path}/" in self._whole):
                    below.append(name)
                found.append(ChangedPath(name, path, now))
        self._count += len(found)
        found.sort()
        below.sort(reverse=True)
        return found, below

    def _gone(self, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.skipped.append(SkippedEntry(path, _why(error)))

    def _check(self, path: str) -> None:
        if path.count("/") > self._max_depth:
            raise LimitExceeded(f"{path[:200]!r} lies deeper than tree_depth = {self._max_depth:,}")
        if self._count > self._max_entries + len(self.doubted):
            raise LimitExceeded(f"there are more entries than tree_entries = {self._max_entries:,}")


def open_root(root: str) -> int:
    """The directory that a tree is below.

    Raises:
        NotFound: there is none.
        InvalidInput: it is no directory, or cannot be opened.
    """
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"there is no directory {root!r}") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{root!r} cannot be captured: {error}") from error


def _stat(now: os.stat_result) -> Stat:
    return now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino


def unusual(mode: int) -> str | None:
    """Why something cannot be in a snapshot, if it cannot."""
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((reason for test, reason in kinds if test(mode)), None)


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
