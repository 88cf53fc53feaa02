"""Tool servers: what a server has now replaces what it had, and deleting can be undone."""

from __future__ import annotations

from holdfast.clock import from_us
from holdfast.errors import InvalidFilter, NotFound
from holdfast.stores.registry.tool_servers import NewTool
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


async def _the_tools_of_a_server_are_those_it_has_now(world: World, name: str) -> None:
    servers = world.tenant(name).tool_servers
    now = from_us(world.clock.now_us())
    made = await servers.upsert("ns/s", kind="K", description="d", tools=[NewTool("a"), NewTool("b", "B")])
    assert (made.name, made.kind, made.description, made.last_connected_at) == ("ns/s", "K", "d", None)
    assert await servers.find("ns/s", kind="K") == made
    assert await servers.find("ns/s") is None, "of another kind"
    world.clock.advance(1)
    again = await servers.upsert("ns/s", kind="K", tools=[NewTool("b", "new"), NewTool("c")], connected_at=now)
    assert (again.created_at, again.last_connected_at) == (made.created_at, now)
    found = await servers.tools()
    assert [(each.name, each.server, each.kind, each.description) for each in found] == [
        ("b", "ns/s", "K", "new"),
        ("c", "ns/s", "K", ""),
    ]
    assert (found[0].created_at, found[0].updated_at) == (now, from_us(world.clock.now_us()))


async def _servers_and_tools_are_listed_by_name(world: World, name: str) -> None:
    servers = world.tenant(name).tool_servers
    for name, kind in (("b", ""), ("a", "y"), ("a", "x")):
        await servers.upsert(name, kind=kind, tools=[NewTool(text or "t", text) for text in TEXTS])
    assert [(each.name, each.kind) for each in await servers.list()] == [("a", "x"), ("a", "y"), ("b", "")]
    page = await servers.list(limit=2)
    rest = await servers.list(limit=2, cursor=page.next)
    assert [(each.name, each.kind) for each in [*page, *rest]] == [("a", "x"), ("a", "y"), ("b", "")]
    of_one = await servers.tools(server="a", kind="y")
    assert {each.name for each in of_one} == {text or "t" for text in TEXTS}
    assert len(await servers.tools()) == 3 * len(of_one)
    assert await servers.tools(server="c") == []
    assert await world.tenant("zenith").tool_servers.tools() == []
    with raises(InvalidFilter):
        await servers.list(cursor="nonsense")


async def _a_deleted_server_comes_back_with_its_tools_or_anew(world: World, name: str) -> None:
    servers = world.tenant(name).tool_servers
    made = await servers.upsert("s", tools=[NewTool("a")])
    await servers.delete("s")
    assert (await servers.find("s"), await servers.list(), await servers.tools()) == (None, [], [])
    with raises(NotFound):
        await servers.delete("s")
    assert await servers.restore("s") == made
    assert [each.name for each in await servers.tools()] == ["a"]
    await servers.delete("s")
    await servers.upsert("s", tools=[NewTool("b")])
    assert [each.name for each in await servers.tools()] == ["b"]
    with raises(NotFound):
        await servers.restore("absent")


@contract()
async def tool_servers_are_kept_listed_and_deleted(world: World) -> None:
    for part in (
        _the_tools_of_a_server_are_those_it_has_now,
        _servers_and_tools_are_listed_by_name,
        _a_deleted_server_comes_back_with_its_tools_or_anew,
    ):
        await part(world, part.__name__)
