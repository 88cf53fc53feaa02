"""Retention: policies are effective as set and never shorter than promised, and every caller sees the holds."""

from __future__ import annotations

from typing import Any

from holdfast.core.paging import Page
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, NotFound
from holdfast.stores.lifecycle.retention.sweeps import SweepResult
from holdfast.stores.workspace.retention_rules import Hold, RetentionPolicy
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.contract.cases.world import World, flat, raises, uuid_of

DAY = 86_400


@contract()
async def policies_are_effective_and_holds_stay_until_released(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    run = await acme.runs.start(session.id)
    keeping = acme.retention
    assert await keeping.policy() == RetentionPolicy(10, 500, 7 * DAY) == await keeping.policy(run_id=run.id)
    assert await keeping.set_policy(per_run=3) == RetentionPolicy(3, 500, 7 * DAY)
    assert await keeping.set_policy(grace_s=0) == RetentionPolicy(3, 500, 0)
    assert await keeping.set_policy(per_run=5, run_id=run.id.upper()) == RetentionPolicy(5, 500, 0)
    assert await keeping.keep_snapshots_for(run.id, seconds=DAY) == RetentionPolicy(5, 500, DAY)
    assert await keeping.keep_snapshots_for(run.id, seconds=91 * DAY) == RetentionPolicy(5, 500, 90 * DAY)
    assert await keeping.policy() == RetentionPolicy(3, 500, 0)
    assert await keeping.clear_policy(run_id=run.id) == RetentionPolicy(3, 500, 0)
    assert await keeping.clear_policy() == RetentionPolicy(10, 500, 7 * DAY)
    assert await world.tenant("zenith").retention.policy() == RetentionPolicy(10, 500, 7 * DAY)
    assert await keeping.plan() == SweepResult() == await keeping.sweep(holder="me")
    assert {deed.action for deed in await acme.activity.list()} == {"retention.policy_set", "retention.policy_cleared"}
    await _wrong(world, run.id)
    await _holds(world, run.id, session.id)


async def _wrong(world: World, run_id: str) -> None:
    keeping = world.tenant().retention
    wrong: list[dict[str, Any]] = [{}, {"per_run": 0}, {"per_run": "3"}, {"per_run": True}, {"grace_s": -1}]
    wrong += [{"grace_s": 2**31}, {"grace_s": 1, "run_id": run_id}, {"per_run": 1, "run_id": "no id"}]
    for options in wrong:
        with raises(InvalidInput):
            await keeping.set_policy(**options)
    for strange in (-1, 1.5, "1", None, True):
        with raises(InvalidInput):
            await keeping.keep_snapshots_for(run_id, seconds=strange)  # type: ignore[arg-type]
    absent = uuid_of("absent")
    for name in ("acme", "zenith"):
        other, missing = world.tenant(name).retention, absent if name == "acme" else run_id
        with raises(NotFound, noun="run", key=missing):
            await other.policy(run_id=missing)
        with raises(NotFound, noun="run", key=missing):
            await other.set_policy(per_run=1, run_id=missing)
        with raises(NotFound, noun="run", key=missing):
            await other.keep_snapshots_for(missing, seconds=1)
        with raises(NotFound, noun="run", key=missing):
            await other.hold("why", run_id=missing)


async def _holds(world: World, run_id: str, session_id: str) -> None:
    acme, keeping = world.tenant(), world.tenant().retention
    with acme.acting(user="grace"):
        first = await keeping.hold("a case", run_id=run_id, id=uuid_of("hold"))
    assert (first.run_id, first.session_id, first.reason, first.placed_by) == (run_id, None, "a case", "grace")
    assert await keeping.hold("a case", run_id=run_id, id=uuid_of("hold")) == first
    with raises(Conflict):
        await keeping.hold("another", run_id=run_id, id=uuid_of("hold"))
    with raises(InvalidInput):
        await keeping.hold("both", run_id=run_id, session_id=session_id)
    with raises(InvalidInput):
        await keeping.hold("")
    with raises(Conflict, reason="held"):
        await acme.sessions.purge(session_id)
    more = [await keeping.hold("a session", session_id=session_id), await keeping.hold("all")]
    result: list[Page[Hold]] = []
    cursor = None
    while not result or cursor is not None:
        page = await keeping.holds(limit=1, cursor=cursor)
        result.append(page)
        cursor = page.next
    assert flat(result) == await keeping.holds() == sorted([first, *more], key=lambda hold: hold.id)
    for garbage in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await keeping.holds(limit=1, cursor=garbage)
    with raises(NotFound, noun="hold", key=first.id):
        await world.tenant("zenith").retention.release(first.id)
    for hold in (first, *more):
        assert await keeping.release(hold.id, reason="closed") == hold
    with raises(NotFound, noun="hold", key=first.id):
        await keeping.release(first.id)
    placed = await acme.activity.list(action="hold.placed", where=[])
    released = await acme.activity.list(action="hold.released")
    assert [len(placed), len(released), {hold.reason for hold in released}] == [3, 3, {"closed"}]
    await acme.sessions.purge(session_id)
