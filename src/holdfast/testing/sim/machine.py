"""The simulated machine: its time, its disk, and the state of the disk after a power cut.

The files are real files in a temporary folder, so SQLite's locks and shared memory work as in production. Each process
accesses them through its own VFS, where faults occur. Once a process is dead, none of its operations reaches the disk.
``CrashImage`` tracks the data that is certainly on the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import apsw

from ...clock import FixedClock
from ...drivers.apsw import ApswConnection
from ...engines.protocol import Row
from ...engines.sqlite.errors import Busy
from ...engines.sqlite.file import Durability, SqliteConnection
from ...handles import Holdfast
from ..disk import Attempt, CrashImage, Disk, DiskOperation, Error, Variant
from ..sqlite_state import SmallWalFile, quick_folder
from .faults import POWER_CUTS, FaultHit, FaultName, Faults

DATABASE = "sim.db"
START_US = 1_700_000_000_000_000
_VARIANTS: dict[FaultName, tuple[Variant, ...]] = {
    "PowerCut": ("dropped", "kept", "torn", "scattered", "noise", "entries"),
    "LostWrites": ("dropped",),
    "TornWrites": ("torn",),
    "ReorderedWrites": ("scattered",),
}


class Machine:
    """A simulated machine: its clock, its disk and its power."""

    def __init__(self, faults: Faults, random: Random, say: Callable[[str], None]) -> None:
        self.faults, self.say = faults, say
        self.now_us = START_US
        self.full_until_us = 0
        self.cut: Variant | None = None
        self.has_unflushed_commit = False
        """Whether a process died while writing and the log was not flushed since. Its transaction may be complete in the log.
        Live processes do not see it and overwrite it; but if all processes die, the next one to open the file treats it as
        committed. It was never acknowledged, so a power cut may still remove it."""
        self._random = random
        self._folders = tempfile.TemporaryDirectory(dir=quick_folder(), prefix="holdfast-sim-")
        self._number = 0
        self._put({DATABASE: template()})

    @property
    def path(self) -> str:
        """Path of the database."""
        return os.path.join(self._folders.name, str(self._number), DATABASE)

    def spend(self, ms: float) -> None:
        """Advance the time."""
        self.now_us += round(ms * 1_000)

    def record(self, operation: DiskOperation) -> None:
        """Record a change that reached the disk's cache."""
        self.wreck.apply(operation)
        if operation.kind == "sync" and operation.file.endswith("-wal"):
            self.has_unflushed_commit = False

    def cut_power(self, name: FaultName) -> None:
        """Cut the power; the simulation handles it at the end of the event."""
        if self.cut is None:
            self.cut = self._random.choice(_VARIANTS[name])

    def come_back(self) -> Variant:
        """Restore the power, with the surviving files in a new folder."""
        variant, self.cut = self.cut, None
        assert variant is not None
        self._put(self.wreck.files(variant, self._random))
        return variant

    @contextmanager
    def copy(self) -> Iterator[str]:
        """Yield the path of a copy of the surviving files. Reading the copy creates no files on the simulated disk."""
        folder = _fill(Path(self._folders.name) / "copy", self._kept)
        yield os.path.join(folder, DATABASE)
        shutil.rmtree(folder)

    def close(self) -> None:
        """Delete the temporary folder."""
        self._folders.cleanup()

    def _put(self, files: dict[str, bytes]) -> None:
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)
        self._number += 1
        _fill(Path(self.path).parent, files)
        self._kept, self.wreck, self.has_unflushed_commit = files, CrashImage(files), False


