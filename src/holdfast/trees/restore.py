"""Restoring a tree: a directory is brought to a list of entries, and only what differs is touched.

Everything is done by handles of directories that were opened below each other, never through a link: whatever somebody puts in
the way meanwhile, nothing is written outside of the root. A file is written beside its place under a name of its own and then
takes that place at once, so no file is ever half of one and half of another, and a file that has a second name elsewhere is left
alone there. Killed at any point, it is done again and goes on.

First goes what is not wanted, deepest first; then directories are made, files and links are written; last, directories get
their modes and times, which all that has changed. What is ignored stays, unless something that is wanted takes its place.
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
from .entries import TreeEntry, raw
from .open_directories import OpenDirectories
from .patch import Patch, patch
from .prefetch import ObjectBodies, ObjectRequest, Prefetch
from .safe_open import stat_of
from .walk import Stat

PLAIN_BITS = 0o1777
"""What of a mode is ever set: never what makes a program run as somebody else."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_THERE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

Restore = Generator[ObjectRequest, ObjectBodies, "RestoreResult"]
"""Asks for objects by their digests, is sent their contents, and comes to what was done."""


class RestorePlan(Struct, frozen=True):
    """What is to be done to a directory."""

    remove: Sequence[str] = ()
    folders: Sequence[TreeEntry] = ()
    """To be made."""
    files: Sequence[TreeEntry] = ()
    links: Sequence[TreeEntry] = ()
    touch: Sequence[TreeEntry] = ()
    """Files of which only the mode or the time is another."""
    settle: Sequence[TreeEntry] = ()
    """Directories of which only those are."""
    has_new_names: bool = True
    there: Mapping[str, TreeEntry] = MappingProxyType({})
    """What lies in the places of the files, as far as it is known."""

    @property
    def count(self) -> int:
        """How many things are touched."""
        parts = (self.remove, self.folders, self.files, self.links, self.touch, self.settle)
        return sum(map(len, parts))


class RestoreResult(Struct, frozen=True):
    """What a restore did."""

    written: int = 0
    removed: int = 0
    touched: int = 0
    bytes: int = 0
    kept: Sequence[str] = ()
    """Directories that are not wanted, and stay because of what is ignored in them."""


def plan(
    wanted: Mapping[str, TreeEntry],
    present: Mapping[str, TreeEntry],
    changed: Iterable[TreeEntry],
    *,
    among: Iterable[str] | None = None,
) -> RestorePlan:
    """How to get from what is there to what is wanted. ``changed`` is what of that is not there just so.

    Where it is known that only these paths can differ, no others are looked at: ``among``.
    """
    parts: dict[str, list[TreeEntry]] = {"folders": [], "files": [], "links": [], "touch": [], "settle": []}
    remove = [path for path in (present if among is None else among) if path in present and path not in wanted]
    for entry in changed:
        path, there = entry.path, present.get(entry.path)
        if there is not None and there.kind != entry.kind and "dir" in (there.kind, entry.kind):
            remove.append(path)
            there = None
        part = _part(entry, there)
        if part is not None:
            parts[part].append(entry)
    remove.sort(key=_deepest_first)
    parts["folders"].sort(key=lambda entry: entry.path.count("/"))
    new = any(entry.path not in present for part in ("folders", "files", "links") for entry in parts[part])
    in_place = {entry.path: present[entry.path] for entry in parts["files"] if entry.path in present}
    return RestorePlan(remove, **parts, has_new_names=new, there=in_place)


def _part(entry: TreeEntry, there: TreeEntry | None) -> str | None:
    """What is to be done for an entry, if anything is."""
    if there is not None and there.kind == entry.kind and _is_same(entry, there):
        if entry.kind == "symlink":
            return None if there.mtime_ns == entry.mtime_ns else "links"
        differs = (entry.mode ^ there.mode) & PLAIN_BITS or entry.mtime_ns != there.mtime_ns
        return ("settle" if entry.kind == "dir" else "touch") if differs else None
    return {"dir": "folders", "file": "files", "symlink": "links"}[entry.kind]


def _is_same(entry: TreeEntry, there: TreeEntry) -> bool:
    """Whether two entries of one kind are the same but for mode and time."""
    same_content = there.size == entry.size and compare_digest(there.digest, entry.digest)
    return same_content and there.target == entry.target


