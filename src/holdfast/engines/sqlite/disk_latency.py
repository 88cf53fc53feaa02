"""How long calls have waited for the disk lately: decides whether they run in the event loop or in a thread."""

from __future__ import annotations

QUICK_S = 0.001
"""Average wait below which calls run in the event loop: handing a call to a thread and back costs more."""
BUSY_WAIT_S = 0.1
"""What a call that found another writer counts as: the next dozen calls run in a thread, where they may wait."""


class Pace:
    """A moving average of how long calls waited."""

    __slots__ = ("_average_s",)

    def __init__(self) -> None:
        self._average_s = 0.0

    def observe(self, waited_s: float) -> None:
        """Count one more call."""
        self._average_s += (waited_s - self._average_s) * 0.2

    def quick(self) -> bool:
        """Whether calls hardly wait."""
        return self._average_s < QUICK_S
