"""Calls that rather give up than wait, and how long calls have been waiting of late.

Handing a call to a thread and back costs more time than a quick disk needs to flush, and more of the interpreter lock. So what
runs in an event loop may write right there while the disk is quick. What it must not do is wait for others who write: a
call made ``hastily`` gives up instead, with nothing done, and can be made again where waiting harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .errors import Unavailable

QUICK_S = 0.001
"""Calls wait for the disk less than this, on average over the last few, where it is quick."""
BUSY_WAIT_S = 0.1
"""What a call that found others writing counts for: the next dozen go where they may wait."""

_is_hasty: ContextVar[bool] = ContextVar("holdfast_is_hasty", default=False)
is_hasty = _is_hasty.get
"""Whether this call gives up instead of waiting."""


class WouldWait(Unavailable):
    """Somebody else is writing, and this call was not to wait; nothing was done."""


class Pace:
    """How long calls wait: the average over the last few, and whether that is little."""

    __slots__ = ("_average_s",)

    def __init__(self) -> None:
        self._average_s = 0.0

    def observe(self, waited_s: float) -> None:
        """One more call has waited."""
        self._average_s += (waited_s - self._average_s) * 0.2

    def quick(self) -> bool:
        """Whether calls hardly wait."""
        return self._average_s < QUICK_S


@contextmanager
def hastily() -> Iterator[None]:
    """Calls made in here, of a handle that can hurry, give up with ``WouldWait`` instead of waiting for others who write."""
    token = _is_hasty.set(True)
    try:
        yield
    finally:
        _is_hasty.reset(token)


def can_hurry(handle: Any) -> bool:
    """Whether the calls of a synchronous handle can be made so: on a SQLite file, outside transactions of the caller's."""
    return getattr(handle._engine, "can_hurry", False)
