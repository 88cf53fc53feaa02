"""The only place that reads the clock. Everything else is handed a ``Clock``."""

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
        """The moment it is."""


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


class FixedClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: datetime | int = 1_700_000_000 * MICROSECONDS) -> None:
        self._now_us = now if isinstance(now, int) else to_us(now)

    def now_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move it on."""
        self._now_us += round(seconds * MICROSECONDS)


def monotonic_s() -> float:
    """Seconds from some fixed point; for ages and waits inside one process, never for anything stored."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Let some time pass; for engines that wait, never for a store."""
    time.sleep(seconds)


class Stopwatch:
    """How long the running thread has been waiting, as opposed to working, since this was made."""

    __slots__ = ("_started_s", "_worked_s")

    def __init__(self) -> None:
        self._started_s, self._worked_s = time.perf_counter(), time.thread_time()

    def passed_s(self) -> float:
        """Seconds since this was made."""
        return time.perf_counter() - self._started_s

    def waited_s(self) -> float:
        """Seconds in which the thread did not run."""
        return self.passed_s() - (time.thread_time() - self._worked_s)


def to_us(moment: datetime, name: str = "a time") -> int:
    """Microseconds since 1970; exact, because it never goes through a float.

    Raises:
        InvalidInput: in UTC it is before the year 1 or after the year 9999.
    """
    try:
        delta = moment.astimezone(UTC) - _EPOCH
    except OverflowError:
        raise InvalidInput(f"{name} must be within the years 1 to 9999 in UTC, not {moment.isoformat()}") from None
    return (delta.days * 86_400 + delta.seconds) * MICROSECONDS + delta.microseconds


def from_us(us: int) -> datetime:
    """The moment, in UTC."""
    if -_EXACT_US < us < _EXACT_US:
        return datetime.fromtimestamp(us / MICROSECONDS, UTC)  # the quickest way there is
    return _EPOCH + timedelta(microseconds=us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT_US = 2**33 * MICROSECONDS
"""Up to here, the year 2242, a division keeps every microsecond."""
