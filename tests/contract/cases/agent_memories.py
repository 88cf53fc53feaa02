"""Memories of agents: search by similarity, access counts and expiry."""

from __future__ import annotations

from datetime import timedelta

from holdfast.clock import from_us
from holdfast.stores.memory.agent_memories import NewAgentMemory
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World

DAY = 86_400


def new(content: str, *embedding: float, ttl_days: int | None = None) -> NewAgentMemory:
    """A memory to add."""
    return NewAgentMemory(content=content, embedding=embedding, metadata={"of": content}, ttl_days=ttl_days)


async def _check_search_order(world: World, name: str) -> None:
    memories = world.tenant(name).agent_memories
    ids = await memories.add([new("east", 1, 0), new("north", 0, 1), new("north-east", 1, 1)], agent="a", user="ada")
    matches = await memories.search([1, 0.1], agent="a", user="ada")
    assert [match.memory.content for match in matches] == ["east", "north-east", "north"]
    assert [match.memory.id for match in matches] == [ids[0], ids[2], ids[1]]
    assert 0.99 < matches[0].score <= 1
    assert matches[0].memory.metadata == {"of": "east"}
    close = await memories.search([1, 0.1], agent="a", user="ada", limit=2, min_score=0.9)
    assert [match.memory.content for match in close] == ["east"]
    for agent, user in (("a", None), ("b", "ada"), ("a", "bob")):
        assert await memories.search([1, 0.1], agent=agent, user=user) == []
    assert await memories.search([1, 0.1, 0], agent="a", user="ada") == [], "the number of dimensions differs"
    assert await world.tenant("zenith").agent_memories.search([1, 0.1], agent="a", user="ada") == []


async def _check_access_counts(world: World, name: str) -> None:
    memories = world.tenant(name).agent_memories
    await memories.add([new("east", 1, 0), new("north", 0, 1)], agent="a")
    await memories.add([new(text, 1, 1) for text in TEXTS], agent="b")
    for _ in range(3):
        await memories.search([0, 1], agent="a", limit=1)
    assert [(memory.content, memory.access_count) for memory in await memories.list(agent="a")] == [
        ("north", 3),
        ("east", 0),
    ]
    assert [memory.content for memory in await memories.list(agent="a", limit=1)] == ["north"]
    assert {memory.content for memory in await memories.list(agent="b")} == set(TEXTS)
    assert await memories.delete(agent="a") == 2
    assert await memories.delete(agent="a") == 0
    assert len(await memories.list(agent="b")) == len(TEXTS)


async def _check_expiry(world: World, name: str) -> None:
    memories = world.tenant(name).agent_memories
    begin = from_us(world.clock.now_us())
    await memories.add([new("short", 1, 0, ttl_days=1), new("usual", 1, 0, ttl_days=0)], agent="a")
    expiries = {memory.content: memory.expires_at - begin for memory in await memories.list(agent="a")}
    assert expiries == {"short": timedelta(days=1), "usual": timedelta(days=15)}, "0 days mean the default"
    await memories.add([new("loved", 1, 0, ttl_days=1)], agent="b")
    for _ in range(10):
        await memories.search([1, 0], agent="b")
    world.clock.advance(DAY)
    assert [match.memory.content for match in await memories.search([1, 0], agent="a")] == ["usual"]
    assert [memory.content for memory in await memories.list(agent="a")] == ["usual"]
    assert [memory.content for memory in await memories.list(agent="b")] == ["loved"], (
        "expired, although prune has not run"
    )
    pruned = await memories.prune()
    assert (pruned.extended, pruned.removed) == (1, 1)
    (loved,) = await memories.list(agent="b")
    assert (loved.access_count, loved.expires_at) == (0, begin + timedelta(days=16))
    world.clock.advance(15 * DAY)
    assert await memories.list(agent="b") == []
    await memories.add([new("next", 1, 0)], agent="b")
    left = await memories.prune()
    assert (left.extended, left.removed) == (0, 1), "adding removed the expired memories of the same agent"


@contract()
async def agent_memories_are_found_counted_and_expire(world: World) -> None:
    for part in (
        _check_search_order,
        _check_access_counts,
        _check_expiry,
    ):
        await part(world, part.__name__)
