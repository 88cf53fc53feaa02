"""Simulation: your agents, the real stores and the real SQLite engine on a simulated machine with injected faults.

::

    from holdfast.testing.sim import AgentScenario, Simulation

    report = Simulation(7, AgentScenario(7)).run()
    assert report.violation is None, report.trace

This works because store calls are coroutines and the core of the loop performs no input or output: a scheduler that
runs them step by step controls all time, order and chance. The simulation is one more executor on the SQLite engine.

One seed decides the schedule, the time and the faults, so a failure can be reproduced from its seed.
``docs/guide/simulation.md`` shows how to simulate code of your own.
"""

from __future__ import annotations

from .agent_driver import AgentScenario
from .exploration import explore, simulate
from .faults import Fault, FaultName, mixed
from .loop_driver import LoopScenario
from .observer import Observer
from .process import Process
from .scenario import Scenario
from .simulation import Report, Simulation, ToolFailed
from .violation import Violation

__all__ = [
    "AgentScenario",
    "Fault",
    "FaultName",
    "LoopScenario",
    "Observer",
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
