"""Run simulations over many seeds to find one that breaks a promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

from .agent_driver import AgentScenario
from .loop_driver import LoopScenario
from .scenario import Scenario
from .simulation import Report, Simulation


def usual_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed: plain workers on the stores, or the durable loop."""
    return Random(f"{seed} scenario").choice((AgentScenario, LoopScenario))(seed)


def simulate(seed: int, scenario: Callable[[int], Scenario] = usual_scenario) -> Report:
    """Simulate one seed."""
    return Simulation(seed, scenario(seed)).run()


def explore(
    first: int, *, scenario: Callable[[int], Scenario] = usual_scenario, seeds: int | None = None
) -> Iterator[Report]:
    """Simulate the seeds from ``first`` on: ``seeds`` of them, or without end."""
    for seed in itertools.count(first) if seeds is None else range(first, first + seeds):
        yield simulate(seed, scenario)
