"""Power cuts in the middle of forks, switches, rewinds and redos: each is done or it is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast.testing import powercut, workloads
from holdfast.testing.powercut import Recording, State

WORK = ("branches.", "messages.append", "messages.update", "messages.delete", "sessions.create")


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Few sessions and many branches."""
    makers = {method: make for method, make in workloads.MAKERS.items() if method.startswith(WORK)}
    monkeypatch.setattr(workloads, "MAKERS", makers)
    monkeypatch.setattr(workloads, "TENANTS", ("acme",))
    return powercut.record(4, count=24)


def test_a_branch_is_there_or_not_wherever_the_power_goes(recording: Recording, tmp_path: Path) -> None:
    inside = _inside(recording)
    cuts = [cut for cut in powercut.cuts(recording, seed=1) if cut.after in inside]
    found: dict[int, State | str] = {}
    for cut in cuts:
        looks = hash(tuple(sorted(cut.files.items())))
        if looks not in found:
            found[looks] = powercut.recover(cut.files, tmp_path)
        assert powercut.judge(recording, cut.after, found[looks]) is None, str(cut)
    assert len(cuts) > 300
    for method in ("branches.fork", "branches.switch", "branches.rewind", "branches.redo"):
        assert Counter(inside.values())[method] > 10, f"{method} was hardly cut"


def _inside(recording: Recording) -> dict[int, str]:
    """The operations of calls about branches that changed something."""
    found: dict[int, str] = {}
    for number, method in enumerate(recording.methods):
        changed = recording.states[number] != recording.states[number + 1]
        if method.startswith("branches.") and changed:
            span = range(recording.begun[number], recording.acknowledged[number] + 1)
            found |= dict.fromkeys(span, method)
    return found
