"""A disk that can be cut off at any operation, and that can fail at any operation.

Its files are real files in a folder of yours, so SQLite has its locks, its shared memory and its readers exactly as in
production. What it adds: every change is recorded, a flush is recorded and never done, and an operation fails when a rule
says so. A recording is then turned into the files a machine would find after losing power at that point:
what was flushed is there; what was not may be lost, torn, written out of order, or turned to noise.

Put the folder in memory (``/dev/shm``) for speed; nothing here depends on what the real disk does.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Literal, Self

import apsw
from msgspec import Struct

SECTOR_BYTES = 512
"""What a disk writes as a whole: a write is torn only between sectors."""

Change = Literal["create", "write", "truncate", "sync", "delete", "failed_sync"]
Attempt = Literal["open", "read", "write", "truncate", "sync", "delete"]
Error = Literal["EIO", "ENOSPC", "short"]
Variant = Literal["dropped", "kept", "torn", "scattered", "noise", "entries"]

VARIANTS: tuple[Variant, ...] = ("dropped", "kept", "torn", "scattered", "noise", "entries")
"""What may have become of the writes that were not flushed:

``dropped`` all lost; ``kept`` all there; ``torn`` there up to some sector and no further; ``scattered`` any of their
sectors, in any order; ``noise`` the same, and some of the lost ones hold noise; ``entries`` all lost, and so are files
that were created or deleted without a flush of their folder.
"""

_BASE = ""  # the machine's own file layer
_NEW_ENTRY = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_numbers = itertools.count(1)


class Operation(Struct, frozen=True):
    """One change that reached the disk's cache."""

    kind: Change
    file: str
    at: int = 0
    """Where a write begins, or the new length of a truncated file."""
    data: bytes = b""
    folder: bool = False
    """Whether the folder was flushed as well, which makes files created and deleted before it durable."""


class Fault(Struct, frozen=True, kw_only=True):
    """A rule: these attempts fail. Attempts are numbered from 1 as ``Disk.attempts`` counts them."""

    error: Error
    first: int
    last: int | None
    """The last attempt that fails; ``None`` for all from ``first`` on, until ``Disk.repair``."""
    kinds: frozenset[Attempt] = frozenset({"open", "read", "write", "truncate", "sync", "delete"})
    files: str = ""
    """How the names of the files end that it is about."""

    def hits(self, number: int, kind: Attempt, file: str) -> bool:
        """Whether this attempt fails."""
        wanted = kind in self.kinds and file.endswith(self.files)
        return wanted and number >= self.first and (self.last is None or number <= self.last)


