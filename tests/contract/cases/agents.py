"""Agents: keys, the default agent, access, and what follows an agent. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from functools import partial

from holdfast.core.filters import column
from holdfast.errors import AlreadyExists, InvalidFilter, InvalidInput, NotFound
from holdfast.stores.agents.agent_access import AgentAccess
from holdfast.stores.agents.agents import AgentChange, NewAgent
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.contract.cases.world import World, flat, raises


@contract()
async def an_agent_needs_no_more_than_an_id(world: World) -> None:
    acme = world.tenant()
    plain = await acme.agents.create(NewAgent("ada"))
    assert (plain.id, plain.key, plain.display_name, plain.owner) == ("ada", "ada", "", "")
    assert (plain.agent_type, plain.status, plain.is_default) == ("open", "active", False)
    assert (plain.model, plain.context_window, plain.tools_config, plain.tags) == ("", None, None, [])
    keyed = await acme.agents.create(NewAgent(key="support"))
    assert keyed.id != "support"
    assert await acme.agents.find("support") == keyed
    unnamed = await acme.agents.create(NewAgent())
    assert unnamed.key == unnamed.id
    with acme.acting(user="bob"):
        assert (await acme.agents.create(NewAgent("writer"))).owner == "bob"
        assert (await acme.agents.create(NewAgent("reader", owner="eve"))).owner == "eve"
        await acme.agents.upsert(NewAgent("ada", display_name="Ada"))
    assert (await acme.agents.get("ada")).owner == "", "an owner that is not given stays"
    await acme.agents.update("ada", change=AgentChange(key="helper"))
    assert (await acme.agents.upsert(NewAgent("ada"))).key == "helper", "a key that is not given stays"


@contract()
async def a_deleted_agent_leaves_its_key_to_others(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("1", key="support"))
    with raises(AlreadyExists, noun="agent", key="support"):
        await acme.agents.create(NewAgent("2", key="support"))
    await acme.agents.delete("1")
    second = await acme.agents.create(NewAgent("2", key="support"))
    assert await acme.agents.find("support") == second
    with raises(AlreadyExists, noun="agent", key="1"):
        await acme.agents.restore("1")
    await acme.agents.update("2", change=AgentChange(key="sales"))
    assert (await acme.agents.restore("1")).key == "support"


@contract()
async def what_belongs_to_an_agent_is_hidden_and_returns_with_it(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", tags=["x"]))
    block = await acme.blocks.set("ada", "persona", "kind")
    share = await acme.agents.share("ada", "bob", role="admin")
    session = await acme.sessions.create(agent="ada")
    run = await acme.runs.start(session.id)
    await acme.agents.delete("ada")
    assert await acme.agents.list(where=[column("tags").contains("x")]) == await acme.agents.list() == []
    assert await acme.blocks.find("ada", "persona") is None
    for call in (
        partial(acme.blocks.list, "ada"),
        partial(acme.blocks.get, "ada", "persona"),
        partial(acme.blocks.set, "ada", "persona", "stern"),
        partial(acme.agents.share, "ada", "eve"),
    ):
        with raises(NotFound):
            await call()
    assert await acme.agents.list_shares("ada") == []
    assert await acme.agents.list_accessible("bob") == []
    assert (await acme.runs.get(run.id)).agent == (await acme.sessions.get(session.id)).agent == "ada"
    await acme.agents.restore("ada")
    assert await acme.blocks.list("ada") == [block]
    assert await acme.agents.list_shares("ada") == [share]
    assert await acme.agents.revoke_share("ada", "bob") is True
    assert await acme.agents.revoke_share("ada", "bob") is False


DEFAULT, ORDINARY = AgentChange(is_default=True), AgentChange(is_default=False)


@contract()
async def the_default_agent_is_the_one_that_was_chosen_or_the_oldest(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    with raises(NotFound, noun="agent"):
        await acme.agents.get_default()
    theirs = await zenith.agents.create(NewAgent("b", is_default=True))
    for id in ("b", "c", "a"):
        await acme.agents.create(NewAgent(id))
        world.clock.advance(1)
    assert (await acme.agents.get_default()).id == "b"
    first = await acme.agents.update("a", change=DEFAULT)
    assert await acme.agents.get_default() == first
    world.clock.advance(1)
    second = await acme.agents.update("c", change=DEFAULT)
    cleared = await acme.agents.get("a")
    assert (cleared.is_default, cleared.version, cleared.updated_at) == (False, 3, second.updated_at)
    assert await acme.agents.get_default() == second
    assert await zenith.agents.get_default() == theirs
    await acme.agents.update("c", change=ORDINARY)
    assert (await acme.agents.get_default()).id == "b"
    await acme.agents.update("b", change=DEFAULT)
    await acme.agents.delete("b")
    assert (await acme.agents.get_default()).id == "c", "the oldest that is left"
    assert (await acme.agents.restore("b")).is_default is False
    await acme.agents.upsert(NewAgent("d", is_default=True))
    assert [agent.id for agent in await acme.agents.list(where=[column("is_default").eq(True)])] == ["d"]


DENIED = AgentAccess(allowed=False, role=None, step="share")


@contract()
async def access_follows_four_steps(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    agents = acme.agents
    await agents.create(NewAgent("helper", owner="ada"))
    await zenith.agents.create(NewAgent("theirs", owner="ada"))
    missing = AgentAccess(allowed=False, role=None, step="exists")
    assert await agents.access("theirs", "ada") == await agents.access("no such agent", "ada") == missing
    assert await agents.access("helper", "ada") == AgentAccess(allowed=True, role="owner", step="owner")
    assert await agents.access("helper", "bob") == DENIED
    for role in ("user", "admin", "operator"):
        share = await agents.share("helper", "bob", role=role)
        assert (share.role, share.granted_by) == (role, "")
        assert await agents.access("helper", "bob") == AgentAccess(allowed=True, role=role, step="share")
    await agents.share("helper", "ada", role="operator")
    assert (await agents.access("helper", "ada")).role == "owner", "the owner's own share does not matter"
    await agents.update("helper", change=DEFAULT)
    assert await agents.access("helper", "ada") == AgentAccess(allowed=True, role="owner", step="default")
    for user in ("bob", "anyone"):
        expected = AgentAccess(allowed=True, role="user", step="default")
        assert await agents.access("helper", user) == expected, "on a default agent a share gives no role"
    await agents.update("helper", change=ORDINARY)
    assert (await agents.access("helper", "bob")).role == "operator"
    await agents.revoke_share("helper", "bob")
    assert await agents.access("helper", "bob") == DENIED
    await agents.delete("helper")
    assert await agents.access("helper", "ada") == missing
    for wrong in ("", 7):
        with raises(InvalidInput, field="user"):
            await agents.access("helper", wrong)  # type: ignore[arg-type]
        with raises(InvalidInput):
            await agents.access(wrong, "ada")  # type: ignore[arg-type]


@contract()
async def accessible_agents_are_listed_in_pages(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    await zenith.agents.create(NewAgent("theirs", owner="ada"))
    for number in range(12):
        await acme.agents.create(NewAgent(f"{number:02}", owner="ada" if number % 3 == 0 else "bob"))
    for number in (1, 2, 3, 11):
        await acme.agents.share(f"{number:02}", "ada")
    await acme.agents.update("05", change=DEFAULT)
    await acme.agents.delete("11")
    whole = await acme.agents.list_accessible("ada")
    assert [agent.id for agent in whole] == ["00", "01", "02", "03", "05", "06", "09"]
    assert [agent.id for agent in await acme.agents.list_accessible("eve")] == ["05"]
    for limit in (1, 2, 7):
        pages = [await acme.agents.list_accessible("ada", limit=limit)]
        while pages[-1].next is not None:
            assert len(pages) < 9
            pages.append(await acme.agents.list_accessible("ada", limit=limit, cursor=pages[-1].next))
        assert flat(pages) == whole
    for cursor in [*GARBAGE_CURSORS, (await acme.agents.list(limit=1)).next]:
        with raises(InvalidFilter):
            await acme.agents.list_accessible("ada", cursor=cursor)


@contract()
async def several_agents_are_read_at_once_in_the_order_of_the_call(world: World) -> None:
    acme = world.tenant()
    first, second = [await acme.agents.create(NewAgent(id, key=f"key {id}")) for id in ("a", "b\x00")]
    await acme.agents.create(NewAgent("c", key="key c"))
    await acme.agents.delete("c")
    assert await acme.agents.by_ids(["b\x00", "x", "a", "c", "a"]) == [second, first]
    assert await acme.agents.by_keys(["key b\x00", "a", "key a", "key c"]) == [second, first]
    assert await acme.agents.by_ids([]) == []
    for wrong in ("a", [7], None):
        with raises(InvalidInput, field="ids"):
            await acme.agents.by_ids(wrong)  # type: ignore[arg-type]


@contract("tenants")
async def a_purged_tenant_keeps_no_deleted_agent(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", tags=["x"]))
    await acme.blocks.set("ada", "persona", "kind")
    await acme.agents.share("ada", "bob")
    await acme.agents.delete("ada")
    await world.tenants.delete("acme", cascade=True)
    with raises(NotFound):
        await acme.agents.restore("ada")
    await acme.agents.create(NewAgent("ada"))
    assert await acme.blocks.list("ada") == []
    assert await acme.agents.list_shares("ada") == []
