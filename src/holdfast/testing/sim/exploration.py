"""Seed after seed: what is simulated under which seed, and looking for one that breaks a promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

from .agent_driver import AgentsAtWork
from .loop_driver import LoopsAtWork
from .scenario import Scenario
from .simulation import Report, Simulation


def usual_scenario(seed: int) -> Scenario:
    """The scenario of a seed: plain workers over the stores, or the durable loop."""
    return Random(f"{seed} scenario").choice((AgentsAtWork, LoopsAtWork))(seed)


def simulate(seed: int, scenario: Callable[[int], Scenario] = usual_scenario) -> Report:
    """Simulate one seed."""
    return Simulation(seed, scenario(seed)).run()


def explore(
    first: int, *, scenario: Callable[[int], Scenario] = usual_scenario, seeds: int | None = None
) -> Iterator[Report]:
    """Simulate seed after seed from ``first`` on: so many, or without end."""
    for seed in itertools.count(first) if seeds is None else range(first, first + seeds):
        yield simulate(seed, scenario)
