"""The expected end of a simulated run, the states a power cut may leave, and the meaning of a filter in plain Python."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from holdfast import Filter, Holdfast, Limits
from holdfast.errors import InvalidFilter, LimitExceeded
from holdfast.testing.disk import SECTOR_BYTES, CrashImage, Disk, DiskFault, DiskOperation
from holdfast.testing.sim import Violation
from holdfast.testing.sim.observer import CallRow, MessageRow, Rows, RunRow
from holdfast.testing.sim.plans import SAFETIES, TENANTS, PlannedRun, check_end, plan_runs
from holdfast.testing.sqlite_state import DatabaseDamaged, read_state
from tests.errors import raises
from tests.faults import powercut
from tests.faults.powercut import Recording, cuts, judge, operations_of, recover
from tests.models import oracle

# Plans


def test_a_plan_follows_from_its_seed_alone() -> None:
    assert plan_runs(7, 5) == plan_runs(7, 5) != plan_runs(8, 5)
    assert plan_runs(7, 0) == {}


def test_plans_cover_every_variant_and_keep_their_bounds() -> None:
    plans = [plan for seed in range(40) for plan in plan_runs(seed, 5).values()]
    steps = [step for plan in plans for step in plan.steps]
    calls = [call for step in steps for call in step.calls]
    assert len({plan.run_id for plan in plans}) == len(plans) == 200
    assert {plan.tenant for plan in plans} == {*TENANTS}
    assert {len(plan.steps) for plan in plans} == {1, 2, 3, 4, 5}
    assert {call.safety for call in calls} == {*SAFETIES}
    assert {len(step.calls) for step in steps} == {0, 1, 2, 3}
    assert {step.pause_s is None for step in steps} == {plan.cancelled for plan in plans} == {True, False}
    assert all(len(step.calls) == 1 for step in steps if any(call.hold for call in step.calls))
    for plan in plans:
        ids = [call.id for step in plan.steps for call in step.calls]
        assert len({*ids}) == len(ids)


def ended(plan: PlannedRun) -> tuple[RunRow, Rows]:
    """Return the rows of a run that was driven to its end without a fault."""
    run = RunRow(plan.tenant, plan.run_id, "s", "completed", len(plan.steps), 1, 0, 5, None, "end_turn", 0, 0)
    made = Rows()
    output = [("user", f"please do {plan.run_id}")]
    calls: dict[str, CallRow] = {}
    for number, step in enumerate(plan.steps, 1):
        output.append(("assistant", f"{plan.run_id} {number} by worker"))
        for call in step.calls:
            calls[call.id] = CallRow(plan.tenant, plan.run_id, call.id, call.safety, "finished", 1, 1, number, None)
    made.messages[(plan.tenant, "s")] = [
        MessageRow(plan.tenant, "s", seq, f"m{seq}", role, f'[{{"type":"text","text":"{text}"}}]', 0)
        for seq, (role, text) in enumerate(output, 1)
    ]
    made.calls[(plan.tenant, plan.run_id)] = calls
    return run, made


PLAN = max(plan_runs(3, 20).values(), key=lambda plan: sum(len(step.calls) for step in plan.steps))
HOME = (PLAN.tenant, "s")


def test_a_run_with_the_planned_end_is_accepted() -> None:
    assert len(PLAN.steps) > 2
    check_end(PLAN, *ended(PLAN))


@pytest.mark.parametrize("change", ["one left out", "one said twice", "two the other way round"])
def test_replies_must_be_in_the_session_once_and_in_order(change: str) -> None:
    run, rows = ended(PLAN)
    log = rows.messages[HOME]
    rows.messages[HOME] = {
        "one left out": log[:-1],
        "one said twice": [*log, log[-1]],
        "two the other way round": [log[0], log[2], log[1], *log[3:]],
    }[change]
    with raises(Violation, kind="wrong_replies", subject=run.id):
        check_end(PLAN, run, rows)


def test_other_messages_in_the_session_are_not_mistaken_for_replies() -> None:
    run, rows = ended(PLAN)
    first = rows.messages[HOME][1]
    rows.messages[HOME] += [
        first._replace(role="user"),
        first._replace(content='[{"type":"text","text":"another-run 1 by worker"}]'),
        first._replace(content='[{"type":"image"}]'),
        first._replace(content="[]"),
    ]
    check_end(PLAN, run, rows)


def test_every_call_must_belong_to_a_step() -> None:
    for step in (None, "gone"):
        run, rows = ended(PLAN)
        calls = rows.calls[(PLAN.tenant, PLAN.run_id)]
        id = next(iter(calls))
        if step == "gone":
            del calls[id]
        else:
            calls[id] = calls[id]._replace(step=None)
        with raises(Violation, kind="call_without_step", subject=id):
            check_end(PLAN, run, rows)


# Power cuts


def recording(*, states: int = 4) -> Recording:
    """Three calls, of ten operations each."""
    made: list[powercut.State] = [{"t": [(number,)]} for number in range(states)]
    operations = [DiskOperation("write", "f", 0, b"x")] * 30
    return Recording(operations, ["a.one", "a.two", "b.one"], [0, 10, 20], [10, 20, 30], made)


@pytest.mark.parametrize(
    ("cut", "legal"),
    [(0, [0]), (1, [0, 1]), (9, [0, 1]), (10, [1]), (11, [1, 2]), (20, [2]), (29, [2, 3]), (30, [3]), (99, [3])],
)
def test_acknowledged_messages_must_exist_and_started_ones_may(cut: int, legal: list[int]) -> None:
    assert [*recording().legal(cut)] == legal


def test_a_recovered_state_is_compared_with_the_acknowledged_calls() -> None:
    made = recording()
    assert judge(made, 15, {"t": [(1,)]}) is None
    assert judge(made, 15, {"t": [(2,)]}) is None
    assert judge(made, 25, {"t": [(0,)]}) == (
        "lost: the state after 0 calls, but 2 were acknowledged; missing ['a.one', 'a.two']"
    )
    assert "half done" in str(judge(made, 15, {"t": [(1,), (2,)]}))
    assert judge(made, 15, "cannot be opened") == "cannot be opened"


def test_a_state_that_occurs_twice_is_not_reported_as_lost() -> None:
    made = recording()
    made.states[3] = made.states[1]  # the third call undoes the second
    assert judge(made, 30, {"t": [(1,)]}) is None
    assert judge(made, 30, {"t": [(2,)]}) is not None


def test_only_calls_that_changed_something_are_examined_up_to_a_limit() -> None:
    made = recording()
    assert {*operations_of(made, ["a.two"])} == {*range(10, 21)}
    assert operations_of(made, ["c.three"]) == operations_of(made, ["a.two"], most=0) == {}
    made.states[2] = made.states[1]
    assert operations_of(made, ["a.two"]) == {}


def test_cuts_follow_every_operation_or_only_the_selected_ones() -> None:
    made = Recording(
        [DiskOperation("create", "f"), DiskOperation("write", "f", 0, b"x" * SECTOR_BYTES)], [], [], [], [{}]
    )
    assert [(cut.after, cut.variant) for cut in cuts(made, seed=1)][:2] == [(0, "dropped"), (1, "dropped")]
    assert {cut.after for cut in cuts(made, seed=1)} == {0, 1, 2}
    assert {cut.after for cut in cuts(made, seed=1, within=[2])} == {2}
    assert len([*cuts(made, seed=1, rounds=3, within=[2])]) == 3 + 3 * 3
    first, again = ([cut.files for cut in cuts(made, seed=5)] for _ in range(2))
    assert first == again
    assert "cut after operation 0, unflushed writes dropped, seed 1" in str(next(cuts(made, seed=1)))


def test_the_surviving_files_are_opened_read_and_deleted(tmp_path: Path) -> None:
    assert isinstance(recover({}, tmp_path), dict), "a disk with nothing on it is a new database"
    assert "cannot be opened: Corrupt" in str(recover({powercut.DATABASE: b"noise" * 999}, tmp_path))
    assert [*tmp_path.iterdir()] == []


def test_reading_a_damaged_file_fails_and_a_sound_one_returns_every_row(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Holdfast(str(path)).close()
    assert read_state(path)["sessions"] == []
    raw = apsw.Connection(str(path))
    raw.execute("PRAGMA foreign_keys = OFF").fetchall()
    raw.execute("CREATE TABLE one (x PRIMARY KEY); CREATE TABLE two (x REFERENCES one (x)); INSERT INTO two VALUES (1)")
    raw.close()
    with raises(DatabaseDamaged, check="foreign_key_check"):
        read_state(path)
    path.write_bytes(b"noise" * 999)
    with raises(DatabaseDamaged, check=""):
        read_state(path)


# The disk


def test_variants_of_a_cut_with_the_same_files_are_not_tried() -> None:
    wreck = CrashImage({"f": b"old"})
    assert [*wreck.variants()] == ["dropped"]
    wreck.apply(DiskOperation("write", "f", 0, b"new"))
    assert [*wreck.variants()] == ["dropped", "kept", "torn", "scattered", "noise"]
    wreck.apply(DiskOperation("sync", "f"))
    wreck.apply(DiskOperation("create", "g"))
    assert [*wreck.variants()] == ["dropped", "entries", "scattered"]
    wreck.apply(DiskOperation("sync", "g", folder=True))
    assert [*wreck.variants()] == ["dropped"]


def test_writing_or_truncating_beyond_the_end_fills_with_zeros() -> None:
    wreck = CrashImage({"f": b"ab"})
    wreck.apply(DiskOperation("write", "f", 4, b"x"))
    assert wreck.files("kept", Random(0)) == {"f": b"ab\0\0x"}
    wreck.apply(DiskOperation("truncate", "f", 1))
    assert wreck.files("kept", Random(0)) == {"f": b"a"}
    wreck.apply(DiskOperation("truncate", "f", 3))
    assert wreck.files("kept", Random(0)) == {"f": b"a\0\0"}


@pytest.mark.parametrize(
    ("number", "kind", "file", "hit"),
    [(1, "write", "a-wal", False), (2, "write", "a-wal", True), (3, "write", "a-wal", True), (4, "write", "a-wal", False),
     (2, "read", "a-wal", False), (2, "write", "a.db", False)],
)  # fmt: skip
def test_a_disk_fault_applies_to_the_selected_attempts_only(number: int, kind: Any, file: str, hit: bool) -> None:
    rule = DiskFault(error="EIO", first=2, last=3, kinds=frozenset({"write"}), files="-wal")
    assert rule.hits(number, kind, file) is hit
    assert DiskFault(error="EIO", first=2, last=None).hits(10_000, kind, file)


def test_a_disk_counts_attempts_and_changes_and_records_its_first_failure() -> None:
    seen: list[tuple[str, str]] = []
    disk = Disk(watch=lambda kind, file: seen.append((kind, file)))
    disk.record(DiskOperation("sync", "f"))
    disk.fail(DiskFault(error="ENOSPC", first=2, last=2))
    assert [disk.attempt("write", "f"), disk.attempt("sync", "f"), disk.attempt("read", "f")] == [None, "ENOSPC", None]
    assert (disk.attempts, seen[1], disk.failed_after) == (["write", "sync", "read"], ("sync", "f"), 1)
    assert (disk.position, disk.count("sync"), disk.count("write")) == (1, 1, 0)


# The oracle

ROW = SimpleNamespace(
    key=None, user="ada", message_count=3, metadata={"n": 1, "s": "b", "t": True, "l": ["x", 1], "z": None}
)
CASES: list[tuple[Filter, bool]] = [
    (Filter("eq", 1.0, meta="n"), True),
    (Filter("eq", True, meta="n"), False),
    (Filter("eq", 1, meta="t"), False),
    (Filter("eq", None, meta="z"), True),
    (Filter("eq", None, meta="missing"), False),
    (Filter("ne", 1, meta="missing"), True),
    (Filter("ne", 1, meta="n"), False),
    (Filter("in", [2, 1], meta="n"), True),
    (Filter("in", [], meta="n"), False),
    (Filter("lt", 2, meta="n"), True),
    (Filter("lt", "2", meta="n"), False),
    (Filter("gt", "a", meta="s"), True),
    (Filter("ge", 0, meta="missing"), False),
    (Filter("contains", "x", meta="l"), True),
    (Filter("contains", True, meta="l"), False),
    (Filter("contains", "b", meta="s"), True),
    (Filter("contains", "1", meta="n"), False),
    (Filter("eq", None, column="key"), True),
    (Filter("lt", "x", column="key"), False),
    (Filter("ne", "x", column="key"), True),
    (Filter("contains", "d", column="user"), True),
    (Filter("ge", 3, column="message_count"), True),
    (Filter("in", ["bob", "ada"], column="user"), True),
]


@pytest.mark.parametrize(("given", "holds"), CASES, ids=[f"{f.column} {f.meta} {f.op} {f.value!r}" for f, _ in CASES])
def test_the_oracle_evaluates_a_filter(given: Filter, holds: bool) -> None:
    assert oracle.matches(ROW, [given]) is holds
    assert oracle.matches(ROW, [given, Filter("eq", "carl", column="user")]) is False


def test_no_filter_matches_everything() -> None:
    assert oracle.matches(ROW, [])


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
REFUSED: list[Any] = [
    "n = 1",
    Filter("eq", 1),
    Filter("eq", 1, column="message_count", meta="n"),
    Filter("eq", 1, column="colour"),
    Filter("like", "a", column="user"),  # type: ignore[arg-type]
    Filter("like", "a", meta="s"),  # type: ignore[arg-type]
    Filter("eq", 1, column="user"),
    Filter("eq", True, column="message_count"),
    Filter("eq", 10**16, column="message_count"),
    Filter("eq", NAIVE, column="created_at"),
    Filter("lt", None, column="user"),
    Filter("contains", 1, column="message_count"),
    Filter("eq", [], meta="l"),
    Filter("eq", float("nan"), meta="n"),
    Filter("lt", None, meta="n"),
    Filter("lt", True, meta="n"),
]


@pytest.mark.parametrize("given", REFUSED, ids=repr)
def test_the_oracle_refuses_invalid_filters(given: Any) -> None:
    with pytest.raises(InvalidFilter):
        oracle.check([given], oracle.SESSION_COLUMNS, Limits())


def test_the_oracle_accepts_filters_and_values_up_to_the_limits() -> None:
    limits = Limits(filters=2, filter_values=3)
    one = Filter("in", [1, 2, 3], meta="n")
    oracle.check([one, one], oracle.SESSION_COLUMNS, limits)
    oracle.check([Filter("ge", datetime.now(UTC), column="created_at")], oracle.MESSAGE_COLUMNS, limits)
    for many in ([one] * 3, [Filter("in", [1] * 4, meta="n")]):
        with pytest.raises(LimitExceeded):
            oracle.check(many, oracle.SESSION_COLUMNS, limits)
