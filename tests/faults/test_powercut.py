"""Power cuts at every operation of every write path: no acknowledged write is lost, no write is incomplete."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.drivers.apsw import ApswConnection
from holdfast.engines.sqlite import wal
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.testing.disk import Disk
from holdfast.testing.sqlite_state import State
from tests.faults import powercut
from tests.faults.powercut import DATABASE, Recording
from tests.faults.turns import shared_turn, turns_in_tasks, turns_in_threads
from tests.workloads import workloads

POINTS_IN_SOAK = 200_000
STORES = sorted({method.partition(".")[0] for method in workloads.write_methods()})
PLAIN = ("sessions", "messages")
"""Stores that are enough where the harness and not a store is on trial."""
COMPANY = {"compactions": ("sessions",), "run_queue": ("runs",)}
"""What else must go on for a store to have enough to do."""
SEEDS = range(3, 19)
"""Random histories that are tried in turn, until one has a call of each write method that changes something."""
TIDYING = {"diagnostics.repair", "snapshots.collect"}
"""Methods that have something to do only where something was left over: they are cut with the stores that leave it."""


def calls_of(recording: Recording) -> range:
    """Return the operations of the calls only: another test covers creating and closing the file."""
    return range(recording.begun[0], recording.acknowledged[-1] + 1)


def test_every_write_method_of_every_store_has_a_maker() -> None:
    assert workloads.methods_without_maker() == [], "register a maker in tests.workloads.workloads"


def test_reflection_finds_the_write_methods_only() -> None:
    actual = workloads.write_methods()
    assert {"messages.append", "messages.append_many", "sessions.purge", "tenants.update"} <= set(actual)
    assert not {"messages.list", "messages.last", "sessions.get", "sessions.find", "tenants.list"} & set(actual)


@pytest.mark.parametrize("store", STORES)
def test_no_acknowledged_write_is_lost_or_incomplete_after_any_cut(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A WAL checkpoint runs every few commits, so that it is interrupted as well."""
    monkeypatch.setattr(workloads, "TENANTS", ("acme",))  # so that calls are about the same things
    methods = {method for method in workloads.write_methods() if method.partition(".")[0] == store} - TIDYING
    if not methods:
        return
    for seed in SEEDS:
        count, stores = 20 + 16 * len(methods), (store, *COMPANY.get(store, ()))
        recording = powercut.record(seed, count=count, log_pages=24, stores=stores)
        inside = powercut.operations_of(recording, methods, most=1)
        if set(inside.values()) == methods:
            break
    assert set(inside.values()) == methods, "a write method that changed nothing"
    report = powercut.enumerate_cuts(recording, seed=1, within=inside)
    assert report.problems == []
    assert report.points >= 10 * len(methods)


def test_no_acknowledged_write_is_lost_before_the_first_wal_checkpoint() -> None:
    """Starting from an empty disk: a partly created file is created again."""
    recording = powercut.record(4, count=12)
    made = range(0, recording.begun[0], 17)
    closed = range(recording.acknowledged[-1], len(recording.operations) + 1, 5)
    report = powercut.enumerate_cuts(recording, seed=1, within={*made, *calls_of(recording), *closed})
    assert report.problems == []
    assert report.points > 400


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_no_acknowledged_write_is_lost_in_many_workloads(part: int) -> None:
    points, seed = 0, 1_000 * (part + 1)
    while points < POINTS_IN_SOAK / 8:
        recording = powercut.record(seed, count=70, log_pages=Random(seed).choice((8, 24, 100, 1_000)))
        report = powercut.enumerate_cuts(recording, seed=seed, rounds=4)
        assert report.problems == [], f"workload {seed}"
        points, seed = points + report.points, seed + 1


def test_the_harness_detects_the_losses_of_durability_normal() -> None:
    """With durability "normal", the same cuts must lose writes, or the test proves nothing."""
    recording = powercut.record(3, count=3, durability="normal", stores=PLAIN)
    report = powercut.enumerate_cuts(recording, seed=1, within=calls_of(recording))
    assert any(problem.what.startswith("lost") for problem in report.problems)
    assert not any("half done" in problem.what for problem in report.problems), "NORMAL loses, it does not tear"


class HastyConnection(ApswConnection):
    """Says that it has committed, and does so when it is next used."""

    is_owing = False

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Any:
        if sql == "COMMIT":
            self.is_owing = True
            return []
        if sql.startswith(("BEGIN", "ROLLBACK")) and self.is_owing:
            self.commit()
            return [] if sql == "ROLLBACK" else super().execute(sql, args)
        return super().execute(sql, args)

    def commit(self) -> None:
        if self.is_owing:
            super().execute("COMMIT")
        self.is_owing = False


class HastyFile(SqliteFile):
    def connect(self, *, reader: bool = False) -> ApswConnection:
        return HastyConnection(super().connect(reader=reader).raw)


class HastyEngine(SqliteEngine):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(HastyFile(file.path, vfs=file.vfs))

    async def read(self, call: Any) -> Any:
        return await call(self._connection)  # it must see the row that it reports

    async def close(self) -> None:
        assert isinstance(self._connection, HastyConnection)
        self._connection.commit()
        await super().close()


