"""Makers for API keys. ``workloads`` defines a maker."""

from __future__ import annotations

from tests.workloads.workloads import TENANTS, Arguments, World, maker


@maker("api_keys.create")
def _create_key(world: World) -> Arguments:
    key = f"hf_{world.random.getrandbits(192):048x}"
    return (key,), {"name": world.name("key"), "tenant": world.random.choice(("", *TENANTS)), "scopes": ["read"]}


@maker("api_keys.touch", before="api_keys.create")
@maker("api_keys.revoke", before="api_keys.create")
@maker("api_keys.delete", before="api_keys.create")
def _use_key(world: World) -> Arguments | None:
    existing = list(world.handle.api_keys.list())
    return ((world.random.choice(existing).id,), {}) if existing else None
