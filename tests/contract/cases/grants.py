"""Grant stores: the common promises, checked on every store, including those added later."""

from __future__ import annotations

from functools import partial

from tests.contract.cases.grant_promises import PROMISES, GrantKit, wrong_grants_are_rejected
from tests.contract.cases.grant_samples import create_sides, grant_stores
from tests.contract.cases.records import SMALL
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World


async def _kits(world: World, promise: str) -> list[GrantKit]:
    """Return a kit for each table of each store, with tenants of their own and the records that samples refer to."""
    kits = []
    for name, kind in grant_stores().items():
        for table in kind.grants:
            names = [f"{promise} {table.name}", f"{promise} {table.name}, other"]
            tenants = world.tenant(names[0]), world.tenant(names[1])
            for tenant in tenants:
                await create_sides(tenant, table)
            stores = getattr(tenants[0], name), getattr(tenants[1], name)
            kits.append(GrantKit(kind, table, stores, tenants, world.clock, world.limits))
    assert kits
    return kits


@contract()
async def every_grant_store_keeps_every_promise(world: World) -> None:
    for promise in PROMISES:
        for kit in await _kits(world, promise.__name__):
            await promise(kit)


@contract(limits=SMALL)
async def every_grant_store_rejects_wrong_grants(world: World) -> None:
    for kit in await _kits(world, "limits"):
        await wrong_grants_are_rejected(kit)


@contract("concurrency")
async def concurrent_grants_of_one_pair_are_one_grant(world: World) -> None:
    for kit in await _kits(world, "races"):
        made = await world.together(*[partial(kit.store.grant, kit.samples.new(1, 1, number)) for number in range(8)])
        assert {type(row) for row in made} == {kit.table.row}, made
        (row,) = await kit.of_resource(1)
        assert row in made
        removed = await world.together(*[partial(kit.revoke, 1, 1)] * 4)
        assert sorted(removed, key=str) == [False, False, False, True]
