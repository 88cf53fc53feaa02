"""Clocks. This is the only module that reads the system clock; everything else receives a ``Clock``."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from .errors import InvalidInput

MICROSECONDS = 1_000_000
MINUTE_US = 60 * MICROSECONDS


class Clock(Protocol):
    """Wall-clock time as whole microseconds since 1970 in UTC."""

    def now_us(self) -> int:
        """Return the current time."""


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


class FixedClock:
    """A clock that only moves when a test advances it."""

    def __init__(self, now: datetime | int = 1_700_000_000 * MICROSECONDS) -> None:
        self._now_us = now if isinstance(now, int) else to_us(now)

    def now_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._now_us += round(seconds * MICROSECONDS)


def monotonic_s() -> float:
    """Return monotonic seconds, for durations within one process. They are never stored."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Block the thread for some time. Only engines may wait; stores never do."""
    time.sleep(seconds)


class Stopwatch:
    """Measures how long the current thread has waited, as opposed to worked, since the stopwatch was created."""

    __slots__ = ("_started_s", "_worked_s")

    def __init__(self) -> None:
        self._started_s, self._worked_s = time.perf_counter(), time.thread_time()

    def passed_s(self) -> float:
        """Return the seconds since the stopwatch was created."""
        return time.perf_counter() - self._started_s

    def waited_s(self) -> float:
        """Return the seconds in which the thread did not run."""
        return self.passed_s() - (time.thread_time() - self._worked_s)


def to_us(moment: datetime, name: str = "a time") -> int:
    """Convert a datetime to microseconds since 1970, exactly: no float is involved.

    Raises:
        InvalidInput: in UTC, the time is before the year 1 or after the year 9999.
    """
    try:
        delta = moment.astimezone(UTC) - _EPOCH
    except OverflowError:
        message = f"{name} must be within the years 1 to 9999 in UTC, not {moment.isoformat()}"
        raise InvalidInput(message, field=name) from None
    return (delta.days * 86_400 + delta.seconds) * MICROSECONDS + delta.microseconds


def from_us(us: int) -> datetime:
    """Convert microseconds since 1970 to a datetime in UTC."""
    if -_EXACT_US < us < _EXACT_US:
        return datetime.fromtimestamp(us / MICROSECONDS, UTC)  # faster than the addition below
    return _EPOCH + timedelta(microseconds=us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT_US = 2**33 * MICROSECONDS
"""Up to this time, in the year 2242, a float keeps every microsecond."""
