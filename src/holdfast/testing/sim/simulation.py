"""The simulation: one seed decides who goes on, what time it is, and what goes wrong.

Processes are coroutines that are suspended before every statement they read with, before every commit, and wherever they sleep.
At each *event* the seed picks one of those that can go on and lets it run to its next suspension. Then it is looked at what is
committed now, and every promise is checked. For a while faults strike: the phase of safety, in which nothing wrong
may happen. Then they stop and all clocks are set right: the phase of liveness, in which everything must come to its end. At last
the power is cut once more, and all that was seen must still be there.

Nothing here depends on the machine, the folder, the hour or the hash seed: the same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from ...errors import HoldfastError
from ..sqlite_state import Damaged, read_state
from .engine import SimulatedEngine
from .faults import POWER_CUTS, Fault, Faults
from .machine import START_US, Machine
from .observer import Look
from .process import Main, Options, Process, Task
from .promises import Performed, Promises
from .recorder import ProcessDied, StoreCall
from .scenario import Scenario
from .violation import Violation

T = TypeVar("T")
MAX_EVENTS = 60_000
"""Events after which a simulation that has not come to its end is stuck."""


class ToolFailed(Exception):
    """A tool has failed, as the simulation wanted it, and has done nothing."""


class Report(Struct, frozen=True):
    """What a simulation came to. ``violation`` is the promise that was broken, or ``None``."""

    seed: int
    violation: str | None
    events: int
    seconds: float
    """Simulated ones."""
    faults: dict[str, int]
    """How often each fault has struck."""
    trace: str


class Simulation:
    """One simulation of a scenario.

    Args:
        seed: decides everything.
        scenario: what is simulated.
        faults: the rules by which something goes wrong; without them, those that the scenario draws from the seed.
        engine: the engine that each process gets; for planting defects.
    """

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        *,
        faults: Sequence[Fault] | None = None,
        engine: type[SimulatedEngine] = SimulatedEngine,
    ) -> None:
        self.seed, self.scenario, self.engine_type = seed, scenario, engine
        rules = scenario.faults(Random(f"{seed} rules")) if faults is None else faults
        self.promises = Promises()
        self.trace: list[str] = []
        self._random = Random(f"{seed} turns")
        self._faults = Faults(rules, Random(f"{seed} faults"))
        self.machine = self._new_machine()
        log_pages = Random(f"{seed} options").choice((6, 12, 30, 100))
        self.options = Options(log_pages=log_pages, durability=scenario.durability)
        self.processes: list[Process] = []
        self._look: Look | None = None
        self._events = self._calls = 0
        self._inside: Process | None = None
        self._finished = False
        self._certain = self.promises.rows
        """What was committed when it was last known that no ghost is among it."""

    def run(self) -> Report:
        """Run it to its end."""
        violation: str | None = None
        try:
            self._prepare()
            self._be_unsafe()
            self._be_calm()
            self._cut_for_the_last_time()
        except Violation as error:
            violation = str(error)
            self.say(f"VIOLATION {violation}")
        finally:
            self._end_all()
            self.machine.close()
        seconds = (self.machine.now_us - START_US) / 1_000_000
        trace = "".join(f"{line}\n" for line in self.trace)
        return Report(self.seed, violation, self._events, seconds, dict(sorted(self._faults.happened.items())), trace)

    def say(self, text: str) -> None:
        """Put a line into the trace."""
        now = self.machine.now_us - START_US
        self.trace.append(f"{self._events:05} {now // 1_000_000:6}.{now % 1_000_000:06} {text}")

    @property
    def look(self) -> Look:
        """What is committed."""
        if self._look is None:
            self._look = Look(self.machine.path)
        return self._look

    def look_away(self) -> None:
        """Let go of the database, so that somebody else can be the last to close it."""
        if self._look is not None:
            self._look.close()
            self._look = None

    # Phases

    def _new_machine(self) -> Machine:
        return Machine(self._faults, Random(f"{self.seed} machine"), self.say)

    def _prepare(self) -> None:
        self.machine.faults = Faults((), Random(0))
        self._add("setup", self.scenario.prepare)
        while any(process.tasks or process.start_us is not None for process in self.processes):
            self._event()
        self._bury(self.processes.pop())
        for name, main in self.scenario.processes(Random(f"{self.seed} processes")).items():
            self._add(name, main)

    def _be_unsafe(self) -> None:
        self.say("faults begin")
        self.machine.faults = self._faults
        until = self.machine.now_us + round(self.scenario.unsafe_s * 1_000_000)
        while self.machine.now_us < until and not self._is_finished():
            self._event()

    def _be_calm(self) -> None:
        self.say("faults end")
        self._faults.stop()
        self.machine.full_until_us = 0
        for process in self.processes:
            process.clock.wrong_by_us = 0
        until = self.machine.now_us + round(self.scenario.calm_s * 1_000_000)
        while not self._is_finished():
            if self.machine.now_us > until or self._events > MAX_EVENTS:
                raise Violation(f"not all came to its end: {self.scenario.unfinished(self.look)}")
            self._event()

    def _cut_for_the_last_time(self) -> None:
        self.scenario.check(self.look)
        self.machine.cut_power("LostWrites")
        self._lose_power(during=None)
        self.scenario.check(self.look)
        self.say("all came to its end")

    def _is_finished(self) -> bool:
        if not any(process.is_open for process in self.processes):
            return not any(process.start_us is not None for process in self.processes)
        return self._finished

    # Events

    def _add(self, name: str, main: Main) -> None:
        process = Process(self, name, main, random=Random(f"{self.seed} process {name}"))
        process.start_us = self.machine.now_us
        self.processes.append(process)

    def _event(self) -> None:
        """Let one of those that can go on do so, and check every promise."""
        self._events += 1
        chosen = self._choose()
        self.machine.spend(self._random.uniform(0.05, 4))
        if isinstance(chosen, Process):
            self._start(chosen)
        elif not self._strike(chosen):
            self._resume(chosen)
        self._see_to_the_dead()
        self._check()

    def _choose(self) -> Process | Task:
        while True:
            waiting: list[tuple[int, Process | Task]] = []
            for process in self.processes:
                if process.start_us is not None:
                    waiting.append((process.start_us, process))
                waiting += [(max(task.wake_us, process.paused_until_us), task) for task in process.tasks]
            if not waiting:
                raise Violation(f"nobody is there to go on: {self.scenario.unfinished(self.look)}")
            ready = [each for at_us, each in waiting if at_us <= self.machine.now_us]
            if ready:
                return self._random.choice(ready)
            self.machine.now_us = min(at_us for at_us, _ in waiting)

    def _start(self, process: Process) -> None:
        self.say(f"{process.name} starts")
        self._inside = process
        struck = self.machine.faults.at("start", process.name)
        if struck is not None:
            process.clock.wrong_by_us = struck.ms * 1_000 * self._random.choice((-1, 1))
            self.say(f"{process.name} has a clock that is wrong by {process.clock.wrong_by_us // 1_000} ms")
        try:
            process.start()
        except HoldfastError as error:
            self._die(process, f"cannot open the database: {type(error).__name__}")

    def _strike(self, task: Task) -> bool:
        """Whether a fault keeps this one from going on."""
        struck = self.machine.faults.at("turn", task.name)
        if struck is None:
            return False
        process = task.process
        self.say(f"{task.name} meets {struck.name}" + (f", {struck.ms} ms" if struck.ms else ""))
        if struck.name in POWER_CUTS:
            self.machine.cut_power(struck.name)
        elif struck.name == "ProcessPause":
            process.paused_until_us = self.machine.now_us + struck.ms * 1_000
        elif struck.name == "ClockJump":
            process.clock.wrong_by_us += struck.ms * 1_000 * self._random.choice((-1, 1))
        else:
            self._die(process, "dies")
        return True

    def _resume(self, task: Task) -> None:
        self._inside = task.process
        try:
            turn = task.coroutine.send(None)
            task.wake_us = turn.until_us
        except StopIteration:
            task.process.tasks.remove(task)
            self._finished = self.scenario.finished(self.look)
        except ProcessDied:
            return  # it is seen to at the end of the event
        except HoldfastError as error:
            self._die(task.process, f"ends by {type(error).__name__}")
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{task.name} raised {type(error).__name__}: {error}") from error

    def _die(self, process: Process, why: str) -> None:
        self.say(f"{process.name} {why}")
        if process.disk is not None:
            process.disk.is_dead = True

    def _see_to_the_dead(self) -> None:
        during, self._inside = self._inside, None
        if self.machine.cut is not None:
            self._lose_power(during=during)
            return
        for process in self.processes:
            if process.disk is not None and process.disk.is_dead:
                self.machine.has_ghost = self.machine.has_ghost or process is during
                self._bury(process)

    def _bury(self, process: Process) -> None:
        self.promises.lose(process.name, process.incarnation)
        process.bury()
        if process.name != "setup":
            process.start_us = self.machine.now_us + round(self._random.uniform(0.1, 15) * 1_000_000)
        if self._look is not None and not any(each.is_open for each in self.processes):
            # With the last connection goes the shared memory, and whoever comes next has to read the log anew.
            self.look_away()

    def _lose_power(self, *, during: Process | None) -> None:
        """All is dark, and then as the disk has kept it."""
        if self.machine.has_ghost:
            self.promises.rows = self._certain
        unknown = during is not None or self.machine.has_ghost or self._look is None
        before = None if unknown else self.look.everything()
        self.look_away()
        for process in self.processes:
            self._bury(process)
        variant = self.machine.come_back()
        self.say(f"the power is cut; what was not flushed is {variant}")
        with self.machine.copy() as path:
            found = self._read(path)
            if before is not None and found != before:
                tables = [name for name in before if before[name] != found.get(name)]
                raise Violation(f"a power cut while nobody wrote has changed {', '.join(tables)}")
            look = Look(path)
            try:
                self._see(look)
                self.promises.settle()
            finally:
                look.close()

    def _read(self, path: str) -> dict[str, list[tuple[Any, ...]]]:
        try:
            return read_state(Path(path))
        except Damaged as error:
            raise Violation(f"the database is damaged after a power cut: {error}") from error

    def _check(self) -> None:
        if not any(process.is_open for process in self.processes):
            return  # with the next one that opens the database it is seen what is there
        if self.look.changed():
            self._see(self.look)
        self.promises.settle()

    def _see(self, look: Look) -> None:
        self.promises.see(look.rows(self.promises.rows))
        if not self.machine.has_ghost:
            self._certain = self.promises.rows
        self.scenario.check(look)
        self._finished = self.scenario.finished(look)

    def _end_all(self) -> None:
        for process in self.processes:
            process.bury()
        self.look_away()

    # What processes tell

    def call_begins(self, process: Process, tenant: str, method: str, arguments: Mapping[str, Any]) -> StoreCall:
        """A process is about to call a store."""
        process.check_alive()
        self._calls += 1
        call = StoreCall(self._calls, process.name, process.incarnation, tenant, method, dict(arguments))
        if not call.reads:
            self.say(f"{process.name} calls {call}")
            self._crash(process, "call", method)
        self.promises.begin(call)
        return call

    def call_ends(self, process: Process, call: StoreCall) -> None:
        """A call was answered or has failed; the process hears of it, unless it is dead."""
        process.check_alive()
        call.now_us = process.clock.now_us()
        if not call.reads:
            self._crash(process, "answer", call.method)
        if call.error or not call.reads:
            self.say(f"{process.name} hears of {call}: {call.error or 'done'}")
        self.promises.end(call)

    def _crash(self, process: Process, kind: Any, method: str) -> None:
        struck = self.machine.faults.at(kind, method)
        if struck is not None:
            self._die(process, f"meets {struck.name} at {kind} {method}")
            raise ProcessDied(process.name)

    async def perform(
        self, process: Process, what: Performed, epoch: int, act: Callable[[int], T], takes_s: float
    ) -> T:
        """A process does something in the world outside."""
        struck = self.machine.faults.at("tool", what[2])
        if struck is not None:
            self.say(f"{process.name} meets {struck.name} in call {what[2]}")
        if struck is not None and struck.name == "ToolFail":
            raise ToolFailed(what[2])
        self._check()  # what it has just recorded is committed by now
        before = self.promises.perform(what, epoch)
        result = act(before)
        self.promises.performed[what].append(result)
        self.say(f"{process.name} makes call {what[2]}, epoch {epoch}")
        await process.sleep(takes_s + (struck.ms / 1_000 if struck is not None else 0))
        return result
