"""The machine that a simulation runs on: its time, its disk, and what a power cut leaves of it.

The files are real files in a folder of their own, so SQLite has its locks and its shared memory as in production. Each process
reaches them through a file layer of its own, where faults happen and where it can be dead: from then on nothing it does
reaches the disk. ``Wreck`` knows all along what the disk holds for certain.
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
from ..disk import Attempt, Disk, Error, Operation, Variant, Wreck
from ..sqlite_state import SmallLog, quick_folder
from .faults import POWER_CUTS, FaultName, Faults, Struck

DATABASE = "sim.db"
START_US = 1_700_000_000_000_000
_VARIANTS: dict[FaultName, tuple[Variant, ...]] = {
    "PowerCut": ("dropped", "kept", "torn", "scattered", "noise", "entries"),
    "LostWrites": ("dropped",),
    "TornWrites": ("torn",),
    "ReorderedWrites": ("scattered",),
}


class Machine:
    """One machine: when it is, what is on its disk, and whether it has power."""

    def __init__(self, faults: Faults, random: Random, say: Callable[[str], None]) -> None:
        self.faults, self.say = faults, say
        self.now_us = START_US
        self.full_until_us = 0
        self.cut: Variant | None = None
        self.has_ghost = False
        """Whether somebody died while writing, and nobody has flushed the log since. What the dead one wrote may be whole in the
        log. Others do not see it, and write over it; but if all die, whoever comes next finds it there and takes it for
        committed. Nobody was told that it is; so a power cut may still take it away."""
        self._random = random
        self._folders = tempfile.TemporaryDirectory(dir=quick_folder(), prefix="holdfast-sim-")
        self._number = 0
        self._put({DATABASE: template()})

    @property
    def path(self) -> str:
        """Where the database is."""
        return os.path.join(self._folders.name, str(self._number), DATABASE)

    def spend(self, ms: float) -> None:
        """Let time pass."""
        self.now_us += round(ms * 1_000)

    def record(self, operation: Operation) -> None:
        """A change reached the disk's cache."""
        self.wreck.apply(operation)
        if operation.kind == "sync" and operation.file.endswith("-wal"):
            self.has_ghost = False

    def cut_power(self, name: FaultName) -> None:
        """The power goes; the simulation sees to the rest as soon as it can."""
        if self.cut is None:
            self.cut = self._random.choice(_VARIANTS[name])

    def come_back(self) -> Variant:
        """Put what the disk has kept into a new folder, and have power again."""
        variant, self.cut = self.cut, None
        assert variant is not None
        self._put(self.wreck.files(variant, self._random))
        return variant

    @contextmanager
    def copy(self) -> Iterator[str]:
        """Where a copy of what the disk has kept is: looking at that makes no file that the disk does not know of."""
        folder = _fill(Path(self._folders.name) / "copy", self._kept)
        yield os.path.join(folder, DATABASE)
        shutil.rmtree(folder)

    def close(self) -> None:
        """Let go of the folder."""
        self._folders.cleanup()

    def _put(self, files: dict[str, bytes]) -> None:
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)
        self._number += 1
        _fill(Path(self.path).parent, files)
        self._kept, self.wreck, self.has_ghost = files, Wreck(files), False


class ProcessDisk(Disk):
    """The disk as one process reaches it. Once the process is dead, nothing it does reaches the disk any more."""

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__()
        self._machine, self._process = machine, name
        self.is_dead = self.is_buried = False
        self._tears = False

    def attempt(self, kind: Attempt, file: str) -> Error | None:
        """Ask the faults; the error this attempt must fail with, if any."""
        machine = self._machine
        if self.is_dead or machine.cut is not None:
            if self.is_buried and kind in ("read", "open"):
                return None  # while it is taken apart it may look, but not touch
            raise _gone(kind, file)
        if kind == "write" and machine.now_us < machine.full_until_us:
            return "ENOSPC"
        struck = machine.faults.at(kind, file)
        return None if struck is None else self._suffer(struck, kind, file)

    def _suffer(self, struck: Struck, kind: Attempt, file: str) -> Error | None:
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
        """The process wants to write.

        Raises:
            Busy: somebody else was writing for longer than it waits.
        """
        struck = None if self.is_dead or self._machine.cut else self._machine.faults.at("lock", DATABASE)
        if struck is not None:
            self._machine.say(f"{self._process} meets {struck.name}, {struck.ms} ms")
            self._machine.spend(struck.ms)
            raise Busy

    def record(self, operation: Operation) -> None:
        """A change reached the disk's cache; perhaps the last one of this process."""
        self._machine.record(operation)
        if self._tears:
            self.is_dead = True
            raise _gone(operation.kind, operation.file)


class ProcessConnection(ApswConnection):
    """A connection that may find others writing for longer than it waits."""

    def __init__(self, raw: apsw.Connection, disk: ProcessDisk) -> None:
        super().__init__(raw)
        self._disk = disk

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        if sql == "BEGIN IMMEDIATE":
            self._disk.lock()
        return super().execute(sql, args)


class ProcessFile(SmallLog):
    """The database as one process opens it. It knows its connections, to take them away when the process dies."""

    def __init__(self, machine: Machine, disk: ProcessDisk, *, log_pages: int, durability: Durability) -> None:
        super().__init__(machine.path, pages=log_pages, durability=durability, vfs=disk.name)
        self._disk = disk
        self.opened: list[Any] = []

    def _open(self, *, reader: bool) -> SqliteConnection:
        raw = super()._open(reader=reader).raw
        self.opened.append(raw)
        return ProcessConnection(raw, self._disk)

    def abandon(self) -> None:
        """Drop all connections as a death does: nothing is written, and the locks are free."""
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
        return  # its process has closed it


def _gone(kind: str, file: str) -> apsw.Error:
    failure = apsw.IOError(f"the process is gone at {kind} of {file}")
    failure.result = apsw.SQLITE_IOERR  # type: ignore[attr-defined]
    failure.extendedresult = apsw.SQLITE_IOERR  # type: ignore[attr-defined]
    return failure


@cache
def template() -> bytes:
    """A database with its schema and nothing in it."""
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        path = Path(folder) / DATABASE
        with Holdfast(str(path), clock=FixedClock()):
            pass
        return path.read_bytes()
