"""Power cuts at every operation of compactions and their rollbacks: each is complete or absent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import CompactionPolicy, NewMessage, TenantHandle
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.testing.disk import Disk
from holdfast.testing.sqlite_state import State
from tests.faults import powercut
from tests.faults.powercut import DATABASE, Recording
from tests.workloads import workloads
from tests.workloads.workload_compactions import POLICY, Shorten
from tests.workloads.workloads import OnEngine

Step = Callable[[TenantHandle, str], Any]
LINES = 12


def summarise(acme: TenantHandle, session: str) -> None:
    acme.compactions.compact(session, POLICY, summary="so far")


def shorten(acme: TenantHandle, session: str) -> None:
    acme.compactions.compact(session, POLICY, strategy=Shorten())


def undo(acme: TenantHandle, session: str) -> None:
    live = [event for event in acme.compactions.history(session) if event.rolled_back_at is None]
    acme.compactions.rollback(live[0].id)


def append(acme: TenantHandle, session: str) -> None:
    acme.messages.append_many(session, [NewMessage(role="user", content="more of it", token_count=9)] * 3)


def attach(acme: TenantHandle, session: str) -> None:
    acme.compactions.attach(CompactionPolicy(), session_id=session)


WAYS: dict[str, list[Step]] = {
    "alone": [summarise, append, shorten, undo, undo],
    "with a fork": [attach, summarise, append, undo, shorten, undo],
}


def prepared(folder: Path, *, forked: bool) -> tuple[dict[str, bytes], str]:
    """The files of a database with one session that can be compacted, closed in good order, and the session."""
    handle = workloads.on_engine(SqliteEngine(SqliteFile(str(folder / DATABASE))))
    acme = handle.tenant("acme")
    session = acme.sessions.create().id
    random = Random(LINES)
    lines = ["".join(random.choices("abc \u00e9\x00", k=random.choice((20, 200, 5_000)))) for _ in range(LINES)]
    acme.messages.append_many(session, [NewMessage(role="user", content=line, token_count=50) for line in lines])
    acme.messages.search("a")  # so that there is an index to keep in step
    acme.feedback.create(acme.messages.last(session, LINES)[0].id, is_positive=True)
    if forked:
        acme.branches.fork(session)
    handle.close()
    return {path.name: path.read_bytes() for path in folder.iterdir()}, session


def recorded(steps: list[Step], *, forked: bool) -> Recording:
    """Record the disk operations of some steps, and the state after each."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
        files, session = prepared(Path(folder), forked=forked)
        path = Path(folder) / DATABASE
        handle = OnEngine(SqliteEngine(SqliteFile(str(path), vfs=disk.name)))
        states: list[State] = [powercut.read_state(path)]
        begun: list[int] = []
        acknowledged: list[int] = []
        for number, step in enumerate(steps, 1):
            handle.begin(number)
            begun.append(disk.position)
            step(handle.tenant("acme"), session)
            acknowledged.append(disk.position)
            states.append(powercut.read_state(path))
        handle.close()
    return Recording(disk.operations, [step.__name__ for step in steps], begun, acknowledged, states, files)


@pytest.mark.parametrize("way", WAYS)
def test_a_compaction_and_its_rollback_are_complete_or_absent_after_any_cut(way: str) -> None:
    recording = recorded(WAYS[way], forked=way != "alone")
    assert all(one != other for one, other in zip(recording.states, recording.states[1:], strict=False))
    report = powercut.enumerate_cuts(recording, seed=1)
    assert report.problems == []
    assert report.points >= 250


def test_undoing_restores_every_table() -> None:
    """The state after all rollbacks differs from the one before only in the events of the compactions."""
    recording = recorded([summarise, undo], forked=False)
    before, compacted, after = recording.states
    for table in ("messages", "feedback", "message_archive", "branches", "compaction_policies"):
        assert before[table] == after[table], table
    assert (len(before["messages"]), len(compacted["messages"])) == (LINES, 2)
    assert (len(compacted["message_archive"]), compacted["feedback"]) == (LINES - 1, [])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_workloads_of_compactions_survive_any_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("sessions.create", "messages.append_many", "branches.fork", "branches.switch", "messages.delete")
    few = {name: make for name, make in workloads.MAKERS.items() if name in names or name.startswith("compactions.")}
    monkeypatch.setattr(workloads, "MAKERS", few)
    monkeypatch.setattr(workloads, "TENANTS", ("acme",))
    report = powercut.enumerate_cuts(powercut.record(seed, count=60, log_pages=24), seed=seed)
    assert report.problems == []
