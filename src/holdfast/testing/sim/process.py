"""A simulated process: its clock, its database handle and its coroutines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from ...clock import from_us
from ...core.crypto import KeyRing
from ...core.scope import Scope, Setting
from ...engines.sqlite.file import Durability
from ...errors import Closed, OutcomeUnknown, Unavailable
from ...handles import AsyncHoldfast
from ...ids import SeededIds
from ...limits import Limits
from ...stores.wiring import SESSION_DEPENDENTS
from ...tenant_handles import AsyncTenantHandle
from .engine import SimulatedEngine, Suspension
from .machine import Machine, ProcessDisk, ProcessFile
from .recorder import ProcessDied, RecordedCall, record_stores

if TYPE_CHECKING:
    from .simulation import Simulation

T = TypeVar("T")
ENCRYPTION_KEY = bytes(32)
"""Encryption key of every simulated process."""
MAX_TRIES = 8
"""Attempts that ``insist`` makes at a call."""


class ProcessClock:
    """The clock of one process, which may have an offset."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.offset_us = 0

    def now_us(self) -> int:
        return self._machine.now_us + self.offset_us


class Task:
    """A coroutine of a process and the time at which it resumes."""

    def __init__(self, name: str, process: Process, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.name, self.process, self.coroutine = name, process, coroutine
        self.wake_us = 0


Main = Callable[["Process"], Coroutine[Any, Any, None]]


class Process:
    """A process of the simulation, as the code that runs in it sees it.

    Attributes:
        name: its name, which it keeps after a restart.
        random: the only source of randomness that its code may use.
    """

    def __init__(self, simulation: Simulation, name: str, main: Main, *, random: Random) -> None:
        self._simulation, self._machine = simulation, simulation.machine
        self.name, self.main, self.random = name, main, random
        self.clock = ProcessClock(self._machine)
        self.incarnation = 0
        self.paused_until_us = 0
        self.start_us: int | None = 0
        self.tasks: list[Task] = []
        self.disk: ProcessDisk | None = None
        self._files: list[ProcessFile] = []
        self._engine: SimulatedEngine | None = None
        self._holdfast: _SimulatedHoldfast | None = None

    # What the code of a process uses

    @property
    def holdfast(self) -> AsyncHoldfast:
        """The handle of this process. Read it for each call: ``reopen`` replaces it."""
        if self._holdfast is None:
            raise Closed
        return self._holdfast

    def tenant(self, name: str) -> AsyncTenantHandle:
        """Return the handle of one tenant; its calls are recorded and checked."""
        return self.holdfast.tenant(name)

    def now(self) -> datetime:
        """Return the current time of this process's clock."""
        return from_us(self.clock.now_us())

    async def sleep(self, seconds: float) -> None:
        """Suspend this coroutine for a simulated time."""
        self.check_alive()
        await Suspension(self._machine.now_us + round(seconds * 1_000_000))

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run another coroutine in this process."""
        self.tasks.append(Task(f"{self.name}/{name}", self, coroutine))

    async def reopen(self) -> None:
        """Close and reopen the database, which is required after a failed flush."""
        self.check_alive()
        self.say("opens the database again")
        assert self._engine is not None
        self._simulation.close_observer()
        try:
            await self._engine.close()
        except apsw.Error:
            # SQLite ignores errors of the WAL checkpoint at the last close. Errors raised by a VFS in Python are reported.
            self.say("has closed it with an error")
        self.check_alive()
        self._open()

    async def insist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat the same call while the database is unavailable or the outcome is unknown.

        Raises:
            Unavailable: all ``MAX_TRIES`` attempts failed.
        """
        for _ in range(MAX_TRIES):
            try:
                return await call()
            except (Closed, OutcomeUnknown, Unavailable) as error:
                last = error
            await self.sleep(self.random.uniform(0.05, 2))
            if isinstance(last, Closed | OutcomeUnknown) or "flush failed" in str(last):
                await self._reopen_if_closed_or_failed()
        raise Unavailable(f"tried {MAX_TRIES} times: {last}")

    async def perform(
        self, tenant: str, run_id: str, call_id: str, *, epoch: int, act: Callable[[int], T], takes_s: float = 0
    ) -> T:
        """Perform the external effect of a tool call; ``act`` receives the number of earlier executions.

        Raises:
            ToolFailed: a fault occurred, and the tool had no effect.
        """
        self.check_alive()
        return await self._simulation.perform(self, (tenant, run_id, call_id), epoch, act, takes_s)

    def say(self, text: str) -> None:
        """Write a line to the trace."""
        self._simulation.say(f"{self.name} {text}")

    def check_alive(self) -> None:
        """Stop the coroutine if the process is dead.

        Raises:
            ProcessDied: the process is dead.
        """
        if self.disk is None or self.disk.is_dead or self._machine.cut is not None:
            raise ProcessDied(self.name)

    # What the simulation does with a process

    def start(self) -> None:
        """Start or restart the process."""
        self.incarnation += 1
        self.start_us = None
        self.disk = ProcessDisk(self._machine, self.name)
        self.disk.__enter__()
        seed = self.random.getrandbits(64)
        self._setting = Setting(
            clock=self.clock,
            ids=SeededIds(seed),
            limits=Limits(),
            session_dependents=SESSION_DEPENDENTS,
            keys=KeyRing(ENCRYPTION_KEY, nonces=Random(seed).randbytes),
        )
        self._open()
        self.spawn("main", self.main(self))

    def tear_down(self) -> None:
        """Discard the process's memory and release its locks."""
        disk, self.disk = self.disk, None
        for task in self.tasks:
            _abandon(task.coroutine)
        self.tasks.clear()
        if disk is not None:
            disk.is_dead = disk.is_torn_down = True
            for file in self._files:
                file.abandon()
            disk.__exit__(None, None, None)
        self._files.clear()
        self._engine = self._holdfast = None

    @property
    def is_open(self) -> bool:
        """Whether the process has the database open."""
        return self._engine is not None

    def _open(self) -> None:
        assert self.disk is not None
        options = self._simulation.options
        self._engine = self._holdfast = None
        file = ProcessFile(self._machine, self.disk, log_pages=options.log_pages, durability=options.durability)
        self._files.append(file)
        self._engine = self._simulation.engine_type(file)
        self._holdfast = _SimulatedHoldfast(self._engine, self._setting, self)

    async def _reopen_if_closed_or_failed(self) -> None:
        engine = self._engine
        if engine is None or engine._closed or engine._writer._failure is not None:
            if engine is None:
                self._open()
            else:
                await self.reopen()

    # Called by recorded stores

    def begin(self, tenant: str, method: str, arguments: Mapping[str, Any]) -> RecordedCall:
        """Report that a call is about to be made."""
        return self._simulation.call_begins(self, tenant, method, arguments)

    def end(self, call: RecordedCall) -> None:
        """Report that a call has ended."""
        self._simulation.call_ends(self, call)


class Options:
    """Options with which the database of a simulation is opened."""

    def __init__(self, *, log_pages: int, durability: Durability) -> None:
        self.log_pages, self.durability = log_pages, durability


class _SimulatedHoldfast(AsyncHoldfast):
    """A Holdfast on the engine of a simulated process."""

    def __init__(self, engine: SimulatedEngine, setting: Setting, process: Process) -> None:
        self._setting, self._process = setting, process
        self._simulated = engine
        self._arguments = (engine, setting)
        self._handles: dict[str, AsyncTenantHandle] = {}
        record_stores(self, "", process)

    def tenant(self, name: str) -> AsyncTenantHandle:
        """Return the handle of one tenant."""
        if name not in self._handles:
            handle = AsyncTenantHandle(self._simulated, Scope(name, self._setting))
            record_stores(handle, name, self._process)
            self._handles[name] = handle
        return self._handles[name]


def _abandon(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except (ProcessDied, RuntimeError):
        return  # the coroutine awaited during close; a dead process does not continue
