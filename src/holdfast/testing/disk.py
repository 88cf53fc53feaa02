"""Simulated disk for SQLite that can fail, or lose power, at any operation.

Its files are real files in a folder of your choice, so SQLite's locks, shared memory and readers work as in production. In
addition every change is recorded, a flush is recorded but not performed, and an operation fails if a rule matches it. From a
recording you can compute the files that a machine would find after losing power at that point: flushed data is intact;
unflushed data may be lost, torn, written out of order, or replaced by noise.

Put the folder in memory (``/dev/shm``) for speed; the result does not depend on the real disk.
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
"""Unit that a disk writes atomically: a write is torn only between sectors."""

Change = Literal["create", "write", "truncate", "sync", "delete", "failed_sync"]
Attempt = Literal["open", "read", "write", "truncate", "sync", "delete"]
Error = Literal["EIO", "ENOSPC", "short"]
Variant = Literal["dropped", "kept", "torn", "scattered", "noise", "entries"]

VARIANTS: tuple[Variant, ...] = ("dropped", "kept", "torn", "scattered", "noise", "entries")
"""The possible states of unflushed writes after a power cut:

``dropped``: all lost; ``kept``: all present; ``torn``: present up to some sector; ``scattered``: any subset of their
sectors is present; ``noise``: the same, and some lost sectors contain noise; ``entries``: all lost, and creations and
deletions of files without a flush of their folder are lost too.
"""

_BASE = ""  # SQLite's default VFS
_NEW_ENTRY = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_numbers = itertools.count(1)


class DiskOperation(Struct, frozen=True):
    """A change that reached the disk's cache."""

    kind: Change
    file: str
    at: int = 0
    """Offset of a write, or the new length of a truncated file."""
    data: bytes = b""
    folder: bool = False
    """Whether the folder was flushed too, which makes earlier creations and deletions of files durable."""


class DiskFault(Struct, frozen=True, kw_only=True):
    """A rule that makes attempts fail. Attempts are numbered from 1, in the order of ``Disk.attempts``."""

    error: Error
    first: int
    last: int | None
    """The last attempt that fails; ``None`` for every attempt from ``first`` on until ``Disk.repair``."""
    kinds: frozenset[Attempt] = frozenset({"open", "read", "write", "truncate", "sync", "delete"})
    files: str = ""
    """Suffix of the names of the affected files."""

    def hits(self, number: int, kind: Attempt, file: str) -> bool:
        """Return whether this attempt fails."""
        applies = kind in self.kinds and file.endswith(self.files)
        return applies and number >= self.first and (self.last is None or number <= self.last)


class Disk:
    """A SQLite VFS that records changes and fails on request. Pass ``name`` to ``SqliteFile(vfs=...)`` inside the context.

    Attributes:
        operations: every change so far, in order.
        attempts: the kind of every attempt so far, including reads, in order.
        watch: called with the kind and file of each attempt before it is made; may block.
        failed_after: the number of operations before the last failed attempt.
    """

    def __init__(self, *, watch: Callable[[Attempt, str], None] | None = None) -> None:
        self.name = f"holdfast-disk-{os.getpid()}-{next(_numbers)}"
        self.operations: list[DiskOperation] = []
        self.attempts: list[Attempt] = []
        self.watch = watch
        self.failed_after: int | None = None
        self._faults: list[DiskFault] = []
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
        """The number of changes so far."""
        return len(self.operations)

    def count(self, kind: Change) -> int:
        """Return the number of changes of one kind."""
        return sum(operation.kind == kind for operation in self.operations)

    def fail(self, fault: DiskFault) -> None:
        """Add a rule."""
        self._faults.append(fault)

    def repair(self) -> None:
        """Remove all rules, so that the disk works again."""
        self._faults.clear()

    def attempt(self, kind: Attempt, file: str) -> Error | None:
        """Count an attempt and return the error with which it must fail, if any."""
        if self.watch is not None:
            self.watch(kind, file)
        with self._lock:
            self.attempts.append(kind)
            number = len(self.attempts)
        error = next((fault.error for fault in self._faults if fault.hits(number, kind, file)), None)
        if error is not None:
            self.failed_after = self.position
        return error

    def record(self, operation: DiskOperation) -> None:
        """Record a change."""
        self.operations.append(operation)


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.name, _BASE)
        self._disk = disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            return apsw.VFSFile(_BASE, name, flags)  # temporary files, which a power cut loses anyway
        file = os.path.basename(path)
        error = self._disk.attempt("open", file)
        if error in ("EIO", "ENOSPC"):
            raise _failure(apsw.CantOpenError, apsw.SQLITE_CANTOPEN, error, "open", file)
        may_create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        is_new = may_create and not os.path.exists(path)
        handle = _File(self._disk, name, flags, file, flush_folder=may_create and bool(flags[0] & _NEW_ENTRY))
        if is_new:
            self._disk.record(DiskOperation("create", file))
        return handle

    def xDelete(self, filename: str, syncdir: bool) -> None:
        file = os.path.basename(filename)
        error = self._disk.attempt("delete", file)
        if error in ("EIO", "ENOSPC"):
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_DELETE, error, "delete", file)
        super().xDelete(filename, False)
        self._disk.record(DiskOperation("delete", file, folder=bool(syncdir)))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int], file: str, *, flush_folder: bool) -> None:
        super().__init__(_BASE, name, flags)
        self._disk, self._file = disk, file
        # As in SQLite's own VFS: a process that opens a possibly new journal or log flushes its folder with the first flush,
        # even if another process created the file.
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
            kept = kept[: len(kept) // 2]  # a disk fails in the middle of a write
        if kept:
            super().xWrite(kept, offset)
            self._disk.record(DiskOperation("write", self._file, offset, kept))
        if error == "ENOSPC":
            raise _failure(apsw.FullError, apsw.SQLITE_FULL, error, "write", self._file)
        if error == "EIO":
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_WRITE, error, "write", self._file)

    def xTruncate(self, newsize: int) -> None:
        error = self._disk.attempt("truncate", self._file)
        if error in ("EIO", "ENOSPC"):
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_TRUNCATE, error, "truncate", self._file)
        super().xTruncate(newsize)
        self._disk.record(DiskOperation("truncate", self._file, newsize))

    def xSync(self, flags: int) -> None:
        error = self._disk.attempt("sync", self._file)
        if error in ("EIO", "ENOSPC"):
            self._disk.record(DiskOperation("failed_sync", self._file))
            raise _failure(apsw.IOError, apsw.SQLITE_IOERR_FSYNC, error, "sync", self._file)
        self._disk.record(DiskOperation("sync", self._file, folder=self._flush_folder))
        self._flush_folder = False


