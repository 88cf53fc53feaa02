"""Record stores: the common promises, checked on every store, including those added later."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from holdfast.core.records.fields import Field, References
from holdfast.errors import AlreadyExists, Conflict, NotFound
from holdfast.limits import Limits
from holdfast.stores.objects.activity import Audited
from tests.contract.cases.record_promises import PROMISES, Kit, values_over_a_limit_or_of_another_type_are_rejected
from tests.contract.cases.record_samples import (
    Samples,
    create_referenced,
    given,
    record_stores,
    referenced_store,
    varied_stores,
)
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

SMALL = Limits(
    name_bytes=60, key_bytes=60, text_bytes=60, system_bytes=60, url_bytes=60, display_bytes=60, metadata_bytes=90,
    secret_bytes=60,
    path_bytes=60, command_bytes=60, command_timeout_s=60,
    tags=2, tools=2, capabilities=2, deny_patterns=2, list_rows=3,
)  # fmt: skip


async def _one_of_several_wins(world: World, kit: Kit) -> None:
    created = await world.together(*[partial(kit.store.create, kit.samples.new(1))] * 8)
    assert all(isinstance(item, kit.declared.row) for item in created), created
    assert await kit.store.count() == 1
    both = await world.together(*[partial(kit.store.upsert, kit.samples.new(2))] * 8)
    assert all(isinstance(item, kit.declared.row) for item in both), both
    key = kit.samples.key(kit.samples.new(1))
    if kit.samples.has_version:
        changes = [
            partial(kit.store.update, *key, change=kit.samples.change(3 + number), version=1) for number in range(8)
        ]
        results = await world.together(*changes)
        assert Counter(type(result) for result in results) == {kit.declared.row: 1, Conflict: 7}, results
        winner = next(result for result in results if isinstance(result, kit.declared.row))
        assert await kit.store.get(*key) == winner
    removed = await world.together(*[partial(kit.store.delete, *key)] * 4)
    assert Counter(type(item) for item in removed) == {type(None): 1, NotFound: 3}, removed


async def _kits(world: World, promise: str) -> list[Kit]:
    """Return a kit for each store; each promise and store has its own tenants, with the records that samples refer to.

    A driver that is joined sees values and not stores: there, a few stores that have every kind of field are enough.
    """
    kits = []
    for name, kind in (varied_stores() if world.is_joined else record_stores()).items():
        tenants = [world.tenant(f"{promise} {name}"), world.tenant(f"{promise} {name}, other")]
        for tenant in tenants:
            await create_referenced(tenant, kind)
        store, other = [getattr(tenant, name) for tenant in tenants]
        kits.append(Kit(kind, f"{promise} {name}", store, other, world.clock, world.limits))
    return kits


@contract()
async def every_record_store_keeps_every_promise(world: World) -> None:
    for promise in PROMISES:
        for kit in await _kits(world, promise.__name__):
            await promise(kit)


@contract(limits=SMALL)
async def every_record_store_rejects_values_over_a_limit(world: World) -> None:
    for kit in await _kits(world, "limits"):
        await values_over_a_limit_or_of_another_type_are_rejected(kit)


async def _not_live(world: World, tenant: Any, field: Field) -> list[str]:
    """Return the keys of a record that does not exist, one that is deleted, and one of another tenant."""
    name, kind = referenced_store(field)
    samples, other = Samples(kind), world.tenant(f"{tenant.name}, other")
    records = getattr(tenant, name)
    await create_referenced(tenant, kind)
    deleted = await records.create(samples.new(77))
    await records.delete(*samples.key(deleted))
    await create_referenced(other, kind)
    foreign = await getattr(other, name).create(samples.new(78))
    missing = uuid_of("missing") if field.kind == "id" else "missing"
    return [missing, samples.key(deleted)[0], samples.key(foreign)[0]]


@contract()
async def a_reference_to_a_record_that_does_not_exist_is_refused(world: World) -> None:
    for kit in await _kits(world, "references"):
        for field in kit.declared.references:
            created = await kit.store.create(kit.samples.new())
            for missing in await _not_live(world, world.tenant(kit.tenant), field):
                foreign = kit.samples.new(2, **{field.name: missing})
                with raises(NotFound, key=missing):
                    await kit.store.create(foreign)
                with raises(NotFound, key=missing):
                    await kit.store.upsert(foreign)
                if field in kit.declared.editable:
                    change = kit.kind.change_type(**{field.name: missing})
                    with raises(NotFound, key=missing):
                        await kit.store.update(*kit.samples.key(created), change=change)
            assert await kit.store.list() == [created]
            await kit.store.delete(*kit.samples.key(created))


@contract()
async def records_of_a_deleted_record_are_hidden_and_return_with_it(world: World) -> None:
    kits = [kit for kit in await _kits(world, "hidden") if any(map(_live, kit.declared.references))]
    assert kits
    for kit in kits:
        row, other = await kit.store.create(kit.samples.new(1)), await kit.store.create(kit.samples.new(2))
        key = kit.samples.key(row)
        for field in filter(_live, kit.declared.references):
            target = getattr(world.tenant(kit.tenant), referenced_store(field)[0])
            await target.delete(getattr(row, field.name))
            assert await kit.store.list() == [other], (kit.kind.noun, field.name)
            assert await kit.store.find(*kit.samples.name(row)) is None
            for call in (kit.store.get, kit.store.delete, partial(kit.store.update, change=kit.samples.change())):
                with raises(NotFound):
                    await call(*key)
            await target.restore(getattr(row, field.name))
            assert await kit.store.get(*key) == row


def _live(field: Field) -> str:
    """Return the condition of the live records that a field may name."""
    live: str = field.marker(References).live
    return live


@contract()
async def every_change_of_an_audited_record_is_logged_with_its_actor(world: World) -> None:
    audited = [kit for kit in await _kits(world, "audit") if issubclass(kit.kind, Audited)]
    assert audited
    for kit in audited:
        acme = world.tenant(kit.tenant)
        kind = kit.kind.noun.replace(" ", "_").lower()
        before = {entry.id for entry in await acme.activity.list()}
        with acme.acting(user="ada", api_key="key 0", address="10.0.0.1"):
            created = await kit.store.create(kit.samples.new())
            await kit.store.create(kit.samples.new())
            key = kit.samples.key(created)
            change = kit.samples.change()
            await kit.store.update(*key, change=change)
            await kit.store.update(*key, change=change)
            await kit.store.delete(*key)
            if kit.samples.is_soft:
                await kit.store.restore(*key)
                await kit.store.restore(*key)
        entries = [entry for entry in reversed(await acme.activity.list()) if entry.id not in before]
        assert {(entry.actor_type, entry.actor, entry.address) for entry in entries} == {("user", "ada", "10.0.0.1")}
        assert {(entry.subject_kind, entry.subject_id) for entry in entries} == {(kind, "/".join(map(str, key)))}
        actions = ["created", "changed", "deleted", *(["restored"] if kit.samples.is_soft else [])]
        assert [entry.action for entry in entries] == [f"{kind}.{action}" for action in actions], kind
        fields = {name for name, value in given(change).items() if value != getattr(created, name)}
        assert set(entries[1].details["fields"]) == fields
        assert entries[1].details["api_key"] == "key 0"
        with raises(NotFound):
            await kit.store.delete(*kit.samples.key(kit.samples.new(7)))
        assert await acme.activity.count() == len(before) + len(entries), "a refused call logs nothing"


@contract()
async def secrets_are_revealed_by_one_method_which_is_logged(world: World) -> None:
    kits = [kit for kit in await _kits(world, "reveal") if kit.samples.has_secrets]
    assert kits
    for kit in kits:
        acme = world.tenant(kit.tenant)
        new = kit.samples.new()
        key = kit.samples.key(await kit.store.create(new))
        before = await acme.activity.count()
        with acme.acting(user="ada"):
            revealed = await kit.store.reveal(*key)
        secrets = {field.name: getattr(new, field.name) for field in kit.declared.secrets}
        assert revealed == {name: secret and secret.reveal() for name, secret in secrets.items()}
        newest = (await acme.activity.list(limit=1))[0]
        kind = kit.kind.noun.replace(" ", "_").lower()
        assert (newest.action, newest.actor, newest.details) == (f"{kind}.revealed", "ada", {"fields": [*revealed]})
        assert await acme.activity.count() == before + 1
        with raises(NotFound, noun=kit.kind.noun):
            await kit.store.reveal(*kit.samples.key(kit.samples.new(7)))
        with raises(NotFound, noun=kit.kind.noun):
            await kit.other.reveal(*key)
        assert await acme.activity.count() == before + 1
        empty = {field.name: None for field in kit.declared.secrets}
        bare = await kit.store.create(kit.samples.new(3, **empty))
        assert await kit.store.reveal(*kit.samples.key(bare)) == empty


def _flagged(kits: list[Kit]) -> list[tuple[Kit, str]]:
    """Return the stores with a flag of at most one record, and the name of that flag."""
    flagged = [(kit, kit.declared.flag.name) for kit in kits if kit.declared.flag is not None]
    assert flagged
    return flagged


@contract()
async def a_flag_of_at_most_one_record_moves_to_the_record_that_gets_it(world: World) -> None:
    for kit, flag in _flagged(await _kits(world, "flags")):
        acme, kind = world.tenant(kit.tenant), kit.kind.noun.replace(" ", "_").lower()
        first = await kit.store.create(kit.samples.new(1, **{flag: True}))
        fixed = kit.samples.fixed_names(first)
        second = await kit.store.create(kit.samples.new(3, **fixed, **{flag: True}))

        async def flagged() -> list[tuple[str, ...]]:
            rows = await kit.store.list()  # noqa: B023
            return [kit.samples.key(row) for row in rows if getattr(row, flag)]  # noqa: B023

        assert await flagged() == [kit.samples.key(second)]
        lost = (await acme.activity.list(action=f"{kind}.changed"))[0]
        assert (lost.subject_id, lost.details) == ("/".join(kit.samples.key(first)), {"fields": [flag]})
        changed = await kit.store.update(*kit.samples.key(first), change=kit.kind.change_type(**{flag: True}))
        assert getattr(changed, flag)
        assert await flagged() == [kit.samples.key(first)]
        await kit.store.upsert(kit.samples.new(3, **fixed, **{flag: True}))
        assert await flagged() == [kit.samples.key(second)]
        with raises(AlreadyExists):
            await kit.store.create(kit.samples.new(1, **{flag: True}))
        assert await flagged() == [kit.samples.key(second)], "a refused call changes nothing"
        with raises(Conflict):
            await kit.store.update(*kit.samples.key(first), change=kit.kind.change_type(**{flag: True}), version=1)
        assert await flagged() == [kit.samples.key(second)]
        await kit.store.delete(*kit.samples.key(second))
        assert await flagged() == []
        if kit.samples.is_soft:
            await kit.store.update(*kit.samples.key(first), change=kit.kind.change_type(**{flag: True}))
            await kit.store.restore(*kit.samples.key(second))
            assert await flagged() == [kit.samples.key(first)], "a deleted record loses its flag"


@contract("concurrency")
async def concurrent_calls_flag_one_record(world: World) -> None:
    for kit, flag in _flagged(await _kits(world, "flag races")):
        first = await kit.store.create(kit.samples.new(1))
        fixed = kit.samples.fixed_names(first)
        new = [kit.samples.new(number, **fixed, **{flag: True}) for number in range(4, 10)]
        results = await world.together(*[partial(kit.store.create, item) for item in new])
        assert all(isinstance(result, kit.declared.row) for result in results), results
        change = kit.kind.change_type(**{flag: True})
        results = await world.together(
            *[partial(kit.store.update, *kit.samples.key(item), change=change) for item in new]
        )
        assert all(isinstance(result, kit.declared.row) for result in results), results
        assert sum(getattr(row, flag) for row in await kit.store.list()) == 1


@contract("concurrency")
async def one_of_several_concurrent_changes_wins(world: World) -> None:
    for kit in await _kits(world, "races"):
        await _one_of_several_wins(world, kit)


@contract("tenants")
async def the_first_record_registers_its_tenant(world: World) -> None:
    for name, kind in record_stores().items():
        if not kind.declared.references:
            await getattr(world.tenant(f"first {name}"), name).create(Samples(kind).new())
            assert (await world.tenants.get(f"first {name}")).id == f"first {name}"
