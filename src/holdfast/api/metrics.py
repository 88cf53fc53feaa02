"""Request metrics in the text format of Prometheus. They contain no tenant, user or key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _OperationMetrics:
    """The metrics of one operation."""

    __slots__ = ("in_buckets", "statuses", "sum_s")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.in_buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0


class Metrics:
    """Counts and durations of requests, by operation and status."""

    def __init__(self) -> None:
        self._operations: dict[str, _OperationMetrics] = {}
        self.under_way = 0

    def add(self, operation: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        metrics = self._operations.get(operation)
        if metrics is None:
            metrics = self._operations[operation] = _OperationMetrics()
        metrics.statuses[status] = metrics.statuses.get(status, 0) + 1
        metrics.in_buckets[bisect_left(BOUNDS_S, seconds)] += 1
        metrics.sum_s += seconds

    def text(self, *, is_ready: bool, streams: int, overdue_erasures: int | None = None) -> str:
        """Return all metrics as text."""
        return "".join(f"{line}\n" for line in self._lines(is_ready, streams, overdue_erasures))

    def _lines(self, is_ready: bool, streams: int, overdue_erasures: int | None) -> Iterator[str]:
        yield from _head("holdfast_ready", "gauge", "Whether the database answers.")
        yield f"holdfast_ready {int(is_ready)}"
        yield from _head("holdfast_requests_under_way", "gauge", "Requests in progress.")
        yield f"holdfast_requests_under_way {self.under_way}"
        yield from _head("holdfast_streams", "gauge", "Open event streams.")
        yield f"holdfast_streams {streams}"
        if overdue_erasures is not None:
            yield from _head("holdfast_overdue_erasures", "gauge", "Erasures that are past their due time.")
            yield f"holdfast_overdue_erasures {overdue_erasures}"
        yield from _head("holdfast_requests_total", "counter", "Answered requests.")
        operations = sorted(self._operations.items())
        for operation, metrics in operations:
            for status, count in sorted(metrics.statuses.items()):
                yield f'holdfast_requests_total{{operation="{operation}",status="{status}"}} {count}'
        yield from _head("holdfast_request_seconds", "histogram", "Duration of requests.")
        for operation, metrics in operations:
            yield from _histogram(operation, metrics)


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _histogram(operation: str, metrics: _OperationMetrics) -> Iterator[str]:
    cumulative = 0
    for bound, count in zip((*BOUNDS_S, "+Inf"), metrics.in_buckets, strict=True):
        cumulative += count
        yield f'holdfast_request_seconds_bucket{{operation="{operation}",le="{bound}"}} {cumulative}'
    yield f'holdfast_request_seconds_sum{{operation="{operation}"}} {metrics.sum_s:.6f}'
    yield f'holdfast_request_seconds_count{{operation="{operation}"}} {cumulative}'
