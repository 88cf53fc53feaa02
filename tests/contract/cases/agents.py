"""Agents: defined, found by their tags, changed by one at a time."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.registry.agents import Agent
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS, documents, same
from tests.contract.cases.world import World, flat, raises


@contract()
async def an_agent_comes_back_as_it_was_defined(world: World) -> None:
    acme = world.tenant()
    texts = [text for text in TEXTS if text]
    made = await acme.agents.create(
        "Ada",
        id=texts[-1],
        agent_type="react_agent",
        description="\n".join(texts),
        model="m-1",
        system="".join(texts),
        tool_ids=[*texts, texts[0]],
        tags=["b", "a", "b"],
        metadata=documents(),
    )
    assert made.id == texts[-1]
    assert (made.name, made.agent_type, made.model) == ("Ada", "react_agent", "m-1")
    assert (made.description, made.system) == ("\n".join(texts), "".join(texts))
    assert made.tool_ids == list(dict.fromkeys(texts)), "each once, in the order given"
    assert made.tags == ["b", "a"]
    assert same(made.metadata, documents())
    assert made.version == 1
    assert made.created_at == made.updated_at == from_us(world.clock.now_us())
    assert await acme.agents.get(made.id) == made == await acme.agents.find(made.id)
    plain = await acme.agents.create("Plain")
    assert (plain.agent_type, plain.model, plain.system, plain.tool_ids, plain.tags) == ("open", "", "", [], [])
    assert await acme.agents.find("nobody") is None
    with raises(NotFound, saying="nobody"):
        await acme.agents.get("nobody")
    with raises(NotFound):
        await world.tenant("zenith").agents.get(made.id)


@contract()
async def a_definition_can_be_repeated_but_not_replaced_by_create(world: World) -> None:
    acme = world.tenant()
    made = await acme.agents.create("Ada", id="ada", tags=["x"], metadata={"n": 1})
    assert await acme.agents.create("Ada", id="ada", tags=["x"], metadata={"n": 1}) == made
    with raises(AlreadyExists, saying="upsert"):
        await acme.agents.create("Ada", id="ada", tags=["x"], metadata={"n": 1.0})
    with raises(AlreadyExists):
        await acme.agents.create("Bea", id="ada", tags=["x"], metadata={"n": 1})
    world.clock.advance(1)
    assert await acme.agents.upsert("ada", name="Ada", tags=["x"], metadata={"n": 1}) == made, "nothing differs"
    changed = await acme.agents.upsert("ada", name="Bea", system="be kind")
    assert (changed.name, changed.system, changed.tags, changed.metadata) == ("Bea", "be kind", [], {})
    assert (changed.version, changed.created_at) == (2, made.created_at)
    assert changed.updated_at == from_us(world.clock.now_us())
    assert (await acme.agents.upsert("new", name="New")).version == 1


@contract()
async def an_update_changes_what_is_given_and_only_what_was_read(world: World) -> None:
    acme = world.tenant()
    made = await acme.agents.create("Ada", id="ada", model="m", tags=["x"], tool_ids=["t"], metadata={"n": 1})
    changed = await acme.agents.update("ada", model="", tags=["y"], version=1)
    assert (changed.model, changed.tags, changed.tool_ids, changed.metadata) == ("", ["y"], ["t"], {"n": 1})
    assert (changed.name, changed.version) == (made.name, 2)
    with raises(Conflict, saying="version 2"):
        await acme.agents.update("ada", name="late", version=1)
    with raises(Conflict):
        await acme.agents.delete("ada", version=1)
    assert await acme.agents.update("ada", version=2) == changed, "nothing was given"
    with raises(NotFound):
        await acme.agents.update("nobody", name="x")
    assert await acme.agents.get("ada") == changed


@contract()
async def agents_are_listed_by_tag_and_in_pages(world: World) -> None:
    acme = world.tenant()
    for number in range(7):
        tags = ["all", "even" if number % 2 == 0 else "odd"]
        await acme.agents.create(f"Agent {number}", id=f"agent-{number}", tags=tags)
    await world.tenant("zenith").agents.create("Theirs", id="agent-9", tags=["all"])
    assert [agent.id for agent in await acme.agents.list()] == [f"agent-{number}" for number in range(7)]
    assert [agent.id for agent in await acme.agents.list(tag="odd")] == ["agent-1", "agent-3", "agent-5"]
    assert await acme.agents.list(tag="nothing has it") == []
    for tag, expected in ((None, 7), ("all", 7), ("even", 4)):
        pages = [await acme.agents.list(tag=tag, limit=3)]
        while pages[-1].next is not None:
            pages.append(await acme.agents.list(tag=tag, limit=3, cursor=pages[-1].next))
        assert flat(pages) == await acme.agents.list(tag=tag)
        assert len(flat(pages)) == expected
    await acme.agents.update("agent-1", tags=["even"])
    assert [agent.id for agent in await acme.agents.list(tag="odd")] == ["agent-3", "agent-5"]
    assert len(await acme.agents.list(tag="even")) == 5
    with raises(InvalidFilter):
        await acme.agents.list(cursor="garbage")


@contract()
async def a_deleted_agent_is_gone_with_its_blocks_and_tags(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create("Ada", id="ada", tags=["x"])
    await acme.blocks.set("ada", "persona", "kind")
    session = await acme.sessions.create(agent="ada")
    run = await acme.runs.start(session.id)
    await acme.agents.delete("ada")
    assert await acme.agents.list(tag="x") == await acme.agents.list() == []
    with raises(NotFound):
        await acme.blocks.list("ada")
    with raises(NotFound):
        await acme.agents.delete("ada")
    assert (await acme.runs.get(run.id)).agent == (await acme.sessions.get(session.id)).agent == "ada"
    await acme.agents.create("Ada again", id="ada")
    assert await acme.blocks.list("ada") == []


@contract(limits=Limits(name_bytes=20, tags=2, tools=2, system_bytes=10, text_bytes=10, list_rows=2))
async def what_cannot_be_an_agent_is_refused(world: World) -> None:
    acme = world.tenant()
    wrong: list[dict[str, Any]] = [
        {"name": ""},
        {"name": 7},
        {"name": "x", "id": ""},
        {"name": "x", "tags": "x"},
        {"name": "x", "tags": [""]},
        {"name": "x", "tool_ids": [7]},
        {"name": "x", "metadata": ["x"]},
        {"name": "x", "agent_type": ""},
        {"name": "x", "model": None},
    ]
    for each in wrong:
        with raises(InvalidInput):
            await acme.agents.create(**each)
    over: list[dict[str, Any]] = [
        {"name": "x" * 21},
        {"name": "x", "id": "x" * 21},
        {"name": "x", "tags": ["a", "b", "c"]},
        {"name": "x", "tool_ids": ["a", "b", "c"]},
        {"name": "x", "system": "é" * 6},
        {"name": "x", "description": "x" * 11},
    ]
    for each in over:
        with raises(LimitExceeded):
            await acme.agents.create(**each)
    with raises(InvalidInput):
        await acme.agents.get("")
    assert await acme.agents.list() == []
    for number in range(3):
        await acme.agents.create("x", id=str(number))
    with raises(LimitExceeded):
        await acme.agents.list()
    with raises(InvalidInput):
        await acme.agents.update("0", version="1")  # type: ignore[arg-type]


@contract("concurrency")
async def of_several_changes_to_one_version_one_wins(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create("Ada", id="ada")
    update = partial(acme.agents.update, "ada", version=1)
    done = await world.together(*[partial(update, tags=[str(number)]) for number in range(8)])
    assert Counter(type(each) for each in done) == {Agent: 1, Conflict: 7}, done
    winner = next(each for each in done if isinstance(each, Agent))
    assert await acme.agents.get("ada") == winner
    assert await acme.agents.list(tag=winner.tags[0]) == [winner]
    made = await world.together(*[partial(acme.agents.create, "Bea", id="bea")] * 8)
    assert all(isinstance(each, Agent) for each in made), made
