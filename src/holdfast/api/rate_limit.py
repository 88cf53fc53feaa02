"""Rate limits: a token bucket for each name."""

from __future__ import annotations

from holdfast.clock import monotonic_s

_MAX_NAMES = 10_000


class RateLimit:
    """At most ``per_s`` requests per second on average, and ``at_once`` in a burst. A rate of 0 means no limit."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token and return 0; if none is available, take none and return the seconds until one is."""
        if not self._per_s:
            return 0.0
        now_s = monotonic_s()
        left = self._tokens(name, now_s)
        self._left.pop(name, None)
        if len(self._left) >= _MAX_NAMES:
            del self._left[next(iter(self._left))]
        # A refusal does not use up the fraction of a token: otherwise a caller that keeps retrying would never be accepted.
        self._left[name] = (left - 1.0 if left >= 1.0 else left, now_s)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def wait_s(self, name: str) -> float:
        """Return the seconds until a token is available, or 0. None is taken."""
        if not self._per_s:
            return 0.0
        left = self._tokens(name, monotonic_s())
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def _tokens(self, name: str, now_s: float) -> float:
        left, updated_s = self._left.get(name, (float(self._at_once), now_s))
        return min(float(self._at_once), left + (now_s - updated_s) * self._per_s)