def restore(
    root: str,
    work: RestorePlan,
    wanted: Mapping[str, TreeEntry],
    *,
    expected: Mapping[str, Stat] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Restore:
    """Do what a plan says. ``wanted`` is what ``guarding.check`` has let pass.

    ``expected`` says what was known of files when they were last captured: one that has changed since is not written over.

    Raises:
        NotFound: there is no such directory.
        Stale: something has changed since it was looked at. What was done so far stays; look again.
        Conflict: the file system cannot tell two of the names apart.
    """
    with_root = _Restoring(root, wanted, expected or {}, advance)
    try:
        return (yield from with_root.run(work))
    finally:
        with_root.close()


class _Restoring:
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
        yield from self._write_files([patch(entry, work.there.get(entry.path)) for entry in work.files])
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
        """Refuse names that this file system cannot tell apart; most can, and then there is nothing to refuse."""
        both = validation.find_twins(self._wanted) if work.has_new_names else None
        if both is None:
            return
        handle, name = self._folders.at(""), f"{self._prefix}case"
        os.close(os.open(name, _NEW, 0o600, dir_fd=handle))
        try:
            os.stat(name.upper(), dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            return
        finally:
            os.unlink(name, dir_fd=handle)
        raise Conflict(f"this file system cannot tell {both[0]!r} and {both[1]!r} apart; nothing was changed")

    # What goes

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
            import shutil  # seldom needed, and it takes its time to load

            shutil.rmtree(name, dir_fd=folder)

    def _place(self, path: str) -> tuple[int | None, str]:
        """The directory that something lies in, which changes, and its name there; nothing if that is gone already."""
        parent, _, name = path.rpartition("/")
        self._touched.add(parent)
        try:
            return self._folders.at(parent), name
        except FileNotFoundError:
            return None, name

    def _check_expected(self, folder: int, name: str, path: str) -> None:
        known = self._expected.get(path)
        if known is None:
            return
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISREG(now.st_mode) and known != stat_of(now):
            raise Stale(f"{path!r} was changed while the tree was being restored")

    # What comes

    def _make_folder(self, entry: TreeEntry) -> None:
        folder, name = self._there(entry.path)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return
            os.unlink(name, dir_fd=folder)
            os.mkdir(name, 0o700, dir_fd=folder)

    def _there(self, path: str) -> tuple[int, str]:
        folder, name = self._place(path)
        if folder is None:
            raise Stale(f"the directory of {path!r} was removed while the tree was being restored")
        return folder, name

    def _write_files(self, files: Sequence[Patch]) -> Restore:
        """Files in the order in which their contents lie, so that each object is asked for once, some at a time."""
        in_order = sorted(files, key=lambda file: file.fetched[:1])
        contents = Prefetch(piece for file in in_order for piece in file.fetched)
        for file in in_order:
            entry = file.entry
            folder, name = self._there(entry.path)
            self._check_expected(folder, name, entry.path)
            made = self._new_name()
            handle = _opened_new(made, folder)
            try:
                if not (file.there and (yield from self._patched(handle, file, folder, name, contents))):
                    yield from self._write_pieces(handle, entry, Prefetch(entry.pieces) if file.there else contents)
                os.fchmod(handle, entry.mode & PLAIN_BITS)
                os.utime(handle, ns=(entry.mtime_ns, entry.mtime_ns))
                os.rename(made, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink(made, folder)
                raise
            finally:
                os.close(handle)
            self._bytes += entry.size
            self._advance(1)
        return RestoreResult()

    def _patched(
        self, handle: int, file: Patch, folder: int, name: str, contents: Prefetch
    ) -> Generator[ObjectRequest, ObjectBodies, bool]:
        """Whether a file could be made of the one that is there."""
        bodies = {}
        for piece in file.fetched:
            bodies[piece] = yield from contents.of(piece)
        made = file.content(folder, name, bodies)
        if made is not None:
            _write_all(handle, memoryview(made))
        return made is not None

    def _write_pieces(self, handle: int, entry: TreeEntry, contents: Prefetch) -> Restore:
        for piece in entry.pieces:
            if piece.object:
                _write_all(handle, (yield from contents.of(piece)))
            else:  # zeros that nobody need write
                os.lseek(handle, piece.length, os.SEEK_CUR)
        if any(not piece.object for piece in entry.pieces):
            os.ftruncate(handle, entry.size)
        return RestoreResult()

    def _link(self, entry: TreeEntry) -> None:
        folder, name = self._there(entry.path)
        self._check_expected(folder, name, entry.path)
        made = self._new_name()
        try:
            os.symlink(raw(entry.target), raw(made), dir_fd=folder)
        except FileExistsError:
            os.unlink(made, dir_fd=folder)
            os.symlink(raw(entry.target), raw(made), dir_fd=folder)
        times = (entry.mtime_ns, entry.mtime_ns)
        os.utime(made, ns=times, dir_fd=folder, follow_symlinks=False)
        os.rename(made, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _touch(self, files: Sequence[TreeEntry]) -> Restore:
        """Files of which only the mode or the time is another; one that has a second name elsewhere is made anew."""
        anew = []
        for entry in files:
            parent, _, name = entry.path.rpartition("/")
            folder = self._folders.at(parent)
            self._check_expected(folder, name, entry.path)
            try:
                handle = os.open(name, _THERE, dir_fd=folder)
            except OSError:
                anew.append(entry)
                continue
            try:
                now = os.fstat(handle)
                if now.st_nlink > 1 or not stat.S_ISREG(now.st_mode):
                    anew.append(entry)
                    continue
                os.fchmod(handle, entry.mode & PLAIN_BITS)
                os.utime(handle, ns=(entry.mtime_ns, entry.mtime_ns))
            finally:
                os.close(handle)
        return (yield from self._write_files([Patch(entry, {}) for entry in anew]))

    def _settle(self, work: RestorePlan) -> None:
        """Modes and times of directories, the deepest first: whatever is done in one changes them."""
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


def _opened_new(name: str, folder: int) -> int:
    try:
        return os.open(name, _NEW, 0o600, dir_fd=folder)
    except FileExistsError:  # left by a process of this number that was killed
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
