"""A simulated process: its clock, its handle on the database, and the coroutines that run in it."""

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
from .engine import SimulatedEngine, Turn
from .machine import Machine, ProcessDisk, ProcessFile
from .recorder import ProcessDied, StoreCall, record_stores

if TYPE_CHECKING:
    from .simulation import Simulation

T = TypeVar("T")
ENCRYPTION_KEY = bytes(32)
"""The key of every simulated process."""
MAX_TRIES = 8
"""How often ``insist`` tries a call."""


class ProcessClock:
    """The clock of one process, which may be wrong."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.wrong_by_us = 0

    def now_us(self) -> int:
        return self._machine.now_us + self.wrong_by_us


class Task:
    """One coroutine of a process, and when it goes on."""

    def __init__(self, name: str, process: Process, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.name, self.process, self.coroutine = name, process, coroutine
        self.wake_us = 0


Main = Callable[["Process"], Coroutine[Any, Any, None]]


class Process:
    """A process of the simulation, as the code that runs in it sees it.

    Attributes:
        name: its name; it keeps it when it is started again.
        random: the only randomness to use.
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
        self._holdfast: _Simulated | None = None

    # What the code of a process uses

    @property
    def holdfast(self) -> AsyncHoldfast:
        """The Holdfast of this process. After ``reopen`` it is another one: ask for it each time."""
        if self._holdfast is None:
            raise Closed
        return self._holdfast

    def tenant(self, name: str) -> AsyncTenantHandle:
        """The handle of one tenant; its calls are recorded and checked."""
        return self.holdfast.tenant(name)

    def now(self) -> datetime:
        """The moment it is, by the clock of this process."""
        return from_us(self.clock.now_us())

    async def sleep(self, seconds: float) -> None:
        """Let others go on for so long."""
        self.check_alive()
        await Turn(self._machine.now_us + round(seconds * 1_000_000))

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run another coroutine in this process."""
        self.tasks.append(Task(f"{self.name}/{name}", self, coroutine))

    async def reopen(self) -> None:
        """Close the database and open it again, as a handle that met a failed flush demands."""
        self.check_alive()
        self.say("opens the database again")
        assert self._engine is not None
        self._simulation.look_away()
        try:
            await self._engine.close()
        except apsw.Error:
            # Moving the log into the file at the end is a courtesy, and SQLite keeps it to itself when that fails. A file layer
            # written in Python cannot.
            self.say("has closed it with an error")
        self.check_alive()
        self._open()

    async def insist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call again, the same one, as long as the database cannot be reached or its answer is lost.

        Raises:
            Unavailable: it could not be reached so often that it is given up.
        """
        for _ in range(MAX_TRIES):
            try:
                return await call()
            except (Closed, OutcomeUnknown, Unavailable) as error:
                last = error
            await self.sleep(self.random.uniform(0.05, 2))
            if isinstance(last, Closed | OutcomeUnknown) or "flush failed" in str(last):
                await self._reopen_if_it_is_closed_or_poisoned()
        raise Unavailable(f"tried {MAX_TRIES} times: {last}")

    async def perform(
        self, tenant: str, run_id: str, call_id: str, *, epoch: int, act: Callable[[int], T], takes_s: float = 0
    ) -> T:
        """Do in the world outside what a tool call says: ``act`` is told how many times it was done before.

        Raises:
            ToolFailed: a fault has struck, and nothing was done.
        """
        self.check_alive()
        return await self._simulation.perform(self, (tenant, run_id, call_id), epoch, act, takes_s)

    def say(self, text: str) -> None:
        """Put a line into the trace."""
        self._simulation.say(f"{self.name} {text}")

    def check_alive(self) -> None:
        """Go no further if the process is dead.

        Raises:
            ProcessDied: it is.
        """
        if self.disk is None or self.disk.is_dead or self._machine.cut is not None:
            raise ProcessDied(self.name)

    # What the simulation does with a process

    def start(self) -> None:
        """Begin its life, the first or another one."""
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

    def bury(self) -> None:
        """End its life: all its memory is gone, and its locks are free."""
        disk, self.disk = self.disk, None
        for task in self.tasks:
            _abandon(task.coroutine)
        self.tasks.clear()
        if disk is not None:
            disk.is_dead = disk.is_buried = True
            for file in self._files:
                file.abandon()
            disk.__exit__(None, None, None)
        self._files.clear()
        self._engine = self._holdfast = None

    @property
    def is_open(self) -> bool:
        """Whether it has the database open."""
        return self._engine is not None

    def _open(self) -> None:
        assert self.disk is not None
        options = self._simulation.options
        self._engine = self._holdfast = None
        file = ProcessFile(self._machine, self.disk, log_pages=options.log_pages, durability=options.durability)
        self._files.append(file)
        self._engine = self._simulation.engine_type(file)
        self._holdfast = _Simulated(self._engine, self._setting, self)

    async def _reopen_if_it_is_closed_or_poisoned(self) -> None:
        engine = self._engine
        if engine is None or engine._closed or engine._writer._failure is not None:
            if engine is None:
                self._open()
            else:
                await self.reopen()

    # What recorded stores tell

    def begin(self, tenant: str, method: str, arguments: Mapping[str, Any]) -> StoreCall:
        """A call is about to be made."""
        return self._simulation.call_begins(self, tenant, method, arguments)

    def end(self, call: StoreCall) -> None:
        """A call has come to its end."""
        self._simulation.call_ends(self, call)


class Options:
    """How the database of a simulation is opened."""

    def __init__(self, *, log_pages: int, durability: Durability) -> None:
        self.log_pages, self.durability = log_pages, durability


class _Simulated(AsyncHoldfast):
    """A Holdfast on the engine of a simulated process."""

    def __init__(self, engine: SimulatedEngine, setting: Setting, process: Process) -> None:
        self._setting, self._process = setting, process
        self._simulated = engine
        self._arguments = (engine, setting)
        self._handles: dict[str, AsyncTenantHandle] = {}
        record_stores(self, "", process)

    def tenant(self, name: str) -> AsyncTenantHandle:
        """The handle of one tenant."""
        if name not in self._handles:
            handle = AsyncTenantHandle(self._simulated, Scope(name, self._setting))
            record_stores(handle, name, self._process)
            self._handles[name] = handle
        return self._handles[name]


def _abandon(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except (ProcessDied, RuntimeError):
        return  # it wanted to go on; the dead do not
