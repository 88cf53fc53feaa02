"""Simulation: your agents, the real stores and the real SQLite engine, on a machine on which anything may go wrong.

::

    from holdfast.testing.sim import AgentsAtWork, Simulation

    report = Simulation(7, AgentsAtWork(7)).run()
    assert report.violation is None, report.trace

One seed decides who goes on, what time it is and what goes wrong, so a failure is found again by its seed.
``docs/guide/simulation.md`` shows how to simulate code of your own.
"""

from __future__ import annotations

from .agent_driver import AgentsAtWork
from .exploration import explore, simulate
from .faults import Fault, FaultName, mixed
from .loop_driver import LoopsAtWork
from .observer import Look
from .process import Process
from .scenario import Scenario
from .simulation import Report, Simulation, ToolFailed
from .violation import Violation

__all__ = [
    "AgentsAtWork",
    "Fault",
    "FaultName",
    "Look",
    "LoopsAtWork",
    "Process",
    "Report",
    "Scenario",
    "Simulation",
    "ToolFailed",
    "Violation",
    "explore",
    "mixed",
    "simulate",
]
