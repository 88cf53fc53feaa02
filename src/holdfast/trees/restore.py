"""Restoring a tree: a directory is changed to match a list of entries, and only differences are written.

Everything is done through handles of directories opened below each other, never through a link: nothing is written
outside of the root, whatever another process changes in the meantime. A file is written under a temporary name in the
same directory and then renamed, so no file is ever partly written, and other hard links to the replaced file are not
affected. After being killed at any point, a restore is resumed by running it again.

First unwanted paths are removed, deepest first; then directories are created, and files and links are written; last,
directories get their modes and times, which all of that has changed. Ignored paths stay, unless a wanted path takes
their place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from hmac import compare_digest
from types import MappingProxyType

from msgspec import Struct

from ..errors import Conflict, Stale
from . import validation
from .entries import TreeEntry, path_bytes
from .open_directories import OpenDirectories
from .patch import Patch, patch
from .prefetch import ObjectBodies, ObjectRequest, Prefetch
from .safe_open import stat_of
from .walk import Stat

PLAIN_BITS = 0o1777
"""The mode bits that are ever set: never set-uid or set-gid."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXISTING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

Restore = Generator[ObjectRequest, ObjectBodies, "RestoreResult"]
"""Yields requests for objects, receives their contents, and returns the result."""


class RestorePlan(Struct, frozen=True):
    """The changes to be made to a directory."""

    remove: Sequence[str] = ()
    folders: Sequence[TreeEntry] = ()
    """Directories to be created."""
    files: Sequence[TreeEntry] = ()
    links: Sequence[TreeEntry] = ()
    touch: Sequence[TreeEntry] = ()
    """Files of which only the mode or the time differs."""
    settle: Sequence[TreeEntry] = ()
    """Directories of which only the mode or the time differs."""
    has_new_names: bool = True
    existing: Mapping[str, TreeEntry] = MappingProxyType({})
    """Existing entries in the places of the files, as far as they are known."""

    @property
    def count(self) -> int:
        """Number of paths to be changed."""
        parts = (self.remove, self.folders, self.files, self.links, self.touch, self.settle)
        return sum(map(len, parts))


class RestoreResult(Struct, frozen=True):
    """The result of a restore."""

    written: int = 0
    removed: int = 0
    touched: int = 0
    bytes: int = 0
    kept: Sequence[str] = ()
    """Unwanted directories that stay because they contain ignored paths."""


def plan(
    wanted: Mapping[str, TreeEntry],
    present: Mapping[str, TreeEntry],
    changed: Iterable[TreeEntry],
    *,
    among: Iterable[str] | None = None,
) -> RestorePlan:
    """Plan how to get from the present to the wanted entries; ``changed`` are the wanted ones that differ.

    If only certain paths can differ, no others are compared: ``among``.
    """
    parts: dict[str, list[TreeEntry]] = {"folders": [], "files": [], "links": [], "touch": [], "settle": []}
    remove = [path for path in (present if among is None else among) if path in present and path not in wanted]
    for entry in changed:
        path, existing = entry.path, present.get(entry.path)
        if existing is not None and existing.kind != entry.kind and "dir" in (existing.kind, entry.kind):
            remove.append(path)
            existing = None
        part = _part(entry, existing)
        if part is not None:
            parts[part].append(entry)
    remove.sort(key=_deepest_first)
    parts["folders"].sort(key=lambda entry: entry.path.count("/"))
    new = any(entry.path not in present for part in ("folders", "files", "links") for entry in parts[part])
    in_place = {entry.path: present[entry.path] for entry in parts["files"] if entry.path in present}
    return RestorePlan(remove, **parts, has_new_names=new, existing=in_place)


def _part(entry: TreeEntry, existing: TreeEntry | None) -> str | None:
    """Return the part of the plan for an entry, or ``None`` if nothing has to be done."""
    if existing is not None and existing.kind == entry.kind and _is_same(entry, existing):
        if entry.kind == "symlink":
            return None if existing.mtime_ns == entry.mtime_ns else "links"
        differs = (entry.mode ^ existing.mode) & PLAIN_BITS or entry.mtime_ns != existing.mtime_ns
        return ("settle" if entry.kind == "dir" else "touch") if differs else None
    return {"dir": "folders", "file": "files", "symlink": "links"}[entry.kind]


