"""How often somebody may ask: a bucket for each name, which a request takes from and time fills up again."""

from __future__ import annotations

from holdfast.clock import monotonic_s

_NAMES_MOST = 10_000


class Rates:
    """So many a second on average, and so many at once. A rate of 0 is no limit."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take one; the seconds to wait, if there is none, or 0. Who is told to wait has taken nothing."""
        if not self._per_s:
            return 0.0
        now_s = monotonic_s()
        left = self._at(name, now_s)
        self._left.pop(name, None)
        if len(self._left) >= _NAMES_MOST:
            del self._left[next(iter(self._left))]
        # A part of one that has come back stays: taken away with each refusal, whoever keeps asking would never be let in again.
        self._left[name] = (left - 1.0 if left >= 1.0 else left, now_s)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def wait_s(self, name: str) -> float:
        """The seconds to wait until there is one, or 0. Nothing is taken."""
        if not self._per_s:
            return 0.0
        left = self._at(name, monotonic_s())
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def _at(self, name: str, now_s: float) -> float:
        left, then_s = self._left.get(name, (float(self._at_once), now_s))
        return min(float(self._at_once), left + (now_s - then_s) * self._per_s)
