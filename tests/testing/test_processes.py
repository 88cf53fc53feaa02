"""Simulated processes as user code sees them, and the reports of errors in that code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

import pytest

from holdfast.errors import NotFound
from holdfast.testing.sim import Fault, Observer, Process, Report, Scenario, Simulation, ToolFailed, Violation

Main = Callable[[Process], Coroutine[Any, Any, None]]


class Little(Scenario):
    """A scenario of functions."""

    calm_s = 600

    def __init__(self, *mains: Main, tenants: int | None = None) -> None:
        self.mains, self.tenants = mains, tenants

    def processes(self, random: Random) -> Mapping[str, Main]:
        return {f"process-{number}": main for number, main in enumerate(self.mains, 1)}

    def finished(self, observer: Observer) -> bool:
        return self.tenants is not None and observer.select("SELECT count(*) FROM tenants") == [(self.tenants,)]


async def make_tenant(process: Process, name: str = "done") -> None:
    await process.insist(lambda: process.holdfast.tenants.create(name))


def report(scenario: Scenario, *faults: Fault, seed: int = 1) -> Report:
    return Simulation(seed, scenario, faults=faults).run()


def run(scenario: Scenario, *faults: Fault, seed: int = 1) -> str | None:
    return report(scenario, *faults, seed=seed).violation


def test_processes_take_turns_and_sleep_in_simulated_time() -> None:
    order: list[tuple[str, int]] = []

    async def main(process: Process) -> None:
        for _ in range(3):
            await process.sleep(60)
            order.append((process.name, round(process.now().timestamp())))
        if process.name == "process-1":
            await make_tenant(process)

    assert run(Little(main, main, tenants=1)) is None
    times = [at for _, at in order]
    assert times == sorted(times)
    assert {name for name, _ in order} == {"process-1", "process-2"}
    assert times[-1] - times[0] in (119, 120, 121)


def test_a_process_that_dies_loses_its_memory_and_starts_again() -> None:
    lives: list[int] = []

    async def main(process: Process) -> None:
        memory: list[int] = []
        lives.append(process.incarnation)
        for number in range(5):
            memory.append(number)
            await process.sleep(1)
        assert memory == [*range(5)]
        await make_tenant(process)

    deaths = Fault("ProcessDeath", 1, after=3, at_most=1), Fault("ProcessDeath", 1, after=7, at_most=1)
    assert run(Little(main, tenants=1), *deaths) is None
    assert lives == [1, 2, 3]


def test_operations_after_a_simulated_crash_never_happen() -> None:
    happened: list[str] = []

    async def main(process: Process) -> None:
        try:
            await make_tenant(process, f"life-{process.incarnation}")
            happened.append(f"after {process.incarnation}")
        finally:
            happened.append(f"finally {process.incarnation}")
            await make_tenant(process, "from a finally")  # in the first life it is too late for that
            happened.append(f"more {process.incarnation}")

    assert run(Little(main, tenants=3), Fault("CrashAfterWrite", 1, on="answer tenants.create", at_most=1)) is None
    assert happened == ["finally 1", "after 2", "finally 2", "more 2"]


def test_a_paused_process_does_not_notice_the_pause() -> None:
    slept: list[float] = []

    async def main(process: Process) -> None:
        before = process.now()
        await process.sleep(1)
        slept.append((process.now() - before).total_seconds())
        await make_tenant(process)

    assert run(Little(main, tenants=1), Fault("ProcessPause", 1, after=1, at_most=1, ms=(50_000, 50_000))) is None
    assert 50 < slept[0] < 52


def test_a_clock_jump_affects_one_process() -> None:
    seen: dict[str, float] = {}

    async def main(process: Process) -> None:
        await process.sleep(10)
        seen[process.name] = process.now().timestamp()
        await make_tenant(process, process.name)

    assert (
        run(Little(main, main, tenants=2), Fault("ClockJump", 1, on="process-1", at_most=1, ms=(3_600_000,) * 2))
        is None
    )
    assert abs(abs(seen["process-1"] - seen["process-2"]) - 3_600) < 2


def test_coroutines_of_one_process_share_commits() -> None:
    """Calls that wait together are committed together, so there are fewer flushes than calls."""
    flushes: list[str] = []

    async def one(process: Process, number: int) -> None:
        for turn in range(10):
            await process.tenant("acme").sessions.create(key=f"{number}-{turn}")

    async def main(process: Process) -> None:
        for number in range(4):
            process.spawn(f"{number}", one(process, number))
        while len(await process.tenant("acme").sessions.list()) < 40:
            await process.sleep(0.01)
        await make_tenant(process)

    simulation = Simulation(1, Little(main, tenants=2), faults=[])
    record = simulation.machine.record
    simulation.machine.record = lambda operation: (flushes.append(operation.kind), record(operation))[1]  # type: ignore[method-assign]
    assert simulation.run().violation is None
    assert flushes.count("sync") < 40


def test_insist_reopens_a_poisoned_handle() -> None:
    async def main(process: Process) -> None:
        await make_tenant(process, "first")
        await make_tenant(process, "second")

    report = Simulation(1, Little(main, tenants=2), faults=[Fault("StorageSyncFail", 1, at_most=1)]).run()
    assert report.violation is None
    assert "opens the database again" in report.trace


def test_an_unexpected_exception_is_a_violation_with_its_name() -> None:
    async def main(process: Process) -> None:
        raise ZeroDivisionError("one of those")

    assert run(Little(main)) == "process-1/main raised ZeroDivisionError: one of those"


def test_an_unhandled_holdfast_error_ends_the_process_and_it_is_restarted() -> None:
    async def main(process: Process) -> None:
        if process.incarnation < 3:
            await process.tenant("acme").sessions.get("00000000-0000-7000-8000-000000000000")
        await make_tenant(process)

    report = Simulation(1, Little(main, tenants=1), faults=[]).run()
    assert report.violation is None
    assert report.trace.count(f"process-1 ends by {NotFound.__name__}") == 2


def test_a_run_that_never_ends_is_a_violation() -> None:
    async def idle(process: Process) -> None:
        while True:
            await process.sleep(30)

    async def gone(process: Process) -> None:
        return

    assert report(Little(idle)).kind == "unfinished"
    assert report(Little(gone)).kind == "deadlock"


def test_a_scenario_can_refuse_the_committed_state() -> None:
    class NoTwo(Little):
        def check(self, observer: Observer) -> None:
            if observer.select("SELECT count(*) FROM tenants") == [(2,)]:
                raise Violation("two are too many")

    async def main(process: Process) -> None:
        for number in range(3):
            await make_tenant(process, f"{number}")

    assert run(NoTwo(main, tenants=3)) == "two are too many"


def test_a_tool_call_without_a_recorded_attempt_is_a_violation() -> None:
    async def main(process: Process) -> None:
        await process.perform("acme", "no run", "no call", epoch=1, act=lambda before: before)

    assert report(Little(main)).kind == "tool_not_recorded"


def test_a_failed_tool_has_no_effect() -> None:
    async def main(process: Process) -> None:
        with pytest.raises(ToolFailed):
            await process.perform("acme", "no run", "no call", epoch=1, act=lambda before: before)
        await make_tenant(process)

    assert run(Little(main, tenants=1), Fault("ToolFail", 1)) is None


def test_the_trace_shows_process_operation_and_time() -> None:
    async def main(process: Process) -> None:
        await process.sleep(2)
        process.say("is about to do it")
        await make_tenant(process)

    lines = Simulation(1, Little(main, tenants=1), faults=[]).run().trace.splitlines()
    mine = [line.split(maxsplit=2) for line in lines if "process-1" in line]
    assert [text for _, _, text in mine] == [
        "process-1 starts",
        "process-1 is about to do it",
        "process-1 calls tenants.create",
        "process-1 hears of tenants.create: done",
    ]
    assert [float(at) for _, at, _ in mine] == sorted(float(at) for _, at, _ in mine)
    assert float(mine[1][1]) > 2
    assert lines[-1].endswith("all runs ended")
