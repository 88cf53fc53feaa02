"""Makers for builtin tools and programs with credentials. ``workloads`` defines a maker."""

from __future__ import annotations

from holdfast.stores.tools.builtin_tools import NewBuiltinTool
from tests.workloads.workloads import Arguments, World, maker

NAMES = ("edit", "exec", "read", "web")


@maker("builtin_tools.seed")
def _seed(world: World) -> Arguments:
    names = world.random.sample(NAMES, world.random.randrange(1, len(NAMES) + 1))
    tools = [NewBuiltinTool(name, description=world.text(), settings={"text": world.text()}) for name in names]
    return (tools,), {"prune": world.random.random() < 0.5}


@maker("secure_cli.prepare", before="secure_cli.create")
def _prepare(world: World) -> Arguments | None:
    usable = [row for row in world.tenant.secure_cli.list() if row.is_enabled]
    if not usable:
        return None
    row = world.random.choice(usable)
    return (f"{row.binary_name} {world.name('argument')}", row.agent), {}
