"""Power cuts in the middle of every write of checkpoints and objects: putting, writing, copying, pruning, deleting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast.testing import powercut, workloads
from holdfast.testing.powercut import Recording, State

STORES = ("checkpoints.", "objects.")
METHODS = {method for method in workloads.MAKERS if method.startswith(STORES)}
WORK = {*METHODS, "sessions.create"}


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """One tenant, so that calls are about the same threads."""
    makers = {method: make for method, make in workloads.MAKERS.items() if method in WORK}
    monkeypatch.setattr(workloads, "MAKERS", makers)
    monkeypatch.setattr(workloads, "TENANTS", ("acme",))
    return powercut.record(6, count=90)


def test_a_write_is_there_or_not_wherever_the_power_goes(recording: Recording, tmp_path: Path) -> None:
    inside = _inside(recording)
    cut_methods = Counter(inside.values())
    assert cut_methods.keys() == METHODS, "a write method that changed nothing"
    assert min(cut_methods.values()) > 4, f"hardly cut: {cut_methods}"
    found: dict[int, State | str] = {}
    for cut in powercut.cuts(recording, seed=1):
        if cut.after in inside:
            looks = hash(tuple(sorted(cut.files.items())))
            if looks not in found:
                found[looks] = powercut.recover(cut.files, tmp_path)
            assert powercut.judge(recording, cut.after, found[looks]) is None, str(cut)
    assert len(found) > 150


def _inside(recording: Recording) -> dict[int, str]:
    """The operations of the first two calls of each method that changed something."""
    found: dict[int, str] = {}
    times: Counter[str] = Counter()
    for number, method in enumerate(recording.methods):
        changed = recording.states[number] != recording.states[number + 1]
        if method in METHODS and changed and times[method] < 2:
            times[method] += 1
            found |= dict.fromkeys(range(recording.begun[number], recording.acknowledged[number] + 1), method)
    return found