class ProcessDisk(Disk):
    """The disk as one process sees it. Once the process is dead, none of its operations reaches the disk."""

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__()
        self._machine, self._process = machine, name
        self.is_dead = self.is_torn_down = False
        self._tears = False

    def attempt(self, kind: Attempt, file: str) -> Error | None:
        """Apply the fault rules and return the error with which this attempt must fail, if any."""
        machine = self._machine
        if self.is_dead or machine.cut is not None:
            if self.is_torn_down and kind in ("read", "open"):
                return None  # during teardown it may read, but not write
            raise _gone(kind, file)
        if kind == "write" and machine.now_us < machine.full_until_us:
            return "ENOSPC"
        struck = machine.faults.at(kind, file)
        return None if struck is None else self._suffer(struck, kind, file)

    def _suffer(self, struck: FaultHit, kind: Attempt, file: str) -> Error | None:
        machine = self._machine
        machine.say(
            f"{self._process} meets {struck.name} at {kind} {file}" + (f", {struck.ms} ms" if struck.ms else "")
        )
        if struck.name == "StorageLatency":
            machine.spend(struck.ms)
            return None
        if struck.name == "DiskFull":
            machine.full_until_us = machine.now_us + struck.ms * 1_000
            return "ENOSPC"
        if struck.name in POWER_CUTS:
            machine.cut_power(struck.name)
            raise _gone(kind, file)
        if struck.name == "CrashBeforeWrite":
            self.is_dead = True
            raise _gone(kind, file)
        if struck.name == "CrashAfterWrite":
            self._tears = True
            return None
        if struck.name == "TornWrite":
            self._tears = True
        return "EIO"

    def lock(self) -> None:
        """Acquire the write lock.

        Raises:
            Busy: another program held the lock for longer than the busy timeout.
        """
        struck = None if self.is_dead or self._machine.cut else self._machine.faults.at("lock", DATABASE)
        if struck is not None:
            self._machine.say(f"{self._process} meets {struck.name}, {struck.ms} ms")
            self._machine.spend(struck.ms)
            raise Busy

    def record(self, operation: DiskOperation) -> None:
        """Record a change that reached the disk's cache, and let the process die if a fault requires it."""
        self._machine.record(operation)
        if self._tears:
            self.is_dead = True
            raise _gone(operation.kind, operation.file)


class ProcessConnection(ApswConnection):
    """A connection on which ``BEGIN IMMEDIATE`` may fail with ``Busy``."""

    def __init__(self, raw: apsw.Connection, disk: ProcessDisk) -> None:
        super().__init__(raw)
        self._disk = disk

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        if sql == "BEGIN IMMEDIATE":
            self._disk.lock()
        return super().execute(sql, args)


class ProcessFile(SmallWalFile):
    """The database file of one process. It tracks its connections, to drop them when the process dies."""

    def __init__(self, machine: Machine, disk: ProcessDisk, *, log_pages: int, durability: Durability) -> None:
        super().__init__(machine.path, pages=log_pages, durability=durability, vfs=disk.name)
        self._disk = disk
        self.opened: list[Any] = []

    def _open(self, *, reader: bool) -> SqliteConnection:
        raw = super()._open(reader=reader).raw
        self.opened.append(raw)
        return ProcessConnection(raw, self._disk)

    def abandon(self) -> None:
        """Drop all connections as a process death does: nothing is written, and the locks are released."""
        for raw in self.opened:
            drop(raw)
        self.opened.clear()
        self.release_claim()


def _fill(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def drop(raw: apsw.Connection) -> None:
    """Close a connection without any of the work that SQLite does at the last close."""
    try:
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raw.close(True)
    except apsw.ConnectionClosedError:
        return  # the process has already closed it


def _gone(kind: str, file: str) -> apsw.Error:
    failure = apsw.IOError(f"the process is gone at {kind} of {file}")
    failure.result = apsw.SQLITE_IOERR  # type: ignore[attr-defined]
    failure.extendedresult = apsw.SQLITE_IOERR  # type: ignore[attr-defined]
    return failure


@cache
def template() -> bytes:
    """Return the bytes of a database with the schema and no data."""
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        path = Path(folder) / DATABASE
        with Holdfast(str(path), clock=FixedClock()):
            pass
        return path.read_bytes()
