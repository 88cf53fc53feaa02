"""Tool servers: the list of tools of a server. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from typing import Any

from holdfast.clock import from_us
from holdfast.errors import InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.tools.tool_servers import NewServerTool, NewToolServer, ToolServerChange
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


@contract()
async def upserting_a_server_replaces_its_tools(world: World) -> None:
    servers = world.tenant().tool_servers
    now = from_us(world.clock.now_us())
    created = await servers.create(NewToolServer("ns/s", "K", "d", tools=[NewServerTool("a"), NewServerTool("b", "B")]))
    assert (created.kind, created.last_connected_at) == ("K", None)
    assert await servers.find("ns/s") is None, "a server of another kind"
    world.clock.advance(1)
    tools = [NewServerTool("b", "old"), NewServerTool("b", "new"), NewServerTool("c")]
    again = await servers.upsert(NewToolServer("ns/s", "K", last_connected_at=now, tools=tools))
    assert (again.created_at, again.last_connected_at, again.description) == (created.created_at, now, "")
    unset = await servers.upsert(NewToolServer("ns/s", "K", "d", tools=tools))
    assert unset.last_connected_at == now, "an unset value stays unchanged"
    await servers.update("ns/s", "K", change=ToolServerChange(description="other"))
    listed = await servers.tools()
    assert [(tool.name, tool.server, tool.kind, tool.description) for tool in listed] == [
        ("b", "ns/s", "K", "new"),
        ("c", "ns/s", "K", ""),
    ]
    assert (listed[0].created_at, listed[0].updated_at) == (now, from_us(world.clock.now_us()))


@contract()
async def tools_are_listed_by_name_and_hidden_with_their_server(world: World) -> None:
    servers = world.tenant().tool_servers
    for name, kind in (("b", ""), ("a", "y"), ("a", "x")):
        await servers.upsert(NewToolServer(name, kind, tools=[NewServerTool(text, text) for text in TEXTS]))
    of_one = await servers.tools(server="a", kind="y")
    assert {(tool.name, tool.description) for tool in of_one} == {(text, text) for text in TEXTS}
    assert len(await servers.tools()) == 3 * len(of_one)
    assert await servers.tools(server="c") == []
    assert await world.tenant("zenith").tool_servers.tools() == []
    await servers.delete("a", "y")
    assert await servers.tools(server="a", kind="y") == []
    await servers.restore("a", "y")
    assert await servers.tools(server="a", kind="y") == of_one
    await servers.delete("a", "y")
    await servers.upsert(NewToolServer("a", "y", tools=[NewServerTool("new")]))
    assert [tool.name for tool in await servers.tools(server="a", kind="y")] == ["new"]


@contract(limits=Limits(tools=2, list_rows=3))
async def invalid_tools_are_refused(world: World) -> None:
    servers = world.tenant().tool_servers
    wrong: list[Any] = ["text", [{"name": "x"}], 3, None, NewServerTool("a")]
    for tools in wrong:
        with raises(InvalidInput, field="tools"):
            await servers.upsert(NewToolServer("s", tools=tools))
    wrong_names: list[Any] = ["", 7]
    for name in wrong_names:
        with raises(InvalidInput, field="name of a tool"):
            await servers.upsert(NewToolServer("s", tools=[NewServerTool(name)]))
    with raises(LimitExceeded, field="tools", limit="tools", maximum=2):
        await servers.create(NewToolServer("s", tools=[NewServerTool(name) for name in "abc"]))
    assert await servers.list() == []
    for name in "ab":
        await servers.create(NewToolServer(name, tools=[NewServerTool("x"), NewServerTool("y")]))
    with raises(LimitExceeded, limit="list_rows", maximum=3):
        await servers.tools()
    assert len(await servers.tools(server="a")) == 2
