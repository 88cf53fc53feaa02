"""Makers for data without a tenant: the list of tenants and the shared settings."""

from __future__ import annotations

from tests.workloads.workloads import Arguments, World, maker


@maker("tenants.create")
def _create_tenant(world: World) -> Arguments:
    return (world.name("tenant"),), {"metadata": {"plan": world.text()}}


@maker("tenants.update")
def _update_tenant(world: World) -> Arguments | None:
    existing = list(world.handle.tenants.list())
    return ((world.random.choice(existing).id,), {"metadata": {"plan": world.text()}}) if existing else None


@maker("tenants.set_quota")
def _set_quota(world: World) -> Arguments:
    return (world.tenant_name,), {"snapshot_quota_mib": world.random.choice((None, 0, 100))}


@maker("server_settings.set_snapshots_per_run")
def _set_snapshots_per_run(world: World) -> Arguments:
    return (world.random.randrange(1, 100),), {}


@maker("server_settings.lead")
def _lead(world: World) -> Arguments:
    return (world.random.choice(("first", "second")),), {"lease_s": world.random.choice((1, 60))}


@maker("server_settings.resign", before="server_settings.lead")
def _resign(world: World) -> Arguments:
    return (world.random.choice(("first", "second")),), {}
