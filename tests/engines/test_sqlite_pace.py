"""The moving average that decides whether asynchronous calls run in the event loop."""

from __future__ import annotations

from holdfast.engines.sqlite.disk_latency import BUSY_WAIT_S, QUICK_S, DiskLatency


def test_a_pace_is_quick_until_calls_wait_and_again_when_they_no_longer_do() -> None:
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
