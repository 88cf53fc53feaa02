"""Makers for what is above all tenants: the list of them."""

from __future__ import annotations

from .workloads import TENANTS, Arguments, World, maker


@maker("tenants.create")
def _create_tenant(world: World) -> Arguments:
    return (world.name("tenant"),), {"metadata": {"plan": world.text()}}


@maker("tenants.update")
def _update_tenant(world: World) -> Arguments | None:
    there = list(world.handle.tenants.list())
    return ((world.random.choice(there).id,), {"metadata": {"plan": world.text()}}) if there else None


@maker("tenants.delete")
def _delete_tenant(world: World) -> Arguments | None:
    """Mostly a tenant made for it; sometimes a working one, with everything it has."""
    there = [each.id for each in world.handle.tenants.list()]
    spare = [each for each in there if each not in TENANTS]
    whole = world.random.random() < 0.2
    choice = there if whole or not spare else spare
    return ((world.random.choice(choice),), {"cascade": whole}) if choice else None


@maker("tenants.set_quota")
def _set_quota(world: World) -> Arguments:
    return (world.tenant_name,), {"checkpoint_quota_mib": world.random.choice((None, 0, 100))}
