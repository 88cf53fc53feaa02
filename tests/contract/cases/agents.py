"""Agents: rows that belong to one are deleted with it. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from holdfast.core.filters import column
from holdfast.errors import NotFound
from holdfast.stores.agents.agents import NewAgent
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises


@contract()
async def deleting_an_agent_deletes_its_blocks_and_tags(world: World) -> None:
    acme = world.tenant()
    plain = await acme.agents.create(NewAgent("Ada", id="ada", tags=["x"]))
    assert (plain.agent_type, plain.model, plain.system, plain.tool_ids, plain.metadata) == ("open", "", "", [], {})
    await acme.blocks.set("ada", "persona", "kind")
    session = await acme.sessions.create(agent="ada")
    run = await acme.runs.start(session.id)
    await acme.agents.delete("ada")
    assert await acme.agents.list(where=[column("tags").contains("x")]) == await acme.agents.list() == []
    with raises(NotFound):
        await acme.blocks.list("ada")
    assert (await acme.runs.get(run.id)).agent == (await acme.sessions.get(session.id)).agent == "ada"
    await acme.agents.create(NewAgent("Ada again", id="ada"))
    assert await acme.blocks.list("ada") == []
