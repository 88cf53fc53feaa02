"""The moving average that decides whether asynchronous calls run in the event loop."""

from __future__ import annotations

from holdfast.engines.sqlite.disk_latency import BUSY_WAIT_S, QUICK_S, DiskLatency


def test_calls_run_in_the_event_loop_unless_they_wait() -> None:
    pace = DiskLatency()
    assert pace.quick()
    pace.observe(BUSY_WAIT_S)
    assert not pace.quick()
    calls = 0
    while not pace.quick():
        pace.observe(0.0)
        calls += 1
    assert 10 <= calls <= 20
    for _ in range(100):
        pace.observe(QUICK_S * 0.9)
    assert pace.quick()
