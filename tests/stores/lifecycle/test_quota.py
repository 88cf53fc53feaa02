"""The quota: snapshots that must stay count first, then the newest, and no object counts twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, TenantHandle
from holdfast.stores.lifecycle.retention import quota
from holdfast.sync_runner import step
from holdfast.types import Snapshot
from tests.stores.lifecycle.conftest import MIB, Bench, Lines
from tests.stores.lifecycle.forging import body, forge, intact

SIZE = 300_000
"""Of a MiB, three fit."""


class World:
    def __init__(self, holdfast: Holdfast, clock: FixedClock) -> None:
        self.holdfast, self.clock = holdfast, clock
        self.acme: TenantHandle = holdfast.tenant("acme")
        self.session = self.acme.sessions.create().id

    def run(self) -> str:
        return self.acme.runs.start(self.session).id

    def forge(self, run: str, *numbers: int, on: Snapshot | None = None) -> Snapshot:
        self.clock.advance(1)
        return forge(self.acme, run, [body(number, SIZE) for number in numbers], on=on)

    def needed(self) -> quota.QuotaUsage | None:
        return step(quota.measure(self.acme._engine, self.acme._scope))

    def swept(self, mib: int = 1) -> list[str]:
        """The snapshots that a sweep removes from a tenant with such a quota; as the plan says."""
        self.holdfast.tenants.set_quota("acme", snapshot_quota_mib=mib)
        before = {snapshot.id for snapshot in self.acme.snapshots.list()}
        plan = self.acme.retention.plan()
        assert self.acme.retention.sweep() == plan
        left = [snapshot.id for snapshot in self.acme.snapshots.list()]
        assert intact(self.acme, left)
        assert plan.per_tenant_cap.count == len(before - {*left})
        return sorted(before - {*left})


@pytest.fixture
def world() -> Iterator[World]:
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock) as holdfast:
        yield World(holdfast, clock)


def ids(*snapshots: Snapshot) -> list[str]:
    return sorted(snapshot.id for snapshot in snapshots)


def test_a_tenant_within_its_quota_is_not_read(world: World) -> None:
    run = world.run()
    for number in range(3):
        world.forge(run, number)
    assert world.needed() is None
    assert world.acme.retention.plan().used_bytes is None
    assert world.swept() == []


def test_a_shared_object_counts_once(world: World) -> None:
    run = world.run()
    made = [world.forge(run, 0, 1, number % 2 + 2) for number in range(8)]
    world.holdfast.tenants.set_quota("acme", snapshot_quota_mib=1)
    result = world.needed()
    assert result is not None
    assert result.used_bytes == 3 * SIZE, "the newest, without a second one"
    assert world.swept() == ids(*made[:7])
    more = [world.forge(run, 0, 1, 3) for _ in range(5)]
    assert world.swept() == [], "an equal tree takes no more space"
    assert {removed.id for removed in more} < {snapshot.id for snapshot in world.acme.snapshots.list()}


def test_the_oldest_are_removed_until_the_rest_fits(world: World) -> None:
    one, other = world.run(), world.run()
    made = [world.forge(run, number) for number, run in enumerate((one, other, one, other, one))]
    assert world.swept() == ids(*made[:2])
    assert world.swept(2) == []
    assert world.swept() == []


def test_snapshots_are_removed_by_age_and_not_by_size(world: World) -> None:
    """By age, and not by the space each would free: a rewind needs the latest snapshots."""
    run = world.run()
    small, large = world.forge(run, 0), world.forge(run, 1, 2, 3)
    newest = world.forge(run, 4)
    assert world.swept() == ids(small, large)
    assert [snapshot.id for snapshot in world.acme.snapshots.list()] == [newest.id]


def test_the_newest_of_every_run_stays_and_counts_first(world: World) -> None:
    runs = [world.run() for _ in range(4)]
    old = [world.forge(run, 10 + number) for number, run in enumerate(runs)]
    new = [world.forge(run, number) for number, run in enumerate(runs)]
    assert world.swept() == ids(*old), "four do not fit, but none may be removed"
    result = world.needed()
    assert result is not None
    assert (result.used_bytes, result.cut) == (4 * SIZE, None)
    world.acme.runs.cancel(runs[0])
    assert world.swept() == [], "whether ended or not"
    assert result.over_bytes == 4 * SIZE - result.quota_bytes > 0
    assert len(new) == len(runs)


def test_held_snapshots_count_towards_the_quota(world: World) -> None:
    one, other, live = world.run(), world.run(), world.run()
    held = [world.forge(one, number) for number in range(3)]
    free = [world.forge(other, number + 5) for number in range(3)]
    newest = world.forge(live, 9)
    world.acme.retention.hold("why", run_id=one)
    assert world.swept() == ids(*free[:2])
    assert world.swept(0) == []
    hold = world.acme.retention.hold("all")
    assert world.swept(0) == []
    for hold in world.acme.retention.holds():
        world.acme.retention.release(hold.id)
    assert hold.reason == "all"
    assert world.swept(0) == ids(*held[:2])
    assert {snapshot.id for snapshot in world.acme.snapshots.list()} == {held[2].id, free[2].id, newest.id}


def test_a_hold_on_a_session_holds_all_its_runs(world: World) -> None:
    theirs = world.acme.runs.start(world.acme.sessions.create().id)
    kept = [world.forge(theirs.id, number) for number in range(3)]
    ours = world.run()
    removed = [world.forge(ours, number + 5) for number in range(3)]
    world.acme.retention.hold("why", session_id=theirs.session_id)
    assert world.swept(0) == ids(*removed[:2])
    world.acme.retention.set_policy(per_run=1, grace_s=0)
    world.acme.runs.cancel(theirs.id)
    assert world.swept(0) == []
    assert intact(world.acme, ids(*kept))


def test_an_unreadable_tree_does_not_stop_a_sweep(world: World) -> None:
    run = world.run()
    broken = world.forge(run, 0)
    others = [world.forge(run, number) for number in range(1, 5)]
    removed = "DELETE FROM objects WHERE tenant_id = 'acme' AND digest IN (SELECT manifest FROM snapshot_layers WHERE id = ?1)"
    connection: Any = world.acme._engine._connection  # type: ignore[attr-defined]
    connection.execute(removed, (broken.layer_id,))
    world.holdfast.tenants.set_quota("acme", snapshot_quota_mib=1)
    world.acme.retention.sweep()
    assert [snapshot.id for snapshot in world.acme.snapshots.list()][::-1] == [other.id for other in others[1:]]


def test_the_quota_covers_snapshots_of_every_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "PAGE", 2)
    run = world.run()
    world.acme.retention.set_policy(per_run=50)
    made = [world.forge(run, number) for number in range(9)]
    assert world.swept() == ids(*made[:6])


def test_other_objects_do_not_count_towards_the_quota(world: World) -> None:
    run = world.run()
    made = [world.forge(run, number) for number in range(3)]
    world.acme.objects.put([body(99, 5 * MIB)], holder="another")
    assert world.swept() == []
    result = world.needed()
    assert result is not None
    assert result.used_bytes == 3 * SIZE
    assert len(made) == len(world.acme.snapshots.list())


def test_snapshots_needed_by_a_pending_rewind_stay(local: Bench, lines: Lines) -> None:
    acme, run = local.tenant(), local.run()
    made = [local.capture(run, size=SIZE).id for _ in range(4)]
    _note_rewind(acme, run, snapshot=made[0], dirty=made[1])
    acme.retention.set_policy(per_run=1)
    local.quota(0)
    acme.retention.sweep()
    assert local.ids() == [made[0], made[1], made[3]]
    local.capture(run, size=SIZE)
    assert {made[0], made[1]} < {*local.ids()}, "a capture does not remove them either"
    assert made[0] not in lines.deleted()


def _note_rewind(acme: TenantHandle, run: str, *, snapshot: str, dirty: str) -> None:
    """A rewind whose tree is not yet where the run is."""
    from holdfast.core.queries import Query
    from holdfast.engines.dialect import Dialect

    columns = "tenant_id, id, run_id, from_step, to_step, status, snapshot, dirty"
    columns += ", branch_before, branch_after, anchor, run_before"
    values = ":tenant_id, :id, :run_id, 2, 1, 'rewinding', :snapshot, :dirty, 0, 0, 'x', '{}'"
    text = f"INSERT INTO rewinds ({columns}, created_at) VALUES ({values}, :now_at)"
    params = acme._scope.params(
        id=acme._scope.ids.new(), run_id=run, snapshot=snapshot, dirty=dirty, now_at=acme.clock.now_us()
    )
    query = Query("planted", dict.fromkeys(Dialect, text))
    step(acme._engine.write(lambda connection: query.all(connection, params)))
