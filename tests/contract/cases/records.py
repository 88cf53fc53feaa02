"""Record stores: the common promises, checked on every store, including those added later."""

from __future__ import annotations

from collections import Counter
from functools import partial

from holdfast.errors import Conflict, NotFound
from holdfast.limits import Limits
from tests.contract.cases.record_promises import PROMISES, Kit, values_over_a_limit_or_of_another_type_are_rejected
from tests.contract.cases.record_samples import Samples, record_stores
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World

SMALL = Limits(
    name_bytes=60, key_bytes=60, text_bytes=60, system_bytes=60, url_bytes=60, display_bytes=60, metadata_bytes=90,
    secret_bytes=60,
    tags=2, tools=2, list_rows=3,
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


def _kits(world: World, promise: str) -> list[Kit]:
    """Yield a kit for each store; each promise gets its own tenants."""
    return [
        Kit(
            kind,
            getattr(world.tenant(promise), name),
            getattr(world.tenant(f"{promise}, other"), name),
            world.clock,
            world.limits,
        )
        for name, kind in record_stores().items()
    ]


@contract()
async def every_record_store_keeps_every_promise(world: World) -> None:
    for promise in PROMISES:
        for kit in _kits(world, promise.__name__):
            await promise(kit)


@contract(limits=SMALL)
async def every_record_store_rejects_values_over_a_limit(world: World) -> None:
    for kit in _kits(world, "limits"):
        await values_over_a_limit_or_of_another_type_are_rejected(kit)


@contract("concurrency")
async def one_of_several_concurrent_changes_wins(world: World) -> None:
    for kit in _kits(world, "races"):
        await _one_of_several_wins(world, kit)


@contract("tenants")
async def the_first_record_registers_its_tenant(world: World) -> None:
    for name, kind in record_stores().items():
        await getattr(world.tenant(f"first {name}"), name).create(Samples(kind).new())
        assert (await world.tenants.get(f"first {name}")).id == f"first {name}"