def _is_same(entry: TreeEntry, existing: TreeEntry) -> bool:
    """Return whether two entries of one kind are equal except for mode and time."""
    same_content = existing.size == entry.size and compare_digest(existing.digest, entry.digest)
    return same_content and existing.target == entry.target


def restore(
    root: str,
    work: RestorePlan,
    wanted: Mapping[str, TreeEntry],
    *,
    expected: Mapping[str, Stat] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Restore:
    """Carry out a plan. ``wanted`` must have passed ``validation.check``.

    ``expected`` has the states of files when they were last captured: a file that has changed since is not
    overwritten.

    Raises:
        NotFound: the directory does not exist.
        Stale: something has changed since it was examined. The changes made so far stay; examine it again.
        Conflict: the file system cannot distinguish two of the names.
    """
    restorer = _Restorer(root, wanted, expected or {}, advance)
    try:
        return (yield from restorer.run(work))
    finally:
        restorer.close()


class _Restorer:
    def __init__(
        self, root: str, wanted: Mapping[str, TreeEntry], expected: Mapping[str, Stat], advance: Callable[[int], None]
    ) -> None:
        self._wanted, self._expected, self._advance = wanted, expected, advance
        self._folders = OpenDirectories(root)
        self._touched: set[str] = set()
        self._kept: list[str] = []
        self._bytes = self._names = 0
        self._prefix = f".holdfast-{os.getpid()}-"

    def close(self) -> None:
        self._folders.close()

    def run(self, work: RestorePlan) -> Restore:
        self._check_twins(work)
        for path in work.remove:
            self._remove(path)
            self._advance(1)
        self._folders.forget()
        for entry in work.folders:
            self._make_folder(entry)
        yield from self._write_files([patch(entry, work.existing.get(entry.path)) for entry in work.files])
        for entry in work.links:
            self._link(entry)
        yield from self._touch(work.touch)
        self._advance(len(work.folders) + len(work.links) + len(work.touch))
        self._settle(work)
        self._advance(len(work.settle))
        written = len(work.folders) + len(work.files) + len(work.links)
        removed = len(work.remove) - len(self._kept)
        return RestoreResult(written, removed, len(work.touch) + len(work.settle), self._bytes, self._kept)

    def _check_twins(self, work: RestorePlan) -> None:
        """Refuse names that this file system cannot distinguish."""
        pair = validation.find_twins(self._wanted) if work.has_new_names else None
        if pair is None:
            return
        handle, name = self._folders.at(""), f"{self._prefix}case"
        os.close(os.open(name, _NEW, 0o600, dir_fd=handle))
        try:
            os.stat(name.upper(), dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            return
        finally:
            os.unlink(name, dir_fd=handle)
        raise Conflict(
            f"this file system cannot distinguish {pair[0]!r} from {pair[1]!r}; nothing was changed",
            reason="file_system",
        )

    # Removing

    def _remove(self, path: str) -> None:
        folder, name = self._place(path)
        if folder is None:
            return
        self._check_expected(folder, name, path)
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if path not in self._wanted:
                self._kept.append(path)
                return
            import shutil  # rarely needed, and slow to import

            shutil.rmtree(name, dir_fd=folder)

    def _place(self, path: str) -> tuple[int | None, str]:
        """Return the handle of a path's directory, or ``None`` if that does not exist, and the name; note that it
        changes.
        """
        parent, _, name = path.rpartition("/")
        self._touched.add(parent)
        try:
            return self._folders.at(parent), name
        except FileNotFoundError:
            return None, name

    def _check_expected(self, folder: int, name: str, path: str) -> None:
        expected = self._expected.get(path)
        if expected is None:
            return
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISREG(now.st_mode) and expected != stat_of(now):
            raise Stale(f"{path!r} was changed while the tree was being restored")

    # Writing

    def _make_folder(self, entry: TreeEntry) -> None:
        folder, name = self._existing_place(entry.path)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return
            os.unlink(name, dir_fd=folder)
            os.mkdir(name, 0o700, dir_fd=folder)

    def _existing_place(self, path: str) -> tuple[int, str]:
        folder, name = self._place(path)
        if folder is None:
            raise Stale(f"the directory of {path!r} was removed while the tree was being restored")
        return folder, name

    def _write_files(self, files: Sequence[Patch]) -> Restore:
        """Write files in the order of their objects, so that each object is requested once, in batches."""
        in_order = sorted(files, key=lambda file: file.fetched[:1])
        contents = Prefetch(piece for file in in_order for piece in file.fetched)
        for file in in_order:
            entry = file.entry
            folder, name = self._existing_place(entry.path)
            self._check_expected(folder, name, entry.path)
            temporary = self._new_name()
            handle = _create(temporary, folder)
            try:
                if not (file.offsets and (yield from self._patch(handle, file, folder, name, contents))):
                    yield from self._write_pieces(handle, entry, Prefetch(entry.pieces) if file.offsets else contents)
                os.fchmod(handle, entry.mode & PLAIN_BITS)
                os.utime(handle, ns=(entry.mtime_ns, entry.mtime_ns))
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink(temporary, folder)
                raise
            finally:
                os.close(handle)
            self._bytes += entry.size
            self._advance(1)
        return RestoreResult()

    def _patch(
        self, handle: int, file: Patch, folder: int, name: str, contents: Prefetch
    ) -> Generator[ObjectRequest, ObjectBodies, bool]:
        """Return whether a file could be built from the existing one."""
        bodies = {}
        for piece in file.fetched:
            bodies[piece] = yield from contents.of(piece)
        content = file.content(folder, name, bodies)
        if content is not None:
            _write_all(handle, memoryview(content))
        return content is not None

    def _write_pieces(self, handle: int, entry: TreeEntry, contents: Prefetch) -> Restore:
        for piece in entry.pieces:
            if piece.object:
                _write_all(handle, (yield from contents.of(piece)))
            else:  # leave a hole instead of writing zeros
                os.lseek(handle, piece.length, os.SEEK_CUR)
        if any(not piece.object for piece in entry.pieces):
            os.ftruncate(handle, entry.size)
        return RestoreResult()

    def _link(self, entry: TreeEntry) -> None:
        folder, name = self._existing_place(entry.path)
        self._check_expected(folder, name, entry.path)
        temporary = self._new_name()
        try:
            os.symlink(path_bytes(entry.target), path_bytes(temporary), dir_fd=folder)
        except FileExistsError:
            os.unlink(temporary, dir_fd=folder)
            os.symlink(path_bytes(entry.target), path_bytes(temporary), dir_fd=folder)
        times = (entry.mtime_ns, entry.mtime_ns)
        os.utime(temporary, ns=times, dir_fd=folder, follow_symlinks=False)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _touch(self, files: Sequence[TreeEntry]) -> Restore:
        """Set modes and times of files; a file with other hard links is written again."""
        rewritten = []
        for entry in files:
            parent, _, name = entry.path.rpartition("/")
            folder = self._folders.at(parent)
            self._check_expected(folder, name, entry.path)
            try:
                handle = os.open(name, _EXISTING, dir_fd=folder)
            except OSError:
                rewritten.append(entry)
                continue
            try:
                now = os.fstat(handle)
                if now.st_nlink > 1 or not stat.S_ISREG(now.st_mode):
                    rewritten.append(entry)
                    continue
                os.fchmod(handle, entry.mode & PLAIN_BITS)
                os.utime(handle, ns=(entry.mtime_ns, entry.mtime_ns))
            finally:
                os.close(handle)
        return (yield from self._write_files([Patch(entry, {}) for entry in rewritten]))

    def _settle(self, work: RestorePlan) -> None:
        """Set modes and times of directories, the deepest first: every change in a directory changes its times."""
        paths = {entry.path for entry in [*work.folders, *work.settle]} | self._touched | self._folders.opened_up
        paths.discard("")
        for path in sorted(paths, key=_deepest_first):
            entry = self._wanted.get(path)
            if entry is None or entry.kind != "dir":
                continue
            handle = self._folders.at(path)
            inherited = os.fstat(handle).st_mode & 0o2000
            os.fchmod(handle, (entry.mode & PLAIN_BITS) | inherited)
            os.utime(handle, ns=(entry.mtime_ns, entry.mtime_ns))

    def _new_name(self) -> str:
        self._names += 1
        return f"{self._prefix}{self._names}"


def _create(name: str, folder: int) -> int:
    try:
        return os.open(name, _NEW, 0o600, dir_fd=folder)
    except FileExistsError:  # left by a killed process with the same id
        os.unlink(name, dir_fd=folder)
        return os.open(name, _NEW, 0o600, dir_fd=folder)


def _write_all(handle: int, content: memoryview) -> None:
    while content:
        content = content[os.write(handle, content) :]


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _deepest_first(path: str) -> tuple[int, str]:
    return -path.count("/"), path
