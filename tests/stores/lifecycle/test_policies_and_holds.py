"""Policies of tenants and runs, holds, and rounds over tenants: every branch that needs no files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, RetentionPolicy, SeededIds, TenantHandle
from holdfast.core.paging import encode_cursor
from holdfast.core.scope import Scope
from holdfast.errors import Conflict, Fenced, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.retention_worker import RetentionWorker, Round
from holdfast.stores.lifecycle.retention import plans, sweeps
from holdfast.stores.lifecycle.retention.sweeps import LEASE_S, Sweep, SweepCounts
from holdfast.stores.workspace import retention_rules as rules
from holdfast.sync_runner import step
from holdfast.types import SweepResult
from tests.errors import raises
from tests.stores.lifecycle.forging import body, forge

DAY = 86_400
UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
USUAL = RetentionPolicy(10, 500, 7 * DAY)
LIMITS = Limits(list_rows=3, name_bytes=60, text_bytes=40)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def holdfast(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock, limits=LIMITS, ids=SeededIds(8)) as opened:
        yield opened


@pytest.fixture
def acme(holdfast: Holdfast) -> TenantHandle:
    return holdfast.tenant("acme")


def run_of(tenant: TenantHandle) -> str:
    return tenant.runs.start(tenant.sessions.create().id).id


def actions(tenant: TenantHandle) -> list[tuple[str, str, str]]:
    return [(deed.action, deed.subject_kind, deed.actor) for deed in tenant.activity.list()][::-1]


@pytest.mark.parametrize(("field", "least"), [("per_run", 1), ("grace_s", 0)])
def test_the_smallest_and_largest_numbers_are_accepted(acme: TenantHandle, field: str, least: int) -> None:
    for number in (least, 2**31 - 1):
        assert getattr(acme.retention.set_policy(**{field: number}), field) == number  # type: ignore[arg-type]
        assert getattr(acme.retention.policy(), field) == number
    for number in (least - 1, 2**31):
        with raises(InvalidInput, field=field):
            acme.retention.set_policy(**{field: number})  # type: ignore[arg-type]


def test_postgres_accepts_the_same_numbers(postgres_url: str) -> None:
    with Holdfast(postgres_url) as holdfast:
        existing = holdfast.tenant("acme")
        run = run_of(existing)
        holdfast.tenants.set_quota("acme", snapshot_quota_mib=2**40 - 1)
        largest = RetentionPolicy(2**31 - 1, 2**40 - 1, 2**31 - 1)
        assert existing.retention.set_policy(per_run=2**31 - 1, grace_s=2**31 - 1) == largest
        assert existing.retention.set_policy(per_run=2**31 - 1, run_id=run) == largest
        assert existing.retention.plan() == SweepResult() == existing.retention.sweep()


def test_each_number_is_changed_separately(acme: TenantHandle) -> None:
    acme.retention.set_policy(per_run=3)
    assert acme.retention.set_policy(grace_s=5) == RetentionPolicy(3, 500, 5)
    assert acme.retention.set_policy(per_run=4) == RetentionPolicy(4, 500, 5)


def test_a_setting_of_a_run_overrides_the_tenants(acme: TenantHandle) -> None:
    run, other = run_of(acme), run_of(acme)
    acme.retention.set_policy(per_run=3, run_id=run)
    acme.retention.set_policy(per_run=7)
    assert (acme.retention.policy(run_id=run).per_run, acme.retention.policy(run_id=other).per_run) == (3, 7)
    assert acme.retention.clear_policy().per_run == 10
    assert acme.retention.policy(run_id=run).per_run == 3, "the policy of the run is not that of the tenant"
    assert acme.retention.clear_policy(run_id=run).per_run == 10


def test_clearing_the_policy_of_a_run_clears_its_keep_time(acme: TenantHandle) -> None:
    run = run_of(acme)
    acme.retention.keep_snapshots_for(run, seconds=30 * DAY)
    acme.retention.set_policy(per_run=3, run_id=run)
    assert acme.retention.policy(run_id=run) == RetentionPolicy(3, 500, 30 * DAY)
    assert acme.retention.clear_policy(run_id=run) == USUAL


def test_clearing_an_unset_policy_changes_nothing(acme: TenantHandle) -> None:
    run = run_of(acme)
    assert acme.retention.clear_policy() == USUAL == acme.retention.clear_policy(run_id=run)


@pytest.mark.parametrize("wrong", ["", "7", "\x00", 7], ids=ascii)
def test_an_invalid_run_or_session_id_is_refused_everywhere(acme: TenantHandle, wrong: Any) -> None:
    keeping = acme.retention
    calls: list[tuple[str, Callable[[], object]]] = [
        ("run", lambda: keeping.policy(run_id=wrong)),
        ("run", lambda: keeping.set_policy(per_run=1, run_id=wrong)),
        ("run", lambda: keeping.clear_policy(run_id=wrong)),
        ("run", lambda: keeping.keep_snapshots_for(wrong, seconds=1)),
        ("run", lambda: keeping.hold("why", run_id=wrong)),
        ("session", lambda: keeping.hold("why", session_id=wrong)),
        ("hold", lambda: keeping.hold("why", id=wrong)),
        ("hold", lambda: keeping.release(wrong)),
    ]
    for noun, call in calls:
        with raises(InvalidInput, field=f"{noun} id"):
            call()


def test_the_activity_log_records_each_change_and_its_actor(acme: TenantHandle) -> None:
    run = run_of(acme)
    with acme.acting(user="grace"):
        acme.retention.set_policy(per_run=3)
        acme.retention.keep_snapshots_for(run, seconds=100 * DAY)
    acme.retention.clear_policy(run_id=run)
    noted = {(deed.subject_kind, deed.action): deed for deed in acme.activity.list()}
    assert noted["tenant", "retention.policy_set"].details == {"per_run": 3}
    assert noted["run", "retention.policy_set"].details == {"keep_s": 90 * DAY}, (
        "the stored number, not the requested one"
    )
    assert noted["run", "retention.policy_set"].actor == "grace"
    assert noted["run", "retention.policy_cleared"].subject_id == run
    assert (noted["run", "retention.policy_cleared"].actor, noted["run", "retention.policy_cleared"].details) == (
        "",
        {},
    )


def test_a_rejected_change_is_not_in_the_activity_log(acme: TenantHandle) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("run", lambda: acme.retention.set_policy(per_run=1, run_id=UNKNOWN_ID)),
        ("run", lambda: acme.retention.clear_policy(run_id=UNKNOWN_ID)),
        ("session", lambda: acme.retention.hold("why", session_id=UNKNOWN_ID)),
        ("hold", lambda: acme.retention.release(UNKNOWN_ID)),
    ]
    for noun, call in calls:
        with raises(NotFound, noun=noun, key=UNKNOWN_ID):
            call()
    assert acme.activity.count() == 0


def test_a_hold_on_a_missing_object_creates_no_tenant(holdfast: Holdfast, acme: TenantHandle) -> None:
    with pytest.raises(NotFound):
        acme.retention.hold("why", run_id=UNKNOWN_ID)
    assert holdfast.tenants.list() == []
    acme.retention.hold("everything, including future data")
    assert [tenant.id for tenant in holdfast.tenants.list()] == ["acme"]


def test_a_run_of_another_tenant_cannot_be_held(holdfast: Holdfast, acme: TenantHandle) -> None:
    existing = holdfast.tenant("zenith")
    run = run_of(existing)
    for field, id in (("run_id", run), ("session_id", existing.runs.get(run).session_id)):
        with raises(NotFound, noun=field.removesuffix("_id"), key=id):
            acme.retention.hold("why", **{field: id})


@pytest.mark.parametrize("reason", ["\x00", "a\ud800", "😀" * 10, " ", "x" * 40], ids=ascii)
def test_a_hold_may_have_any_reason_and_actor(acme: TenantHandle, reason: str) -> None:
    placed = acme.retention.hold(reason, placed_by=reason, id=UNKNOWN_ID)
    assert (placed.reason, placed.placed_by) == (reason, reason)
    assert acme.retention.hold(reason, id=UNKNOWN_ID.upper()) == placed
    assert acme.retention.holds() == [placed]
    assert acme.retention.release(UNKNOWN_ID, reason=reason) == placed
    assert [deed.reason for deed in acme.activity.list()] == [reason, reason]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"reason": ""}, InvalidInput), ({"reason": None}, InvalidInput), ({"reason": "x" * 41}, LimitExceeded),
        ({"placed_by": "x" * 61}, LimitExceeded), ({"placed_by": 7}, InvalidInput),
    ],
    ids=["empty", "none", "long", "by-long", "by-number"],
)  # fmt: skip
def test_an_invalid_hold_is_refused(acme: TenantHandle, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        acme.retention.hold(**{"reason": "why", **given})
    assert acme.retention.holds() == []


def test_an_id_of_a_hold_cannot_be_reused_for_another_subject(acme: TenantHandle) -> None:
    run = run_of(acme)
    session = acme.runs.get(run).session_id
    acme.retention.hold("why", id=UNKNOWN_ID)
    for other in ({"run_id": run}, {"session_id": session}, {"reason": "Why"}):
        with raises(Conflict, reason="other_content"):
            acme.retention.hold(**{"reason": "why", "id": UNKNOWN_ID, **other})
    assert [hold.run_id for hold in acme.retention.holds()] == [None]
    assert len(acme.activity.list(action="hold.placed")) == 1


def test_two_holds_on_one_run_are_released_separately(acme: TenantHandle) -> None:
    run = run_of(acme)
    kept = forge(acme, run, [body(1, 40)])
    first, second = acme.retention.hold("one", run_id=run), acme.retention.hold("other", run_id=run)
    for hold in (first, second):
        with raises(Conflict, reason="held"):
            acme.snapshots.delete([kept.id], reason="by hand")
        acme.retention.release(hold.id)
    assert [snapshot.id for snapshot in acme.snapshots.delete([kept.id], reason="by hand")] == [kept.id]


def test_the_acting_user_releases_a_hold(acme: TenantHandle) -> None:
    with acme.acting(user="ada"):
        hold = acme.retention.hold("why")
    with acme.acting(user="grace"):
        acme.retention.release(hold.id)
    assert actions(acme) == [("hold.placed", "hold", "ada"), ("hold.released", "hold", "grace")]


def test_a_list_of_holds_without_limit_is_complete_or_refused(acme: TenantHandle) -> None:
    placed = [acme.retention.hold(f"case {number}") for number in range(3)]
    assert acme.retention.holds() == placed
    placed.append(acme.retention.hold("one more"))
    with raises(LimitExceeded, limit="list_rows", maximum=3):
        acme.retention.holds()
    page = acme.retention.holds(limit=3)
    assert [*page, *acme.retention.holds(limit=3, cursor=page.next)] == placed
    for cursor in (encode_cursor("erasures", UNKNOWN_ID), encode_cursor("holds", 7), encode_cursor("holds")):
        with raises(InvalidFilter, field="cursor"):
            acme.retention.holds(limit=1, cursor=cursor)


@pytest.mark.parametrize("what", ["run", "session", "tenant"])
def test_a_hold_protects_its_target_and_the_plan_reports_it(acme: TenantHandle, what: str) -> None:
    run, other = run_of(acme), run_of(acme)
    session = acme.runs.get(run).session_id
    acme.retention.set_policy(per_run=2)
    for run_id in (run, other):
        for number in range(2):
            forge(acme, run_id, [body(number, 40)])
    acme.retention.set_policy(per_run=1)
    on = {"run": {"run_id": run}, "session": {"session_id": session}, "tenant": {}}[what]
    acme.retention.hold("case", **on)
    plan = acme.retention.plan()
    assert (plan.held_runs, plan.per_run_cap.count) == ((2, 0) if what == "tenant" else (1, 1))
    assert acme.retention.sweep() == plan
    assert len(acme.snapshots.list(run_id=run)) == 2


def test_a_held_run_may_exceed_its_cap(acme: TenantHandle) -> None:
    run = run_of(acme)
    acme.retention.set_policy(per_run=1)
    hold = acme.retention.hold("case", run_id=run)
    made = [forge(acme, run, [body(number, 40)]).id for number in range(3)]
    assert len(acme.snapshots.list()) == 3
    acme.retention.release(hold.id)
    made.append(forge(acme, run, [body(9, 40)]).id)
    assert [snapshot.id for snapshot in acme.snapshots.list()] == made[-1:], "the next capture removes the excess"


@pytest.mark.parametrize("page", [1, 2, 3])
def test_a_sweep_reaches_the_runs_of_every_page(acme: TenantHandle, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(sweeps, "RUNS_PAGE", page)
    monkeypatch.setattr(sweeps, "BATCH", 1)
    runs = [run_of(acme) for _ in range(3)]
    for run in runs:
        for number in range(3):
            forge(acme, run, [body(number, 40)])
    acme.retention.set_policy(per_run=1)
    expected = SweepResult(per_run_cap=acme.retention.plan().per_run_cap)
    assert expected.per_run_cap.count == 6
    assert acme.retention.sweep() == expected
    assert [len(acme.snapshots.list(run_id=run)) for run in runs] == [1, 1, 1]
    assert acme.retention.plan() == SweepResult() == acme.retention.sweep()


def test_a_plan_changes_nothing_and_matches_the_sweep(acme: TenantHandle, clock: FixedClock) -> None:
    ended, live = run_of(acme), run_of(acme)
    for run in (ended, live):
        forge(acme, run, [body(1, 40)])
    acme.runs.cancel(ended)
    clock.advance(7 * DAY)
    before = (acme.snapshots.list(), acme.activity.count())
    plan = step(plans.RetentionPlan(acme._engine, Scope("acme", acme._scope)).make())
    assert (plan.grace_expired.count, plan.count) == (1, 1)
    assert (acme.snapshots.list(), acme.activity.count()) == before
    assert acme.retention.sweep() == plan


def test_a_sweep_or_a_plan_creates_no_tenant(holdfast: Holdfast) -> None:
    absent = holdfast.tenant("absent")
    assert (absent.retention.plan(), absent.retention.sweep(), absent.retention.policy()) == (
        SweepResult(),
        SweepResult(),
        USUAL,
    )
    assert holdfast.tenants.list() == []


@pytest.mark.parametrize("idle", [-1, 1.5, "1", True, 2**31], ids=repr)
def test_an_invalid_idle_time_is_refused(acme: TenantHandle, idle: Any) -> None:
    with raises(InvalidInput, field="idle_s"):
        acme.retention.sweep(idle_s=idle)


def test_a_sweep_needs_a_holder_and_releases_its_lease_when_it_fails(
    acme: TenantHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme.sessions.create()
    with raises(InvalidInput, field="holder"):
        acme.retention.sweep(holder="")

    async def fail(self: Sweep) -> SweepResult:
        raise Conflict("broken off")

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "carry_out", fail)
        with pytest.raises(Conflict, match="broken off"):
            acme.retention.sweep(holder="one")
    assert acme.retention.sweep(holder="other") == SweepResult(), "the lease was released"


def test_the_release_of_an_old_sweep_does_not_end_the_new_one(acme: TenantHandle, clock: FixedClock) -> None:
    acme.sessions.create()
    old, new = (Sweep(acme._engine, Scope("acme", acme._scope)) for _ in range(2))
    step(old.claim("old"))
    clock.advance(LEASE_S)
    step(new.claim("new"))
    step(old.release())
    with raises(Conflict, reason="being_swept"):
        acme.retention.sweep()
    with pytest.raises(Fenced, match="'acme'"):
        step(old.erase())
    step(new.release())
    assert acme.retention.sweep() == SweepResult()


def test_sweep_counts_add_up() -> None:
    assert SweepCounts().plus(2, 10).plus(0, 0).plus(1, 5) == SweepCounts(3, 15)
    swept = SweepResult(per_tenant_cap=SweepCounts(4, 1), erasure=SweepCounts(2, 1), held_runs=9)
    assert (swept.count, swept.with_removed("grace_expired", 1, 8).grace_expired) == (6, SweepCounts(1, 8))


def test_log_lines_have_their_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, rules.LOGGER)
    rules.write_line({"event": "a", "b": "\ud800"})
    rules.write_line({"event": "c"}, is_error=True)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", '{"event":"a","b":"\\ud800"}'),
        ("ERROR", '{"event":"c"}'),
    ]


@pytest.mark.parametrize("every", [0, -1, True, "1", None, float("nan"), float("inf"), 2**31], ids=repr)
def test_a_worker_refuses_an_invalid_interval(every: Any) -> None:
    with raises(InvalidInput, field="every_s"):
        RetentionWorker(None, every_s=every)  # type: ignore[arg-type]


def test_a_round_counts_swept_skipped_and_failed_tenants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> list[Round]:
        async with AsyncHoldfast(str(tmp_path / "a.db"), clock=FixedClock()) as holdfast:
            for name in ("a", "b", "busy"):
                await holdfast.tenant(name).sessions.create()
            await Sweep(holdfast._engine, Scope("busy", holdfast._setting)).claim("another")
            await holdfast.erasures.request("b")
            worker = RetentionWorker(holdfast, holder="me", tenants=["a", "busy", "", "a"])
            rounds = [await worker.round(idle_s=60)]
            rounds.append(await RetentionWorker(holdfast, holder="me").round())
            worker.stop()
            rounds.append(await worker.round())
            return rounds

    first, second, stopped = asyncio.run(use())
    assert first == Round(tenants=1, skipped=2, failed=1), (
        "a second sweep within the minute is skipped, and b is not swept"
    )
    assert second == Round(tenants=1, skipped=1, erased=1)
    assert stopped == Round()
    assert " could not be swept: InvalidInput: tenant must not be empty" in caplog.text


def test_a_round_reaches_tenants_of_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.retention_worker.PAGE", 2)

    async def use() -> Round:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            for name in ("a", "b", "\x00", "\ud800", "名"):
                await holdfast.tenants.create(name)
            return await RetentionWorker(holdfast).round()

    assert asyncio.run(use()) == Round(tenants=5)


def test_workers_have_different_names(tmp_path: Path) -> None:
    async def use() -> list[str]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            return [RetentionWorker(holdfast, ids=SeededIds(seed)).holder for seed in (1, 2)]

    one, other = asyncio.run(use())
    assert one != other
    assert one.rpartition(":")[0] == other.rpartition(":")[0], "both have the name of the process"
