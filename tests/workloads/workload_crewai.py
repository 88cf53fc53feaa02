"""Makers for CrewAI's data: flows that continue and wait, and memories that are created, replaced and forgotten."""

from __future__ import annotations

from holdfast.stores.memory.new_crew_memories import NewCrewMemory
from tests.workloads.workloads import Arguments, World, maker

FLOWS = ("booking", "review", "report")
SCOPES = ("/", "/company", "/company/team", "/companies")


@maker("flows.save")
def _save(world: World) -> Arguments:
    state = {"id": world.random.choice(FLOWS), "n": world.random.randrange(100), "text": world.text()}
    feedback = {"message": world.text()} if world.random.random() < 0.4 else None
    return (state["id"],), {"method": world.random.choice(("begin", "end")), "state": state, "feedback": feedback}


@maker("flows.clear_pending", before="flows.save")
def _clear(world: World) -> Arguments | None:
    waiting = world.tenant.flows.list(is_pending=True)
    return ((world.random.choice(waiting).flow_uuid,), {}) if waiting else None


@maker("flows.delete", before="flows.save")
def _delete_flow(world: World) -> Arguments | None:
    flows = world.tenant.flows.list()
    return ((world.random.choice(flows).flow_uuid,), {}) if flows else None


@maker("crew_memories.save")
def _remember(world: World) -> Arguments:
    """Two memories; sometimes one replaces an existing memory."""
    crew_memories = world.tenant.crew_memories.list(limit=5)
    again = world.random.choice(crew_memories).id if crew_memories and world.random.random() < 0.3 else None
    return ([_memory(world, again), _memory(world, None)],), {}


@maker("crew_memories.touch", before="crew_memories.save")
def _touch(world: World) -> Arguments | None:
    crew_memories = world.tenant.crew_memories.list(limit=3)
    return (([item.id for item in crew_memories],), {}) if crew_memories else None


@maker("crew_memories.delete", before="crew_memories.save")
def _forget(world: World) -> Arguments | None:
    crew_memories = world.tenant.crew_memories.list(limit=50)
    if not crew_memories:
        return None
    some = world.random.choice(crew_memories)
    return (), world.random.choice(({"ids": [some.id]}, {"scope": some.scope, "categories": ["fact"]}))


def _memory(world: World, id: str | None) -> NewCrewMemory:
    return NewCrewMemory(
        id=id,
        content=world.text(),
        scope=world.random.choice(SCOPES),
        categories=world.random.choice((["fact"], ["fact", "plan"], [])),
        metadata={"text": world.text()},
        importance=world.random.randrange(11) / 10,
        source=world.random.choice((None, "ada")),
        is_private=world.random.random() < 0.3,
        embedding=world.random.choice((None, [world.random.random() for _ in range(4)])),
    )