class Disk:
    """A recording, failing file layer for SQLite: give ``name`` to ``SqliteFile(vfs=...)`` while it is open.

    Attributes:
        operations: every change so far, in order.
        attempts: the kind of every attempt so far, reads among them, in order.
        watch: called with the kind and file of each attempt before it is made; may block.
        failed_after: after how many operations the last attempt failed.
    """

    def __init__(self, *, watch: Callable[[Attempt, str], None] | None = None) -> None:
        self.name = f"holdfast-disk-{os.getpid()}-{next(_numbers)}"
        self.operations: list[Operation] = []
        self.attempts: list[Attempt] = []
        self.watch = watch
        self.failed_after: int | None = None
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._vfs: _Vfs | None = None

    def __enter__(self) -> Self:
        self._vfs = _Vfs(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._vfs is not None
        self._vfs.unregister()
        self._vfs = None

    @property
    def position(self) -> int:
        """How many changes there were."""
        return len(self.operations)

    def count(self, kind: Change) -> int:
        """How many changes of one kind there were."""
        return sum(operation.kind == kind for operation in self.operations)

    def fail(self, fault: Fault) -> None:
        """Add a rule."""
        self._faults.append(fault)

    def repair(self) -> None:
        """Drop all rules: from now on the disk works."""
        self._faults.clear()

    def attempt(self, kind: Attempt, file: str) -> Error | None:
        """Count an attempt; the error it must fail with, if any."""
        if self.watch is not None:
            self.watch(kind, file)
        with self._lock:
            self.attempts.append(kind)
            number = len(self.attempts)
        error = next((fault.error for fault in self._faults if fault.hits(number, kind, file)), None)
        if error is not None:
            self.failed_after = self.position
        return error

    def record(self, operation: Operation) -> None:
        """Note a change."""
        self.operations.append(operation)


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.name, _BASE)
        self._disk = disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            return apsw.VFSFile(_BASE, name, flags)  # scratch space that a cut takes anyway
        file = os.path.basename(path)
        error = self._disk.attempt("open", file)
        if error in ("EIO", "ENOSPC"):
            raise _failure(apsw.CantOpenError, apsw.SQLITE_CANTOPEN, error, "open", file)
        may_create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        is_new = may_create and not os.path.exists(path)
        opened = _File(self._disk, name, flags, file, flush_folder=may_create and bool(flags[0] & _NEW_ENTRY))
        if is_new:
            self._disk.record(Operation("create", file))
        return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:
        file = os.path.basename(filename)
        error = self._disk.attempt("delete", file)
        if error in ("EIO", "ENOSPC"):
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_DELETE, error, "delete", file)
        super().xDelete(filename, False)
        self._disk.record(Operation("delete", file, folder=bool(syncdir)))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int], file: str, *, flush_folder: bool) -> None:
        super().__init__(_BASE, name, flags)
        self._disk, self._file = disk, file
        # As SQLite's own file layer does: whoever opens a journal or log that may be new flushes its folder with the first
        # flush, even if another process has made it.
        self._flush_folder = flush_folder

    def xRead(self, amount: int, offset: int) -> bytes:
        error = self._disk.attempt("read", self._file)
        if error == "EIO":
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_READ, error, "read", self._file)
        data = super().xRead(amount, offset)
        return data[: len(data) // 2] if error == "short" else data

    def xWrite(self, data: bytes, offset: int) -> None:
        error = self._disk.attempt("write", self._file)
        kept = bytes(data)
        if error in ("EIO", "ENOSPC"):
            kept = kept[: len(kept) // 2]  # a disk gives up in the middle, not before
        if kept:
            super().xWrite(kept, offset)
            self._disk.record(Operation("write", self._file, offset, kept))
        if error == "ENOSPC":
            raise _failure(apsw.FullError, apsw.SQLITE_FULL, error, "write", self._file)
        if error == "EIO":
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_WRITE, error, "write", self._file)

    def xTruncate(self, newsize: int) -> None:
        error = self._disk.attempt("truncate", self._file)
        if error in ("EIO", "ENOSPC"):
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_TRUNCATE, error, "truncate", self._file)
        super().xTruncate(newsize)
        self._disk.record(Operation("truncate", self._file, newsize))

    def xSync(self, flags: int) -> None:
        error = self._disk.attempt("sync", self._file)
        if error in ("EIO", "ENOSPC"):
            self._disk.record(Operation("failed_sync", self._file))
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_FSYNC, error, "sync", self._file)
        self._disk.record(Operation("sync", self._file, folder=self._flush_folder))
        self._flush_folder = False


def _failure(kind: type[apsw.Error], code: int, error: str | None, what: str, file: str) -> apsw.Error:
    failure = kind(f"{error} at {what} of {file}, as the test asked")
    failure.result = code & 0xFF  # type: ignore[attr-defined]
    failure.extendedresult = code  # type: ignore[attr-defined]
    return failure


