"""Moving average of disk waits, which decides whether calls run in the event loop or in a thread."""

from __future__ import annotations

QUICK_S = 0.001
"""Average wait below which calls run in the event loop, because a thread switch would cost more."""
BUSY_WAIT_S = 0.1
"""Wait recorded for a call that found another writer: the next dozen calls then run in a thread, where they may block."""


class DiskLatency:
    """Moving average of the time that calls waited for the disk."""

    __slots__ = ("_average_s",)

    def __init__(self) -> None:
        self._average_s = 0.0

    def observe(self, waited_s: float) -> None:
        """Record the wait of one call."""
        self._average_s += (waited_s - self._average_s) * 0.2

    def quick(self) -> bool:
        """Return whether the average wait is below ``QUICK_S``."""
        return self._average_s < QUICK_S
