"""Power cuts while messages are indexed and while a tenant is deleted: each batch is complete or absent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import NewMessage
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.stores.conversation.search import index
from holdfast.stores.lifecycle import tenants
from holdfast.sync_runner import step
from holdfast.testing.disk import Disk
from holdfast.testing.sqlite_state import State
from tests.faults import powercut
from tests.faults.powercut import DATABASE, Recording
from tests.workloads import workloads
from tests.workloads.workloads import OnEngine

Piece = Callable[[OnEngine], object]


def mark(handle: OnEngine) -> None:
    step(handle.tenants._async._mark("acme", True))


def maintain(handle: OnEngine) -> None:
    handle.tenants.maintain()


def recorded(pieces: list[Piece], *, indexed: bool) -> Recording:
    """Record the disk operations of some batches, and the state after each."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
        path = Path(folder) / DATABASE
        handle = workloads.on_engine(SqliteEngine(SqliteFile(str(path))))
        for name in ("acme", "zenith"):
            for _ in range(2):
                session = handle.tenant(name).sessions.create().id
                told = [NewMessage(role="user", content=f"word {number}") for number in range(4)]
                handle.tenant(name).messages.append_many(session, told)
            if indexed:
                handle.tenant(name).messages.search("word")
                handle.tenant(name).messages.search("word")
                handle.tenant(name).messages.search("word")
        handle.close()
        files = {item.name: item.read_bytes() for item in Path(folder).iterdir()}
        handle = OnEngine(SqliteEngine(SqliteFile(str(path), vfs=disk.name)))
        states: list[State] = [powercut.read_state(path)]
        begun: list[int] = []
        acknowledged: list[int] = []
        for number, piece in enumerate(pieces, 1):
            handle.begin(number)
            begun.append(disk.position)
            piece(handle)
            acknowledged.append(disk.position)
            states.append(powercut.read_state(path))
        handle.close()
    return Recording(disk.operations, [piece.__name__ for piece in pieces], begun, acknowledged, states, files)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BATCH_MESSAGES", 3)
    monkeypatch.setattr(tenants, "PURGED_ROWS", 4)


def test_each_batch_of_the_index_is_complete_or_absent_after_any_cut() -> None:
    recording = recorded([maintain] * 4, indexed=False)
    assert [len(state["message_texts"]) for state in recording.states] == [0, 3, 6, 8, 11]
    report = powercut.enumerate_cuts(recording, seed=1)
    assert report.problems == []
    assert report.points >= 50


def test_each_batch_of_a_deletion_is_complete_or_absent_after_any_cut() -> None:
    recording = recorded([mark, *[maintain] * 5], indexed=True)
    assert len(recording.states[0]["messages"]) == 16
    assert len(recording.states[-1]["messages"]) == 8
    report = powercut.enumerate_cuts(recording, seed=1)
    assert report.problems == []
    assert report.points >= 50