def _failure(kind: type[apsw.Error], code: int, error: str | None, what: str, file: str) -> apsw.Error:
    failure = kind(f"{error} at {what} of {file}, as the test asked")
    failure.result = code & 0xFF  # type: ignore[attr-defined]
    failure.extendedresult = code  # type: ignore[attr-defined]
    return failure


class CrashImage:
    """The files on the disk after a power cut; follows a recording operation by operation."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._entries = {name: _Inode(content) for name, content in (files or {}).items()}
        self._flushed_entries = dict(self._entries)

    def apply(self, operation: DiskOperation) -> None:
        """Apply the next operation of the recording."""
        if operation.kind == "create":
            self._entries[operation.file] = _Inode(b"")
        elif operation.kind == "delete":
            self._entries.pop(operation.file, None)
        else:
            self._entries[operation.file].apply(operation)
        if operation.folder:
            self._flushed_entries = dict(self._entries)

    def variants(self) -> Sequence[Variant]:
        """Return the variants of a power cut that can differ at this point."""
        same_entries = self._entries == self._flushed_entries
        if any(inode.pending for inode in self._entries.values()):
            return VARIANTS[:-1] if same_entries else VARIANTS
        return ("dropped",) if same_entries else ("dropped", "entries", "scattered")

    def files(self, variant: Variant, random: Random) -> dict[str, bytes]:
        """Return the files that exist after the machine restarts."""
        entries = self._entries
        if variant == "entries":
            entries = self._flushed_entries
        elif variant in ("scattered", "noise"):
            entries = self._some_entries(random)
        return {name: inode.after_cut(variant, random) for name, inode in sorted(entries.items())}

    def _some_entries(self, random: Random) -> dict[str, _Inode]:
        """Choose for each file created or deleted without a folder flush whether the change has survived."""
        entries: dict[str, _Inode] = {}
        for name in sorted({*self._entries, *self._flushed_entries}):
            before, now = self._flushed_entries.get(name), self._entries.get(name)
            inode = now if before is now or random.random() < 0.5 else before
            if inode is not None:
                entries[name] = inode
        return entries


class _Inode:
    """A file's flushed content and its unflushed changes."""

    def __init__(self, content: bytes) -> None:
        self.flushed = content
        self.pending: list[DiskOperation] = []

    def apply(self, operation: DiskOperation) -> None:
        if operation.kind == "sync":
            if self.pending:
                self.flushed = bytes(self._kept())
            self.pending.clear()
        elif operation.kind == "failed_sync":
            # The kernel marks the cache as clean after a failed flush: a later flush never writes the lost data.
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
        for operation in self.pending:
            _change(content, operation.at, operation.data, is_truncate=operation.kind == "truncate")
        return content

    def _tear(self, content: bytearray, random: Random) -> None:
        last = random.randrange(len(self.pending))
        for operation in self.pending[:last]:
            _change(content, operation.at, operation.data, is_truncate=operation.kind == "truncate")
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

    def _stretches(self, random: Random) -> Iterator[tuple[list[DiskOperation], int | None]]:
        """Yield the writes between truncations; truncations happen in order, and only a prefix of them has happened."""
        cuts = [index for index, operation in enumerate(self.pending) if operation.kind == "truncate"]
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


def _sectors(write: DiskOperation) -> Sequence[tuple[int, bytes]]:
    """Split a write at the boundaries of sectors, each of which arrives as a whole or not at all."""
    pieces: list[tuple[int, bytes]] = []
    begin, end = write.at, write.at + len(write.data)
    while begin < end:
        until = min(end, begin - begin % SECTOR_BYTES + SECTOR_BYTES)
        pieces.append((begin, write.data[begin - write.at : until - write.at]))
        begin = until
    return pieces
