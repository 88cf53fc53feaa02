"""Leases in simulated time: no worker takes a run from a live holder, and any worker can take one from a dead holder."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.testing.sim import AgentScenario, Fault, LoopScenario, Simulation

SLOW_TOOLS = Fault("ToolLatency", 1, ms=(20_000, 90_000))
"""Tools that take longer than the lease lasts."""


class Undisturbed(AgentScenario):
    """Runs that are never cancelled."""

    def __init__(self, seed: int, *, processes: int = 2) -> None:
        super().__init__(seed, processes=processes)
        self.plans = {id: replace(plan, cancelled=False) for id, plan in self.plans.items()}


class UndisturbedLoops(Undisturbed):
    """The same with the loop."""

    worker = LoopScenario.worker


@pytest.mark.parametrize("scenario", [Undisturbed, UndisturbedLoops])
@pytest.mark.parametrize("seed", range(3))
def test_a_lease_is_never_taken_from_a_live_holder_with_slow_tools(seed: int, scenario: type[AgentScenario]) -> None:
    report = Simulation(seed, scenario(seed), faults=[SLOW_TOOLS]).run()
    assert report.violation is None
    assert report.faults["ToolLatency"] > 0
    for word in ("Fenced", "cannot renew", "status=unknown"):
        assert word not in report.trace


@pytest.mark.parametrize("seed", range(6))
def test_one_jumping_clock_takes_no_lease_from_a_live_holder(seed: int) -> None:
    jump = Fault("ClockJump", 0.1, on="worker", after=20, at_most=1, ms=(40_000, 900_000))
    report = Simulation(seed, Undisturbed(seed), faults=[SLOW_TOOLS, jump]).run()
    assert report.violation is None
    assert report.faults["ClockJump"] == 1
    assert "Fenced" not in report.trace


@pytest.mark.parametrize("seed", range(3))
def test_a_holder_paused_for_longer_than_its_lease_cannot_write(seed: int) -> None:
    """Another worker has continued the run with its own steps."""
    pauses = Fault("ProcessPause", 0.03, on="worker", ms=(60_000, 120_000))
    fenced = 0
    for offset in range(4):
        report = Simulation(10 * seed + offset, Undisturbed(seed, processes=3), faults=[pauses]).run()
        assert report.violation is None
        fenced += report.trace.count("Fenced")
    assert fenced > 0


def test_runs_of_dead_workers_are_taken_over_and_completed() -> None:
    deaths = Fault("ProcessDeath", 0.05, on="worker", at_most=12)
    taken = 0
    for seed in range(4):
        report = Simulation(seed, LoopScenario(seed, processes=3), faults=[deaths]).run()
        assert report.violation is None
        taken += report.trace.count("epoch=3")
    assert taken > 0
