"""What the server counts, in the text format of Prometheus. No tenant, user or key is named in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Counted:
    """What was counted of one operation."""

    __slots__ = ("in_buckets", "statuses", "sum_s")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.in_buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0


class Metrics:
    """Counts of requests and how long they took, by operation and status."""

    def __init__(self) -> None:
        self._operations: dict[str, _Counted] = {}
        self.under_way = 0

    def add(self, operation: str, status: int, seconds: float) -> None:
        """One request was answered."""
        counted = self._operations.get(operation)
        if counted is None:
            counted = self._operations[operation] = _Counted()
        counted.statuses[status] = counted.statuses.get(status, 0) + 1
        counted.in_buckets[bisect_left(BOUNDS_S, seconds)] += 1
        counted.sum_s += seconds

    def text(self, *, is_ready: bool, streams: int, overdue_erasures: int | None = None) -> str:
        """Everything counted so far."""
        return "".join(f"{line}\n" for line in self._lines(is_ready, streams, overdue_erasures))

    def _lines(self, is_ready: bool, streams: int, overdue_erasures: int | None) -> Iterator[str]:
        yield from _head("holdfast_ready", "gauge", "Whether the database answers.")
        yield f"holdfast_ready {int(is_ready)}"
        yield from _head("holdfast_requests_under_way", "gauge", "Requests that are being answered.")
        yield f"holdfast_requests_under_way {self.under_way}"
        yield from _head("holdfast_streams", "gauge", "Streams of events that are open.")
        yield f"holdfast_streams {streams}"
        if overdue_erasures is not None:
            yield from _head("holdfast_overdue_erasures", "gauge", "Erasures that were due and are not carried out.")
            yield f"holdfast_overdue_erasures {overdue_erasures}"
        yield from _head("holdfast_requests_total", "counter", "Requests that were answered.")
        operations = sorted(self._operations.items())
        for operation, counted in operations:
            for status, count in sorted(counted.statuses.items()):
                yield f'holdfast_requests_total{{operation="{operation}",status="{status}"}} {count}'
        yield from _head("holdfast_request_seconds", "histogram", "How long answers took.")
        for operation, counted in operations:
            yield from _histogram(operation, counted)


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _histogram(operation: str, counted: _Counted) -> Iterator[str]:
    so_far = 0
    for bound, count in zip((*BOUNDS_S, "+Inf"), counted.in_buckets, strict=True):
        so_far += count
        yield f'holdfast_request_seconds_bucket{{operation="{operation}",le="{bound}"}} {so_far}'
    yield f'holdfast_request_seconds_sum{{operation="{operation}"}} {counted.sum_s:.6f}'
    yield f'holdfast_request_seconds_count{{operation="{operation}"}} {so_far}'