class Wreck:
    """What is on the disk if the power goes: follows a recording, one operation after another."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._entries = {name: _Inode(content) for name, content in (files or {}).items()}
        self._flushed_entries = dict(self._entries)

    def apply(self, operation: Operation) -> None:
        """Go on by one operation."""
        if operation.kind == "create":
            self._entries[operation.file] = _Inode(b"")
        elif operation.kind == "delete":
            self._entries.pop(operation.file, None)
        else:
            self._entries[operation.file].apply(operation)
        if operation.folder:
            self._flushed_entries = dict(self._entries)

    def variants(self) -> Sequence[Variant]:
        """The ways of cutting the power here that can make a difference."""
        same_entries = self._entries == self._flushed_entries
        if any(inode.pending for inode in self._entries.values()):
            return VARIANTS[:-1] if same_entries else VARIANTS
        return ("dropped",) if same_entries else ("dropped", "entries", "scattered")

    def files(self, variant: Variant, random: Random) -> dict[str, bytes]:
        """The files that are found when the machine comes back."""
        entries = self._entries
        if variant == "entries":
            entries = self._flushed_entries
        elif variant in ("scattered", "noise"):
            entries = self._some_entries(random)
        return {name: inode.after_cut(variant, random) for name, inode in sorted(entries.items())}

    def _some_entries(self, random: Random) -> dict[str, _Inode]:
        """Each file created or deleted without a flush of the folder is as it is now, or as it was."""
        found: dict[str, _Inode] = {}
        for name in sorted({*self._entries, *self._flushed_entries}):
            was, now = self._flushed_entries.get(name), self._entries.get(name)
            inode = now if was is now or random.random() < 0.5 else was
            if inode is not None:
                found[name] = inode
        return found


class _Inode:
    """A file's flushed content, and the changes to it that are not."""

    def __init__(self, content: bytes) -> None:
        self.flushed = content
        self.pending: list[Operation] = []

    def apply(self, operation: Operation) -> None:
        if operation.kind == "sync":
            if self.pending:
                self.flushed = bytes(self._kept())
            self.pending.clear()
        elif operation.kind == "failed_sync":
            # Afterwards the cache counts as clean: what the failed flush lost never arrives by a later one.
            self.pending.clear()
        else:
            self.pending.append(operation)

    def after_cut(self, variant: Variant, random: Random) -> bytes:
        if not self.pending or variant in ("dropped", "entries"):
            return self.flushed
        if variant == "kept":
            return bytes(self._kept())
        content = bytearray(self.flushed)
        if variant == "torn":
            self._tear(content, random)
        else:
            self._scatter(content, random, noise=variant == "noise")
        return bytes(content)

    def _kept(self) -> bytearray:
        content = bytearray(self.flushed)
        for each in self.pending:
            _change(content, each.at, each.data, is_truncate=each.kind == "truncate")
        return content

    def _tear(self, content: bytearray, random: Random) -> None:
        last = random.randrange(len(self.pending))
        for each in self.pending[:last]:
            _change(content, each.at, each.data, is_truncate=each.kind == "truncate")
        torn = self.pending[last]
        if torn.kind == "write":
            pieces = _sectors(torn)
            for at, data in pieces[: random.randrange(len(pieces) + 1)]:
                _change(content, at, data)

    def _scatter(self, content: bytearray, random: Random, *, noise: bool) -> None:
        for writes, length in self._stretches(random):
            pieces = [piece for write in writes for piece in _sectors(write)]
            random.shuffle(pieces)
            odds = random.random()
            for at, data in pieces:
                if random.random() < odds:
                    _change(content, at, data)
                elif noise and random.random() < 0.3:
                    _change(content, at, random.randbytes(len(data)))
            if length is not None:
                _change(content, length, b"", is_truncate=True)

    def _stretches(self, random: Random) -> Iterator[tuple[list[Operation], int | None]]:
        """The writes between truncations, which happen in order: as many of these stretches as were reached."""
        cuts = [place for place, each in enumerate(self.pending) if each.kind == "truncate"]
        reached = random.randrange(len(cuts) + 1)
        begin = 0
        for cut in cuts[:reached]:
            yield self.pending[begin:cut], self.pending[cut].at
            begin = cut + 1
        end = cuts[reached] if reached < len(cuts) else len(self.pending)
        yield self.pending[begin:end], None


def _change(content: bytearray, at: int, data: bytes, *, is_truncate: bool = False) -> None:
    if is_truncate:
        del content[at:]
        content.extend(bytes(at - len(content)))
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _sectors(write: Operation) -> Sequence[tuple[int, bytes]]:
    """A write as the pieces that arrive or do not: cut where sectors of the disk begin."""
    pieces: list[tuple[int, bytes]] = []
    begin, end = write.at, write.at + len(write.data)
    while begin < end:
        until = min(end, begin - begin % SECTOR_BYTES + SECTOR_BYTES)
        pieces.append((begin, write.data[begin - write.at : until - write.at]))
        begin = until
    return pieces
