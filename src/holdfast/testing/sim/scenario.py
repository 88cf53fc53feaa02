"""Base class of scenarios. Subclass it to define the processes of a simulation and when they have finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ...engines.sqlite.file import Durability
from .faults import Fault, mixed
from .observer import Observer
from .process import Main, Process


class Scenario:
    """Processes that share a database.

    The promises of the stores are checked automatically. Override ``check`` to check promises of your own code.
    """

    unsafe_s: float = 120
    """Simulated seconds during which faults occur."""
    calm_s: float = 4 * 3_600
    """Simulated seconds within which everything must finish after the faults have stopped."""
    durability: Durability = "full"
    """Durability with which the database is opened."""

    def faults(self, random: Random) -> Sequence[Fault]:
        """Return the fault rules, if none are passed to the simulation."""
        return mixed(0.1, random)

    async def prepare(self, process: Process) -> None:
        """Create data before the processes start. No faults occur while this runs."""

    def processes(self, random: Random) -> Mapping[str, Main]:
        """Return the processes by name: coroutine functions that receive the ``Process``, and are called again after each death.

        A process whose function returns has ended and is not restarted.
        """
        raise NotImplementedError

    def finished(self, observer: Observer) -> bool:
        """Return whether everything has finished. Called after every commit and every end of a coroutine, so keep it fast."""
        raise NotImplementedError

    def unfinished(self, observer: Observer) -> str:
        """Describe the unfinished work, for the report."""
        return "it is not finished"

    def check(self, observer: Observer) -> None:
        """Check the committed state. Called after every commit.

        Raises:
            Violation: a promise of the scenario is broken.
        """