def test_the_harness_detects_an_engine_that_acknowledges_before_the_commit() -> None:
    recording = powercut.record(3, count=3, engine=HastyEngine, stores=PLAIN)
    report = powercut.enumerate_cuts(recording, seed=1, within=calls_of(recording)[::8])
    assert any(problem.what.startswith("lost") for problem in report.problems)


def test_the_harness_detects_a_disk_that_does_not_flush() -> None:
    honest = powercut.record(3, count=3, stores=PLAIN)
    unflushed = [operation for operation in honest.operations if operation.kind != "sync"]

    def without_flushes(position: int) -> int:
        return sum(operation.kind != "sync" for operation in honest.operations[:position])

    recording = Recording(
        unflushed,
        honest.methods,
        [without_flushes(item) for item in honest.begun],
        [without_flushes(item) for item in honest.acknowledged],
        honest.states,
    )
    report = powercut.enumerate_cuts(recording, seed=1, within=calls_of(recording))
    assert any(problem.what.startswith("lost") for problem in report.problems)


def test_the_harness_detects_an_incomplete_call() -> None:
    """Any other state after a call would be detected by every cut that keeps the call."""
    honest = powercut.record(3, count=3, stores=PLAIN)
    wrong = [{**state, "messages": [*state["messages"], ("half a row",)]} for state in honest.states]
    recording = Recording(honest.operations, honest.methods, honest.begun, honest.acknowledged, wrong)
    report = powercut.enumerate_cuts(recording, seed=1, within=calls_of(recording))
    assert len(report.problems) == report.points
    assert all("half done" in problem.what for problem in report.problems)


def test_a_cut_during_recovery_loses_no_acknowledged_write() -> None:
    first = powercut.record(5, count=14, log_pages=24)
    wrecks = list(powercut.cuts(first, seed=1, within=calls_of(first)))
    points = 0
    for cut in Random(1).sample(wrecks, 12):
        again = record_reopening(cut.files)
        assert powercut.judge(first, cut.after, again.states[0]) is None
        report = powercut.enumerate_cuts(again, seed=cut.after)
        assert report.problems == [], str(cut)
        points += report.points
    assert points > 500


def record_reopening(files: dict[str, bytes]) -> Recording:
    """Open the files after a cut on a recording disk, make one call, and close."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
        path = Path(folder) / DATABASE
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        handle = workloads.on_engine(SqliteEngine(SqliteFile(str(path), vfs=disk.name)))
        states: list[State] = [powercut.read_state(path)]
        handle.begin(900)
        begun = disk.position
        handle.tenants.create("made after the first cut")
        acknowledged = disk.position
        states.append(powercut.read_state(path))
        handle.close()
    return Recording(disk.operations, ["tenants.create"], [begun], [acknowledged], states, files)


@pytest.mark.parametrize("engine", ["async", "threads"])
def test_calls_that_share_a_commit_are_all_durable_when_acknowledged(engine: str) -> None:
    recording = record_shared_commits(engine, count=5)
    report = powercut.enumerate_cuts(recording, seed=1, within=calls_of(recording))
    assert report.problems == []
    assert report.points > 100
    commits = sum(operation.kind == "sync" for operation in recording.operations)
    assert commits < len(recording.methods), "nothing was shared, so nothing was shown"


def test_a_wal_checkpoint_outside_of_the_event_loop_loses_no_acknowledged_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The asynchronous engine runs it in its writing thread, between two commits."""
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 6)
    monkeypatch.setattr(wal, "CHECKPOINT_COMMITS", 1)
    recording = record_shared_commits("async", count=5)
    moved = [
        operation for operation in recording.operations[: recording.acknowledged[-1]] if operation.file == DATABASE
    ]
    assert any(operation.kind == "sync" for operation in moved), "the log was never moved"
    report = powercut.enumerate_cuts(recording, seed=1, within=calls_of(recording))
    assert report.problems == []
    assert report.points > 200


def record_shared_commits(engine: str, count: int) -> Recording:
    """Run turns of several concurrent calls, valid and invalid, on one recorded disk."""
    groups = [shared_turn(number) for number in range(count)]
    memory = workloads.on_engine(SqliteEngine(SqliteFile(":memory:")))
    raw = memory.engine._connection.raw  # type: ignore[attr-defined]
    states = [powercut.state_of(raw)]
    for call in itertools.chain(*groups):
        call.make(memory)
        states.append(powercut.state_of(raw))
    memory.close()
    begun: list[int] = []
    acknowledged: list[int] = []
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
        file = SqliteFile(os.path.join(folder, DATABASE), vfs=disk.name)
        turns = turns_in_threads(file, groups) if engine == "threads" else turns_in_tasks(file, groups)
        for group, answers in turns:
            (begun if answers is None else acknowledged).extend([disk.position] * len(group))
    methods = [call.method for call in itertools.chain(*groups)]
    return Recording(disk.operations, methods, begun, acknowledged, states)
