"""The simulation: one seed decides the schedule, the time and the faults.

Processes are coroutines that suspend before every reading statement, before every commit, and where they sleep. At each
*event* the simulation picks a runnable coroutine and runs it to its next suspension; then it observes the committed state and
checks every promise. In the first phase faults occur, and no promise may be broken (safety). Then the faults stop, all clocks
are corrected, and everything must finish (liveness). At the end the power is cut once more, and all observed commits must
have survived.

The trace does not depend on the machine, the folder, the time or the hash seed: the same seed gives the same trace, byte for
byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from ...errors import HoldfastError
from ..sqlite_state import DatabaseDamaged, read_state
from .engine import SimulatedEngine
from .faults import POWER_CUTS, Fault, Faults
from .machine import START_US, Machine
from .observer import Observer
from .process import Main, Options, Process, Task
from .promises import PerformedCall, Promises
from .recorder import ProcessDied, RecordedCall
from .scenario import Scenario
from .violation import Violation

T = TypeVar("T")
MAX_EVENTS = 60_000
"""Events after which an unfinished simulation counts as stuck."""


class ToolFailed(Exception):
    """A tool failed because of an injected fault, without having had an effect."""


class Report(Struct, frozen=True):
    """The result of a simulation. ``violation`` describes the broken promise, or is ``None``; ``kind`` is its kind."""

    seed: int
    violation: str | None
    kind: str
    events: int
    seconds: float
    """Simulated seconds."""
    faults: dict[str, int]
    """Number of occurrences of each fault."""
    trace: str


class Simulation:
    """One simulation of a scenario.

    Args:
        seed: determines the whole simulation.
        scenario: the simulated processes.
        faults: the fault rules; by default those that the scenario derives from the seed.
        engine: the engine class of each process; tests replace it to plant defects.
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
        self._observer: Observer | None = None
        self._events = self._calls = 0
        self._inside: Process | None = None
        self._finished = False
        self._certain = self.promises.rows
        """The last observed state that certainly contained no unflushed commit."""

    def run(self) -> Report:
        """Run the simulation to its end and return its report."""
        violation: Violation | None = None
        try:
            self._prepare()
            self._run_with_faults()
            self._run_without_faults()
            self._cut_power_finally()
        except Violation as error:
            violation = error
            self.say(f"VIOLATION {violation}")
        finally:
            self._end_all()
            self.machine.close()
        seconds = (self.machine.now_us - START_US) / 1_000_000
        trace = "".join(f"{line}\n" for line in self.trace)
        faults = dict(sorted(self._faults.happened.items()))
        text, kind = (str(violation), violation.kind) if violation else (None, "")
        return Report(self.seed, text, kind, self._events, seconds, faults, trace)

    def say(self, text: str) -> None:
        """Write a line to the trace."""
        now = self.machine.now_us - START_US
        self.trace.append(f"{self._events:05} {now // 1_000_000:6}.{now % 1_000_000:06} {text}")

    @property
    def observer(self) -> Observer:
        """The observer of the committed state."""
        if self._observer is None:
            self._observer = Observer(self.machine.path)
        return self._observer

    def close_observer(self) -> None:
        """Close the observer, so that a simulated process can be the last to close the database."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    # Phases

    def _new_machine(self) -> Machine:
        return Machine(self._faults, Random(f"{self.seed} machine"), self.say)

    def _prepare(self) -> None:
        self.machine.faults = Faults((), Random(0))
        self._add("setup", self.scenario.prepare)
        while any(process.tasks or process.start_us is not None for process in self.processes):
            self._event()
        self._tear_down(self.processes.pop())
        for name, main in self.scenario.processes(Random(f"{self.seed} processes")).items():
            self._add(name, main)

    def _run_with_faults(self) -> None:
        self.say("faults begin")
        self.machine.faults = self._faults
        until = self.machine.now_us + round(self.scenario.unsafe_s * 1_000_000)
        while self.machine.now_us < until and not self._is_finished():
            self._event()

    def _run_without_faults(self) -> None:
        self.say("faults end")
        self._faults.stop()
        self.machine.full_until_us = 0
        for process in self.processes:
            process.clock.offset_us = 0
        until = self.machine.now_us + round(self.scenario.calm_s * 1_000_000)
        while not self._is_finished():
            if self.machine.now_us > until or self._events > MAX_EVENTS:
                raise Violation(f"some runs did not end: {self.scenario.unfinished(self.observer)}", kind="unfinished")
            self._event()

    def _cut_power_finally(self) -> None:
        self.scenario.check(self.observer)
        self.machine.cut_power("LostWrites")
        self._lose_power(during=None)
        self.scenario.check(self.observer)
        self.say("all runs ended")

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
        """Run one coroutine to its next suspension, or start a process, and check every promise."""
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
                raise Violation(f"no process can continue: {self.scenario.unfinished(self.observer)}", kind="deadlock")
            ready = [candidate for at_us, candidate in waiting if at_us <= self.machine.now_us]
            if ready:
                return self._random.choice(ready)
            self.machine.now_us = min(at_us for at_us, _ in waiting)

    def _start(self, process: Process) -> None:
        self.say(f"{process.name} starts")
        self._inside = process
        struck = self.machine.faults.at("start", process.name)
        if struck is not None:
            process.clock.offset_us = struck.ms * 1_000 * self._random.choice((-1, 1))
            self.say(f"{process.name} has a clock that is wrong by {process.clock.offset_us // 1_000} ms")
        try:
            process.start()
        except HoldfastError as error:
            self._die(process, f"cannot open the database: {type(error).__name__}")

    def _strike(self, task: Task) -> bool:
        """Apply a fault to a task, and return whether it prevents the task from continuing."""
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
            process.clock.offset_us += struck.ms * 1_000 * self._random.choice((-1, 1))
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
            self._finished = self.scenario.finished(self.observer)
        except ProcessDied:
            return  # handled at the end of the event
        except HoldfastError as error:
            self._die(task.process, f"ends by {type(error).__name__}")
        except Violation:
            raise
        except Exception as error:
            raise Violation(
                f"{task.name} raised {type(error).__name__}: {error}", kind="error", subject=task.name
            ) from error

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
                self.machine.has_unflushed_commit = self.machine.has_unflushed_commit or process is during
                self._tear_down(process)

    def _tear_down(self, process: Process) -> None:
        self.promises.lose(process.name, process.incarnation)
        process.tear_down()
        if process.name != "setup":
            process.start_us = self.machine.now_us + round(self._random.uniform(0.1, 15) * 1_000_000)
        if self._observer is not None and not any(other.is_open for other in self.processes):
            # Closing the last connection discards the shared memory, and the next process must recover the log.
            self.close_observer()

    def _lose_power(self, *, during: Process | None) -> None:
        """Kill all processes, restart the machine with the surviving files, and check them."""
        if self.machine.has_unflushed_commit:
            self.promises.rows = self._certain
        unknown = during is not None or self.machine.has_unflushed_commit or self._observer is None
        before = None if unknown else self.observer.everything()
        self.close_observer()
        for process in self.processes:
            self._tear_down(process)
        variant = self.machine.come_back()
        self.say(f"the power is cut; unflushed data is {variant}")
        with self.machine.copy() as path:
            after = self._read(path)
            if before is not None and after != before:
                tables = [name for name in before if before[name] != after.get(name)]
                raise Violation(
                    f"a power cut without a write in progress has changed {', '.join(tables)}",
                    kind="changed_by_power_cut",
                )
            observer = Observer(path)
            try:
                self._see(observer)
                self.promises.settle()
            finally:
                observer.close()

    def _read(self, path: str) -> dict[str, list[tuple[Any, ...]]]:
        try:
            return read_state(Path(path))
        except DatabaseDamaged as error:
            raise Violation(f"the database is damaged after a power cut: {error}", kind="damaged") from error

    def _check(self) -> None:
        if not any(process.is_open for process in self.processes):
            return  # the state is observed when the next process opens the database
        if self.observer.changed():
            self._see(self.observer)
        self.promises.settle()

    def _see(self, observer: Observer) -> None:
        self.promises.see(observer.rows(self.promises.rows))
        if not self.machine.has_unflushed_commit:
            self._certain = self.promises.rows
        self.scenario.check(observer)
        self._finished = self.scenario.finished(observer)

    def _end_all(self) -> None:
        for process in self.processes:
            process.tear_down()
        self.close_observer()

    # Called by processes

    def call_begins(self, process: Process, tenant: str, method: str, arguments: Mapping[str, Any]) -> RecordedCall:
        """Handle a process that is about to call a store."""
        process.check_alive()
        self._calls += 1
        call = RecordedCall(self._calls, process.name, process.incarnation, tenant, method, dict(arguments))
        if not call.reads:
            self.say(f"{process.name} calls {call}")
            self._crash(process, "call", method)
        self.promises.begin(call)
        return call

    def call_ends(self, process: Process, call: RecordedCall) -> None:
        """Handle a call that was answered or has failed; the process gets the outcome unless it is dead."""
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
        self, process: Process, what: PerformedCall, epoch: int, act: Callable[[int], T], takes_s: float
    ) -> T:
        """Perform the external effect of a tool call for a process."""
        struck = self.machine.faults.at("tool", what[2])
        if struck is not None:
            self.say(f"{process.name} meets {struck.name} in call {what[2]}")
        if struck is not None and struck.name == "ToolFail":
            raise ToolFailed(what[2])
        self._check()  # the recorded call is committed by now
        before = self.promises.perform(what, epoch)
        result = act(before)
        self.promises.performed[what].append(result)
        self.say(f"{process.name} makes call {what[2]}, epoch {epoch}")
        await process.sleep(takes_s + (struck.ms / 1_000 if struck is not None else 0))
        return result
