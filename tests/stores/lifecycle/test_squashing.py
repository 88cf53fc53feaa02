"""Squashing removes layers that no snapshot needs, and keeps the trees based on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, TenantHandle
from holdfast.core.scope import Scope
from holdfast.errors import Stale
from holdfast.stores.lifecycle.erasures import AsyncErasures
from holdfast.stores.workspace import layers
from holdfast.stores.workspace.squash import Squasher
from holdfast.sync_runner import step
from holdfast.types import Erasures, Snapshot
from tests.stores.lifecycle.conftest import Bench
from tests.stores.lifecycle.forging import body, forge, intact

SIZE = 3_000


@pytest.fixture
def acme() -> Any:
    with Holdfast(":memory:", clock=FixedClock()) as holdfast:
        yield holdfast.tenant("acme")


def new_run(tenant: TenantHandle) -> str:
    return tenant.runs.start(tenant.sessions.create().id).id


def chain(tenant: TenantHandle, run: str, trees: list[list[int]], on: Snapshot | None = None) -> list[Snapshot]:
    """Snapshots, each the difference to the one before."""
    made: list[Snapshot] = []
    for tree in trees:
        tenant.clock.advance(1)  # type: ignore[attr-defined]
        made.append(forge(tenant, run, [body(number, SIZE) for number in tree], on=made[-1] if made else on))
    return made


def squash(tenant: TenantHandle) -> int:
    return step(Squasher(tenant._engine, tenant._scope).all())


def remove(tenant: TenantHandle, removed: list[Snapshot]) -> None:
    tenant.snapshots.delete([snapshot.id for snapshot in removed], reason="test")


def numbers(tenant: TenantHandle, snapshot: Snapshot) -> set[int]:
    """The bodies in a tree, by their numbers."""
    return {n for n in range(40) for path in tenant.snapshots.tree(snapshot.id).entries if path == digest(n)}


def digest(number: int) -> str:
    from holdfast.core.objects import digest_of

    return digest_of(body(number, SIZE)).hex()


def bytes_after_prune(tenant: TenantHandle) -> int:
    """The stored bytes after all objects without references were removed."""
    tenant.objects.prune(grace_s=0)
    return tenant.objects.usage().stored_bytes


def test_a_chain_without_its_first_snapshots_starts_at_the_first_kept_one(acme: TenantHandle) -> None:
    made = chain(acme, new_run(acme), [[0, 1], [0, 2], [0, 3], [0, 3, 4]])
    remove(acme, made[:2])
    assert acme.snapshots.usage().layers == 4
    assert bytes_after_prune(acme) > 5 * SIZE, "nothing is freed yet: other layers are based on it"
    assert squash(acme) == 2
    assert acme.snapshots.usage().layers == 2
    assert 3 * SIZE <= bytes_after_prune(acme) < 4 * SIZE, "bodies 1 and 2 were removed, 0, 3 and 4 were kept"
    assert [numbers(acme, snapshot) for snapshot in made[2:]] == [{0, 3}, {0, 3, 4}]
    assert [acme.snapshots.get(snapshot.id).depth for snapshot in made[2:]] == [0, 1]
    assert intact(acme, [snapshot.id for snapshot in made[2:]])
    assert squash(acme) == 0, "a second call has nothing to do"


def test_squashing_in_the_middle_removes_only_the_layers_between(acme: TenantHandle) -> None:
    made = chain(acme, new_run(acme), [[0], [1], [2], [3]])
    remove(acme, made[1:3])
    assert squash(acme) == 2
    assert [numbers(acme, snapshot) for snapshot in (made[0], made[3])] == [{0}, {3}]
    assert acme.snapshots.usage().layers == 2
    assert 2 * SIZE <= bytes_after_prune(acme) < 3 * SIZE


def test_squashing_a_fork_keeps_both_sides(acme: TenantHandle) -> None:
    run = new_run(acme)
    root = chain(acme, run, [[0, 1, 2]])[0]
    left, right = chain(acme, run, [[0, 3], [3]], on=root), chain(acme, run, [[1, 4]], on=root)
    remove(acme, [root])
    assert squash(acme) == 1
    assert [numbers(acme, snapshot) for snapshot in (*left, *right)] == [{0, 3}, {3}, {1, 4}]
    assert acme.snapshots.usage().layers == 3
    assert 4 * SIZE <= bytes_after_prune(acme) < 5 * SIZE, "body 2 was removed"
    assert intact(acme, [snapshot.id for snapshot in (*left, *right)])


def test_later_captures_are_based_on_the_squashed_layer(acme: TenantHandle) -> None:
    run = new_run(acme)
    made = chain(acme, run, [[0], [0, 1], [0, 1, 2]])
    remove(acme, made[:2])
    squash(acme)
    more = chain(acme, run, [[0, 1, 2, 3], [3]], on=acme.snapshots.get(made[2].id))
    assert [snapshot.depth for snapshot in more] == [1, 2]
    assert [numbers(acme, snapshot) for snapshot in more] == [{0, 1, 2, 3}, {3}]
    remove(acme, [made[2], more[0]])
    assert squash(acme) == 2
    assert numbers(acme, more[1]) == {3}
    assert SIZE <= bytes_after_prune(acme) < 2 * SIZE


def test_layers_are_not_squashed_without_a_gain(acme: TenantHandle) -> None:
    run = new_run(acme)
    first = forge(acme, run, [])
    many = forge(acme, run, [bytes([n]) * 10 for n in range(200)], on=first)
    remove(acme, [first])
    assert squash(acme) == 0, "the manifest would take more than the empty layer below"
    assert len(acme.snapshots.tree(many.id).entries) == 200


def test_two_runs_in_one_directory_share_layers_until_one_is_removed(local: Bench) -> None:
    one, other = local.run(), local.run()
    first = [local.capture(one, size=40_000, of="shared") for _ in range(3)]
    second = [local.capture(other, size=40_000, of="shared") for _ in range(2)]
    existing = local.tenant()
    before = {snapshot.id: existing.snapshots.read(snapshot.id, "file") for snapshot in second}
    local.end(one)
    local.clock.advance(8 * 86_400)
    assert existing.retention.sweep().grace_expired.count == 3
    local.clock.advance(3_600)
    existing.retention.sweep()
    assert existing.objects.usage().stored_bytes < 3 * 40_000, "objects of only the first run were removed"
    assert {snapshot.id: existing.snapshots.read(snapshot.id, "file") for snapshot in second} == before
    assert not {snapshot.id for snapshot in first} & {*local.ids()}
    third = local.capture(other, size=40_000, of="shared")
    assert len(existing.snapshots.read(third.id, "file")) == 40_000


def test_a_held_snapshot_keeps_nothing_of_erased_layers_below_it(acme: TenantHandle) -> None:
    one, other = new_run(acme), new_run(acme)
    removed = chain(acme, one, [[0, 1], [0, 1, 2]])
    kept = chain(acme, other, [[0, 3]], on=removed[1])
    holdfast_of(acme).erasures.request("acme", event_id="e")
    hold = acme.retention.hold("a case", run_id=other)
    assert not holdfast_of(acme).erasures.carry_out("acme").is_finished
    assert [snapshot.id for snapshot in acme.snapshots.list()] == [kept[0].id]
    assert intact(acme, [kept[0].id])
    assert acme.objects.has([digest(number) for number in range(4)]) == [True, False, False, True]
    acme.retention.release(hold.id)
    assert holdfast_of(acme).erasures.carry_out("acme").is_finished
    assert acme.objects.usage().count == 0


def holdfast_of(tenant: TenantHandle) -> Any:
    """The handle for all tenants, on the same database."""
    return SimpleNamespace(erasures=Erasures(AsyncErasures(tenant._engine, tenant._scope)))


class Interrupted:
    """An engine on which something else happens before a write."""

    def __init__(self, engine: Any, at: int, what: Any) -> None:
        self._engine, self._left, self._what = engine, at, what
        self.dialect, self.blocking, self.joined = engine.dialect, engine.blocking, engine.joined

    async def read(self, call: Any) -> Any:
        return await self._engine.read(call)

    async def write(self, call: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self._what()
        return await self._engine.write(call)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_squashing_is_safe_beside_a_capture_or_a_removal(acme: TenantHandle, at: int) -> None:
    run = new_run(acme)
    made = chain(acme, run, [[0, 1], [0, 2], [0, 3]])
    remove(acme, made[:1])
    extra: list[Snapshot] = []

    def meanwhile() -> None:
        extra.extend(chain(acme, run, [[0, 2, 5], [5]], on=made[1]))
        remove(acme, [made[2]])

    engine = Interrupted(acme._engine, at, meanwhile)
    step(Squasher(engine, Scope("acme", acme._scope)).all())
    left = [made[1], *extra] if extra else [made[1], made[2]]
    assert intact(acme, [snapshot.id for snapshot in left])
    squash(acme)
    acme.objects.prune(grace_s=0)
    assert intact(acme, [snapshot.id for snapshot in left])
    assert acme.diagnostics.look().is_sound


def test_a_layer_changed_in_the_meantime_is_not_squashed(acme: TenantHandle) -> None:
    made = chain(acme, new_run(acme), [[0], [1], [2]])
    remove(acme, made[:1])
    row = step(Squasher(acme._engine, acme._scope)._after("00000000-0000-0000-0000-000000000000"))
    assert row is not None
    assert squash(acme) == 1
    manifest = layers.manifest_of(step(_whole(acme, made[1])))
    squashing = Squasher(acme._engine, acme._scope)
    with pytest.raises(Stale):
        step(acme._engine.write(lambda connection: squashing._replace(connection, row, manifest, set())))
    assert intact(acme, [made[1].id, made[2].id])


async def _whole(tenant: TenantHandle, snapshot: Snapshot) -> Any:
    from holdfast.trees.entries import Difference

    return Difference([*tenant.snapshots.tree(snapshot.id).entries.values()])
