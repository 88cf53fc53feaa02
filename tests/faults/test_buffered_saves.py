"""A buffered session's save is complete or absent after any power cut."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest

from holdfast.testing.sqlite_state import State
from tests.faults import powercut
from tests.faults.powercut import Cut, Recording
from tests.workloads import workloads


@pytest.fixture(scope="module")
def saves() -> Recording:
    """Run saves only: of new sessions, of growing histories, and of truncated ones."""
    expected = {"sessions.create", "sessions.buffered"}
    makers = {method: maker for method, maker in workloads.MAKERS.items() if method in expected}
    with mock.patch.dict(workloads.MAKERS, makers, clear=True):
        return powercut.record(5, count=16, log_pages=24)


@pytest.fixture(scope="module")
def wrecks(saves: Recording) -> list[tuple[Cut, State | str]]:
    """The state after each cut from the first call on; cuts during the creation of the file are tested elsewhere."""
    seen: dict[tuple[tuple[str, bytes], ...], State | str] = {}
    result = []
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder:
        for cut in powercut.cuts(saves, seed=1):
            if cut.after >= saves.begun[0]:
                files = tuple(sorted(cut.files.items()))
                if files not in seen:
                    seen[files] = powercut.recover(cut.files, Path(folder))
                result.append((cut, seen[files]))
    return result


def test_the_workload_saves_in_every_way(saves: Recording) -> None:
    last = saves.states[-1]
    assert saves.methods.count("sessions.buffered") >= 6
    assert len(last["session_state"]) >= 2
    assert len(last["branches"]) >= 2, "no save truncated anything that was stored"
    assert len(last["messages"]) >= 10
    assert len(last["sessions"]) > saves.methods.count("sessions.create"), "no save made a session"


def test_a_save_is_complete_or_absent_after_every_cut(saves: Recording, wrecks: list[tuple[Cut, State | str]]) -> None:
    problems = [(str(cut), output) for cut, actual in wrecks if (output := powercut.judge(saves, cut.after, actual))]
    assert problems == []
    assert len(wrecks) > 400


@pytest.mark.parametrize("table", ["session_state", "messages", "sessions", "branches"])
def test_an_incomplete_save_is_detected(saves: Recording, wrecks: list[tuple[Cut, State | str]], table: str) -> None:
    before = saves.states[0][table]
    without = [{**state, table: before} for state in saves.states]
    torn = Recording(saves.operations, saves.methods, saves.begun, saves.acknowledged, without)
    assert any("half done" in (powercut.judge(torn, cut.after, actual) or "") for cut, actual in wrecks)


def test_a_save_of_any_size_is_one_flush(saves: Recording) -> None:
    flushes: dict[str, list[int]] = {}
    for method, first, last in zip(saves.methods, saves.begun, saves.acknowledged, strict=True):
        count = sum(operation.kind == "sync" for operation in saves.operations[first:last])
        flushes.setdefault(method, []).append(count)
    assert min(flushes["sessions.buffered"]) == min(flushes["sessions.create"]) == 1
