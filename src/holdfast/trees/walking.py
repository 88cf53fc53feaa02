"""Walking a directory tree by directory handles: what in it is not as it was known to be.

Every directory is opened below the one it lies in and never through a link, so a tree that changes meanwhile cannot lead out of
its root. Most files of a tree are as they were; those cost one ``fstatat`` and one look into a dictionary.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from ..errors import InvalidInput, LimitExceeded, NotFound

Stat = tuple[int, int, int, int, int]
"""Mode, size, mtime and ctime in nanoseconds, and inode: who changes a file changes one of these."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Skipped(Struct, frozen=True):
    """Something in a tree that is not in its snapshot, and why."""

    path: str
    reason: str


class Found(NamedTuple):
    """Something that is new, or not as it was known to be."""

    name: str
    path: str
    stat: Stat


class Folder(NamedTuple):
    """A directory that is open, and what in it is new or other, in the order of their names."""

    handle: int
    prefix: str
    found: list[Found]


class Walk:
    """One walk over a tree.

    Args:
        root: the directory.
        known: what is known of paths; they are left out as long as they are the same.
        ignores: whether a path that is not known, given with whether it is a directory, is ignored.
        depth_most: how many directories may lie in each other.
        entries_most: how many entries there may be.
    """

    def __init__(
        self,
        root: str,
        *,
        known: Mapping[str, Stat],
        ignores: Callable[[str, bool], bool],
        depth_most: int,
        entries_most: int,
    ) -> None:
        self.seen: list[str] = []
        """The path of everything there is, and is not ignored."""
        self.skipped: list[Skipped] = []
        self._root, self._known, self._ignores = root, known, ignores
        self._depth_most, self._entries_most = depth_most, entries_most

    def folders(self) -> Iterator[Folder]:
        """Every directory, while it is open.

        Raises:
            NotFound: there is no such directory.
            LimitExceeded: the tree is too deep or too large.
        """
        stack = [(open_root(self._root), "", iter(("",)))]
        try:
            yield from self._into(stack)
        finally:
            for handle, _, _ in stack:
                os.close(handle)

    def _into(self, stack: list[tuple[int, str, Iterator[str]]]) -> Iterator[Folder]:
        root = stack[0][0]
        found, below = self._scan(root, "")
        stack[0] = (root, "", iter(below))
        yield Folder(root, "", found)
        while stack:
            parent, prefix, names = stack[-1]
            name = next(names, None)
            if name is None:
                os.close(stack.pop()[0])
                continue
            handle = self._enter(parent, prefix, name)
            if handle is None:
                continue
            inner = f"{prefix}{name}/"
            stack.append((handle, inner, iter(())))
            self._check(len(stack), inner)
            found, below = self._scan(handle, inner)
            stack[-1] = (handle, inner, iter(below))
            yield Folder(handle, inner, found)

    def _enter(self, parent: int, prefix: str, name: str) -> int | None:
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self.skipped.append(Skipped(prefix + name, _why(error)))
            return None

    def _scan(self, handle: int, prefix: str) -> tuple[list[Found], list[str]]:
        """What is new or other in a directory, and the directories in it. Nothing is asked of what is not needed."""
        found: list[Found] = []
        below: list[str] = []
        known, ignores, saw = self._known.get, self._ignores, self.seen.append
        with os.scandir(handle) as there:
            for each in there:
                name = each.name
                path = prefix + name
                is_folder = each.is_dir(follow_symlinks=False)
                was = known(path)
                if was is None and ignores(path, is_folder):
                    continue
                try:
                    now = each.stat(follow_symlinks=False)
                except OSError as error:
                    self._gone(path, error)
                    continue
                is_now = (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
                if is_folder:
                    below.append(name)
                saw(path)
                if is_now != was:
                    found.append(Found(name, path, is_now))
        found.sort()
        below.sort()
        return found, below

    def _gone(self, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.skipped.append(Skipped(path, _why(error)))

    def _check(self, depth: int, path: str) -> None:
        if depth > self._depth_most:
            raise LimitExceeded(f"{path[:200]!r} lies deeper than tree_depth = {self._depth_most:,}")
        if len(self.seen) > self._entries_most:
            raise LimitExceeded(f"there are more entries than tree_entries = {self._entries_most:,}")


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
