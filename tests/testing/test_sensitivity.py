"""The simulation detects defects: each of these, planted in a store, the engine or a worker, is found within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import pytest

from holdfast.core.queries import Query
from holdfast.engines.sqlite.engine import _WaitingJob
from holdfast.stores.conversation import log_reading
from holdfast.stores.execution.runs import leases, ledger, runs, states, step_log, tool_calls
from holdfast.sync_runner import step
from holdfast.testing.sim import AgentScenario, Fault, LoopScenario, Simulation
from holdfast.testing.sim.agent_driver import AgentWorker
from holdfast.testing.sim.engine import SimulatedEngine, Suspension

MAX_SEEDS = 80
"""Seeds within which a defect is found."""
RUNS, QUEUE, STEPS, CALLS = states.queries, states.queue, step_log.queries, ledger.queries
LONG_PAUSES = [Fault("ProcessPause", 0.05, ms=(40_000, 120_000))]
DEATHS = [Fault("ProcessDeath", 0.01), Fault("CrashAfterWrite", 0.003), Fault("CrashBeforeWrite", 0.003)]
CUTS = [Fault("PowerCut", 0.001), Fault("LostWrites", 0.003)]
FAILURES = [Fault("StorageWriteFail", 0.005), Fault("StorageSyncFail", 0.01)]

Plant = Callable[[], AbstractContextManager[Any]]


def query(queries: Any, name: str, old: str, new: str) -> Plant:
    """Replace a query."""

    def plant() -> AbstractContextManager[Any]:
        actual = queries.by_name[name]
        changed = {dialect: item.replace(old, new) for dialect, item in actual.texts.items()}
        assert changed != actual.texts, f"{name} does not say {old!r}"
        return mock.patch.multiple(actual, **vars(Query(name, changed)))

    return plant


def patched(target: Any, name: str, new: Any) -> Plant:
    """Replace an attribute of a module or a class."""
    return lambda: mock.patch.object(target, name, new)


def all_of(*plants: Plant) -> Plant:
    """Combine several defects."""

    def plant() -> AbstractContextManager[Any]:
        stack = ExitStack()
        for item in plants:
            stack.enter_context(item())
        return stack

    return plant


async def step_that_is_not_written(
    self: Any, run_id: str, *, epoch: int, iteration: int, state: Any, **kwargs: Any
) -> Any:
    """Return as if the step had been committed."""
    arguments = {name: value for name, value in kwargs.items() if name not in ("stop_reason", "pause_until")}
    defaults = {"messages": (), "tool_calls": (), "usage": None, "last_tool_result": None, "snapshot": None}
    new = step_log.new_step(
        self._scope, run_id, epoch=epoch, iteration=iteration, state=state, ends=(), **{**defaults, **arguments}
    )
    await Suspension()
    return new.to_committed("00000000-0000-7000-8000-000000000000", None, False)


async def intend_that_is_not_written(self: Any, run_id: str, *, epoch: int, calls: Sequence[Any]) -> Any:
    """Return as if the calls had been recorded."""
    intent = ledger.Intent(
        self._scope.stored_tenant, run_id, epoch, ledger.stored_calls(calls, self._scope.limits), 0, 256
    )
    await Suspension()
    return intent.to_calls(1)


async def call_without_recording(self: AgentWorker, loaded: Any, planned: Any) -> Any:
    """Calls tools first and writes later."""
    return [await self.call_tool(loaded.run, call) for call in planned.calls]


def taken_by_nobody(run: Any, *, is_visible: bool, now_us: int) -> Any:
    """A claim that never takes a run from a dead holder."""
    verdict, at = REAL_JUDGE(run, is_visible=is_visible, now_us=now_us)
    return ("later", now_us + 1_000_000) if verdict == "take" and run.status == "running" else (verdict, at)


def awake_at_any_time(run: Any, *, is_visible: bool, now_us: int) -> Any:
    """A claim that takes paused runs."""
    return ("take", 0) if run.status == "paused" else REAL_JUDGE(run, is_visible=is_visible, now_us=now_us)


REAL_JUDGE = leases.judge


def begun_whatever_it_is(existing: Any, new: Any, *, epoch: int, now_us: int) -> bool:
    """A ledger that lets any call be made again."""
    return bool(existing.status in ledger.OPEN_STATUSES)


class AnswersFirst(SimulatedEngine):
    """Answers, and commits when it is called the next time."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.later: list[_WaitingJob] = []

    async def _queue(self, job: _WaitingJob) -> Any:
        await Suspension()
        self._writer.run(self.later)
        self.later.clear()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = step(job.start(self._connection))
        finally:
            self._connection.execute("ROLLBACK")
        self.later.append(job)
        return result


class DoesNotWait(AgentScenario):
    """A database that does not wait for the disk."""

    durability = "normal"


