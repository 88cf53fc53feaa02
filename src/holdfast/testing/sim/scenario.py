"""What a simulation simulates. Make your own: say which processes there are, and when all has come to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ...engines.sqlite.file import Durability
from .faults import Fault, mixed
from .observer import Look
from .process import Main, Process


class Scenario:
    """Processes that share a database.

    The promises of the stores are checked without your doing. ``check`` is for what your own code promises.
    """

    unsafe_s: float = 120
    """Simulated seconds in which faults strike."""
    calm_s: float = 4 * 3_600
    """Simulated seconds in which everything must come to its end once nothing goes wrong any more."""
    durability: Durability = "full"
    """How the database is opened."""

    def faults(self, random: Random) -> Sequence[Fault]:
        """What goes wrong, if the simulation is not told."""
        return mixed(0.1, random)

    async def prepare(self, process: Process) -> None:
        """Make what must be there beforehand. Nothing goes wrong meanwhile."""

    def processes(self, random: Random) -> Mapping[str, Main]:
        """Each process by its name: a coroutine function that is given the ``Process``, again whenever it was killed.

        One that returns has ended and is not started again.
        """
        raise NotImplementedError

    def finished(self, look: Look) -> bool:
        """Whether all has come to its end. Asked whenever something was committed or a coroutine has ended: keep it quick."""
        raise NotImplementedError

    def unfinished(self, look: Look) -> str:
        """What has not come to its end, for people."""
        return "it is not finished"

    def check(self, look: Look) -> None:
        """Refuse what must not be committed. Called whenever something was.

        Raises:
            Violation: it must not be.
        """
