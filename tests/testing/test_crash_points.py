"""Faults at every disk operation on the write path of a run, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest
from msgspec.structs import replace

from holdfast import NewToolCall
from holdfast.testing.sim import AgentScenario, Fault, FaultName, LoopScenario, Simulation
from holdfast.testing.sim.plans import PlannedStep
from holdfast.testing.sim.process import Main
from holdfast.testing.sim.simulation import Report

SEED = 10
MOST = 1_000
"""More operations than one run makes."""


class ShortLoop(LoopScenario):
    """One run of two iterations, with two tool calls in the first, and the processes that start and drive it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, runs=1, processes=1, workers=1)
        calls = tuple(
            NewToolCall(id=f"1-{place}", tool_name="mail", tool_input={"to": place}, safety=safety)
            for place, safety in ((0, "at_most_once"), (2, "idempotent"))
        )
        steps = (PlannedStep(0.1, calls, None), PlannedStep(0.1, (), None))
        self.plans = {id: replace(plan, steps=steps, cancelled=False) for id, plan in self.plans.items()}

    def processes(self, random: Random) -> Mapping[str, Main]:
        return {name: main for name, main in super().processes(random).items() if name != "person"}


class ShortWork(ShortLoop):
    """The same with a plain worker."""

    worker = AgentScenario.worker


def at_every_operation(
    name: FaultName, scenario: Callable[[int], AgentScenario], *, step: int = 1, on: str = ""
) -> list[Report]:
    """Yield the reports of simulations with a fault at the first operation, at the second, and so on."""
    reports: list[Report] = []
    for after in range(0, MOST, step):
        rules = [Fault(name, 1, on=on, after=after, at_most=1)]
        report = Simulation(SEED, scenario(SEED), faults=rules).run()
        assert report.violation is None, f"{name} after {after} operations: {report.violation}\n{report.trace}"
        if not report.faults:
            return reports
        reports.append(report)
    raise AssertionError(f"there is no end to it after {MOST} operations")


@pytest.mark.parametrize("scenario", [ShortLoop, ShortWork])
@pytest.mark.parametrize("name", ["CrashBeforeWrite", "CrashAfterWrite"])
def test_a_crash_at_any_store_call_loses_and_repeats_nothing(name: FaultName, scenario: type[AgentScenario]) -> None:
    kind = "call " if name == "CrashBeforeWrite" else "answer "
    assert len(at_every_operation(name, scenario, on=kind)) >= 8


@pytest.mark.parametrize(
    ("name", "scenario", "step", "least"),
    [
        ("CrashBeforeWrite", ShortLoop, 2, 75),
        ("CrashAfterWrite", ShortLoop, 4, 35),
        ("TornWrite", ShortWork, 8, 15),
        ("PowerCut", ShortLoop, 8, 20),
        ("LostWrites", ShortWork, 9, 15),
        ("StorageSyncFail", ShortLoop, 1, 12),
        ("StorageWriteFail", ShortWork, 8, 15),
    ],
)
def test_a_failure_at_a_disk_operation_loses_and_repeats_nothing(
    name: FaultName, scenario: type[AgentScenario], step: int, least: int
) -> None:
    assert len(at_every_operation(name, scenario, step=step)) > least


def usual_agents(seed: int) -> AgentScenario:
    return AgentScenario(seed, runs=1, processes=1, workers=1)


def usual_loops(seed: int) -> AgentScenario:
    return LoopScenario(seed, runs=1, processes=1, workers=1)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [ShortLoop, ShortWork, usual_agents, usual_loops])
@pytest.mark.parametrize(
    "name",
    [
        "CrashBeforeWrite",
        "CrashAfterWrite",
        "TornWrite",
        "PowerCut",
        "LostWrites",
        "TornWrites",
        "ReorderedWrites",
        "StorageWriteFail",
        "StorageReadFail",
        "StorageSyncFail",
        "DiskFull",
        "ProcessDeath",
        "ProcessPause",
    ],
)
def test_a_failure_at_any_operation_loses_and_repeats_nothing(
    name: FaultName, scenario: Callable[[int], AgentScenario]
) -> None:
    assert len(at_every_operation(name, scenario)) > 5