class Impatient(AgentScenario):
    """All is to come to its end soon, so that it is soon seen that it does not."""

    calm_s = 1_500


class Defect:
    """Something wrong, and the faults under which it shows."""

    def __init__(
        self,
        plant: Plant = ExitStack,
        *,
        faults: Sequence[Fault] | None = None,
        scenario: type[AgentScenario] = AgentScenario,
        engine: type[SimulatedEngine] = SimulatedEngine,
    ) -> None:
        self.plant, self.faults, self.scenario, self.engine = plant, faults, scenario, engine


NO_EPOCH = all_of(
    query(STEPS, "advance_run", "epoch = :epoch AND iteration", "iteration"),
    query(CALLS, "hold_run", "AND epoch = :epoch", ""),
    patched(runs, "check_holder", lambda run, epoch: None),
    patched(tool_calls, "check_holder", lambda run, epoch: None),
)
AT_MOST_ONCE_AGAIN = all_of(
    patched(ledger, "_AFTER_A_CRASH", {"idempotent": "run", "at_most_once": "run", "ask": "run"}),
    patched(tool_calls, "must_begin", begun_whatever_it_is),
)

DEFECTS = {
    # The six that every such simulation must find
    "a checkpoint that is skipped": Defect(patched(runs.AsyncRuns, "step", step_that_is_not_written)),
    "a checkpoint that is skipped, under the loop": Defect(
        patched(runs.AsyncRuns, "step", step_that_is_not_written), scenario=LoopScenario
    ),
    "a ledger that is skipped": Defect(patched(tool_calls.AsyncToolCalls, "intend", intend_that_is_not_written)),
    "a ledger that is skipped by a worker": Defect(patched(AgentWorker, "call_tools", call_without_recording)),
    "fencing that is dropped": Defect(NO_EPOCH, faults=LONG_PAUSES),
    "fencing that is dropped, under the loop": Defect(NO_EPOCH, faults=LONG_PAUSES, scenario=LoopScenario),
    "a blind write": Defect(
        all_of(
            query(STEPS, "advance_run", "AND epoch = :epoch AND iteration = :iteration - 1", ""),
            query(STEPS, "insert_step", "INSERT INTO", "INSERT OR REPLACE INTO"),
        ),
        faults=LONG_PAUSES,
    ),
    "a scan without order": Defect(query(log_reading.queries, "list", "ORDER BY seq", "ORDER BY id")),
    "an answer before the commit": Defect(engine=AnswersFirst),
    "an answer before the flush": Defect(faults=CUTS, scenario=DoesNotWait),
    # And others
    "a step that forgets its calls": Defect(query(CALLS, "settle_call", "AND id = :id", "AND FALSE")),
    "usage that is not added up": Defect(query(STEPS, "advance_run", "input_tokens + :input_tokens", ":input_tokens")),
    "an epoch that does not rise": Defect(patched(states, "_FENCING", frozenset()), faults=LONG_PAUSES),
    "a call made twice that must not be": Defect(AT_MOST_ONCE_AGAIN, faults=DEATHS),
    "a call made twice that must not be, by the loop": Defect(AT_MOST_ONCE_AGAIN, faults=DEATHS, scenario=LoopScenario),
    "a lease that no worker can take over": Defect(patched(leases, "judge", taken_by_nobody), faults=DEATHS, scenario=Impatient),
    "a pause that never ends": Defect(query(QUEUE, "peek", "kind = 'paused'", "FALSE"), scenario=Impatient),
    "a pause that ends too early": Defect(
        all_of(
            patched(leases, "judge", awake_at_any_time),
            query(QUEUE, "peek", "due_at <= :now_at", "TRUE"),
        ),
        faults=[],
    ),
    "attempts without end": Defect(query(RUNS, "move", "attempts = :attempts", "attempts = :attempts + 4"), faults=DEATHS),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_the_simulation_detects(name: str, record_property: Callable[[str, object], None]) -> None:
    defect = DEFECTS[name]
    with defect.plant():
        for seed in range(MAX_SEEDS):
            scenario = defect.scenario(seed)
            report = Simulation(seed, scenario, faults=defect.faults, engine=defect.engine).run()
            if report.violation:
                record_property("found", f"seed {seed}, event {report.events}: {report.violation}")
                return
    pytest.fail(f"{MAX_SEEDS} seeds, and no check noticed {name}")


@pytest.mark.parametrize("faults", [LONG_PAUSES, DEATHS, CUTS, FAILURES], ids=["pauses", "deaths", "cuts", "failures"])
@pytest.mark.parametrize("scenario", [AgentScenario, LoopScenario])
def test_without_a_defect_nothing_is_reported(scenario: type[AgentScenario], faults: Sequence[Fault]) -> None:
    for seed in range(2):
        assert Simulation(seed, scenario(seed), faults=faults).run().violation is None
