"""Walking a directory tree to find everything that differs from its known state.

Most of a tree is usually unchanged. So first every known path is checked with ``stat``, including directories: a
directory in which a name was added or removed has another mtime, and all others need not be listed again. That is
faster than listing every directory. Then only the directories with changes are opened, each through the handle of its
parent and never through a link, so that a tree that changes during the walk cannot lead out of its root; entries are
read through these handles.
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
"""Mode, size, mtime and ctime in nanoseconds, and inode: any change of a file changes one of these."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SkippedEntry(Struct, frozen=True):
    """A path that is not in the snapshot, with the reason."""

    path: str
    reason: str


class ChangedPath(NamedTuple):
    """A path that is new, or differs from its known state."""

    name: str
    path: str
    stat: Stat


class ChangedDirectory(NamedTuple):
    """An open directory with its new and changed names, in order."""

    handle: int
    prefix: str
    changed: list[ChangedPath]


class Walk:
    """One walk over a tree.

    Args:
        root: the directory.
        known: known states by path, the root being the empty path. Unchanged paths are not examined further.
        unsure: paths that existed and whose state is unknown.
        ignores: whether a new path, given with whether it is a directory, is ignored.
        max_depth: maximum nesting of directories.
        max_entries: maximum number of entries.
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
        """Known paths that differ from their known state; they still exist if the walk finds them."""
        self._root, self._known, self._unsure, self._ignores = root, known, unsure, ignores
        self._max_depth, self._max_entries = max_depth, max_entries
        self._due: dict[str, set[str]] = {}
        """Names to examine, by the path of their directory with a trailing slash."""
        self._whole: set[str] = set()
        """Directories to be listed completely."""
        self._count = 0

    def folders(self) -> Iterator[ChangedDirectory]:
        """Yield every directory with new or changed names, while it is open.

        Raises:
            NotFound: the root does not exist.
            LimitExceeded: the tree is too deep or too large.
        """
        root = open_root(self._root)
        try:
            self._check_known(root)
            for prefix in sorted(self._due):
                yield from self._visit(root, prefix)
        finally:
            os.close(root)

    def _check_known(self, root: int) -> None:
        """Check the state of every known path, and note which directories to open."""
        self.root_stat = _stat(os.fstat(root))
        if self._known.get("") != self.root_stat:
            self._list_later("")
        stat_path, doubted = os.stat, [*self._unsure]
        for path, known_stat in self._known.items():
            try:
                now = stat_path(path, dir_fd=root, follow_symlinks=False)
            except OSError:
                doubted.append(path)
                continue
            if (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino) != known_stat:
                doubted.append(path)
        self.doubted = [path for path in doubted if path]
        self._count = len(self._known)
        for path in self.doubted:
            folder, slash, name = path.rpartition("/")
            self._due.setdefault(folder + slash, set()).add(name)
            if path not in self._known or stat.S_ISDIR(self._known[path][0]):
                self._list_later(f"{path}/")

    def _list_later(self, prefix: str) -> None:
        self._due.setdefault(prefix, set())
        self._whole.add(prefix)

    def _visit(self, root: int, prefix: str) -> Iterator[ChangedDirectory]:
        """Yield a directory, and the new directories below it."""
        handle = self._enter_all(root, prefix)
        if handle is None:
            return
        stack: list[tuple[int, str, tuple[list[ChangedPath], list[str]]]] = [(handle, prefix, ([], []))]
        try:
            self._check(prefix)
            stack[0] = (handle, prefix, self._examine(handle, prefix))
            yield ChangedDirectory(handle, prefix, stack[0][2][0])
            yield from self._visit_new(stack)
        finally:
            for opened, _, _ in stack:
                os.close(opened)

    def _visit_new(
        self, stack: list[tuple[int, str, tuple[list[ChangedPath], list[str]]]]
    ) -> Iterator[ChangedDirectory]:
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
            yield ChangedDirectory(handle, inner, stack[-1][2][0])

    def _enter_all(self, root: int, prefix: str) -> int | None:
        """Open a directory, one path component at a time."""
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
            # A directory that was removed, or replaced by a file or a link, is not ours to read.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                skipped = SkippedEntry(prefix + name, _reason(error))
                if skipped not in self.skipped:
                    self.skipped.append(skipped)
            return None

    def _examine(self, handle: int, prefix: str) -> tuple[list[ChangedPath], list[str]]:
        if prefix in self._whole:
            return self._scan(handle, prefix)
        changed, below = [], []
        for name in sorted(self._due[prefix], reverse=True):
            try:
                now = _stat(os.stat(name, dir_fd=handle, follow_symlinks=False))
            except OSError as error:
                self._missing(prefix + name, error)
                continue
            changed.append(ChangedPath(name, prefix + name, now))
            if stat.S_ISDIR(now[0]) and f"{prefix}{name}/" not in self._whole:
                below.append(name)
        return changed[::-1], below

    def _scan(self, handle: int, prefix: str) -> tuple[list[ChangedPath], list[str]]:
        """List a directory; return its new or changed names, and its unknown subdirectories, the last first."""
        changed: list[ChangedPath] = []
        below: list[str] = []
        due = self._due.get(prefix, ())
        with os.scandir(handle) as listing:
            for listed in listing:
                name = listed.name
                path = prefix + name
                is_due = name in due
                is_folder = listed.is_dir(follow_symlinks=False)
                if not is_due and (path in self._known or self._ignores(path, is_folder)):
                    continue
                try:
                    now = _stat(listed.stat(follow_symlinks=False))
                except OSError as error:
                    self._missing(path, error)
                    continue
                if is_folder and not (is_due and f"{path}/" in self._whole):
                    below.append(name)
                changed.append(ChangedPath(name, path, now))
        self._count += len(changed)
        changed.sort()
        below.sort(reverse=True)
        return changed, below

    def _missing(self, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.skipped.append(SkippedEntry(path, _reason(error)))

    def _check(self, path: str) -> None:
        if path.count("/") > self._max_depth:
            raise LimitExceeded(
                f"{path[:200]!r} is nested deeper than tree_depth = {self._max_depth:,}",
                limit="tree_depth",
                maximum=self._max_depth,
            )
        if self._count > self._max_entries + len(self.doubted):
            raise LimitExceeded(
                f"the tree has more entries than tree_entries = {self._max_entries:,}",
                limit="tree_entries",
                maximum=self._max_entries,
            )


def open_root(root: str) -> int:
    """Open the root directory of a tree.

    Raises:
        NotFound: it does not exist.
        InvalidInput: it is not a directory, or cannot be opened.
    """
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"directory {root!r} does not exist", noun="directory", key=root) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{root!r} cannot be captured: {error}", field="root") from error


def _stat(now: os.stat_result) -> Stat:
    return now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino


def unusual(mode: int) -> str | None:
    """Return the kind of a special file, which cannot be in a snapshot, or ``None``."""
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((reason for test, reason in kinds if test(mode)), None)


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
