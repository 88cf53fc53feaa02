"""Power cuts at every operation of every write path of agents, blocks, runs, leases and tool calls."""

from __future__ import annotations

from holdfast.testing import powercut, workloads
from holdfast.testing.powercut import Recording

STORES = ("agents", "blocks", "runs", "steps", "leases", "tool_calls", "run_queue")


def changed(recording: Recording) -> set[str]:
    """The methods that changed something."""
    pairs = zip(recording.methods, recording.states, recording.states[1:], strict=False)
    return {method for method, before, after in pairs if before != after}


def test_nothing_of_a_run_is_lost_or_half_done_at_any_cut() -> None:
    """State, messages, tool calls, lease and queue of one call are there together, or none of them is."""
    recording = powercut.record(19, count=46, log_pages=40, stores=STORES)
    mine = {method for method in workloads.write_methods() if method.partition(".")[0] in STORES}
    assert mine <= changed(recording), "a write method that changed nothing"
    # How the schema is made is cut elsewhere.
    report = powercut.enumerate_cuts(recording, seed=1, since=recording.begun[0])
    assert report.problems == []
    assert report.points > 500
