"""MCP servers: their transports, and the tools discovered on them. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from typing import Any

from holdfast.clock import from_us
from holdfast.core.crypto import Secret
from holdfast.core.filters import column
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.tools.mcp_servers import McpServerChange, NewMcpServer, NewMcpTool
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import World, flat, raises

SECRET = Secret({"token": "t0ken"})
STDIO: dict[str, Any] = {"command": "npx", "args": ["-y", "-y", ""], "env": SECRET}
OVER_HTTP: dict[str, Any] = {"url": "https://example.com/mcp?x=1", "headers": SECRET}
NONE_OF_STDIO: dict[str, Any] = {"command": "", "args": [], "env": None}


@contract()
async def a_transport_has_its_own_fields(world: World) -> None:
    servers = world.tenant().mcp_servers
    for transport, own, others in (
        ("stdio", STDIO, OVER_HTTP),
        ("sse", OVER_HTTP, STDIO),
        ("streamable-http", OVER_HTTP, STDIO),
        (None, {}, STDIO | OVER_HTTP),
    ):
        given: dict[str, Any] = {"transport": transport, **own}
        for field, value in others.items():
            with raises(InvalidInput, field=field):
                await servers.create(NewMcpServer("s", **given | {field: value}))
        for field in ("command", "url"):
            if field in own:
                with raises(InvalidInput, field=field):
                    await servers.create(NewMcpServer("s", **given | {field: ""}))
        assert await servers.list() == []
        made = await servers.create(NewMcpServer("s", **given, api_key=Secret("k3y")))
        assert {name: getattr(made, name) for name in given} == given
        await servers.delete(made.id)


@contract()
async def a_changed_server_has_the_fields_of_its_transport(world: World) -> None:
    servers = world.tenant().mcp_servers
    row = await servers.create(NewMcpServer("s", transport="stdio", **STDIO))
    wrong: list[dict[str, Any]] = [
        {"url": "https://example.com"},
        {"command": ""},
        {"transport": "sse"},
        {"transport": "sse", **OVER_HTTP},
        {"transport": "sse", **OVER_HTTP, **NONE_OF_STDIO, "url": ""},
        {"transport": None},
    ]
    for change in wrong:
        with raises(InvalidInput):
            await servers.update(row.id, change=McpServerChange(**change))
        assert await servers.get(row.id) == row
    with raises(InvalidInput, field="url"):
        await servers.upsert(NewMcpServer("s", transport="sse"))
    changed = await servers.update(
        row.id, change=McpServerChange(transport="sse", tool_prefix="s_", **NONE_OF_STDIO, **OVER_HTTP)
    )
    assert (changed.transport, changed.url, changed.command, changed.env) == ("sse", OVER_HTTP["url"], "", None)
    upserted = await servers.upsert(NewMcpServer("s", transport="stdio", **STDIO))
    assert (upserted.id, upserted.url, upserted.headers, upserted.env) == (row.id, "", None, SECRET)


@contract()
async def secrets_of_a_server_are_strings(world: World) -> None:
    servers = world.tenant().mcp_servers
    for field, transport in (("env", "stdio"), ("headers", "sse")):
        wrong: Any = Secret({"n": 1})
        own: dict[str, Any] = STDIO if transport == "stdio" else OVER_HTTP
        with raises(InvalidInput, field=field):
            await servers.create(NewMcpServer("s", **own | {"transport": transport, field: wrong}))
    with raises(InvalidInput, field="url") as refused:
        await servers.create(NewMcpServer("s", transport="sse", url="https://ada:t0ken@example.com"))
    assert "t0ken" not in str(refused.error)
    assert await servers.list() == []


@contract()
async def a_server_is_known_by_its_name_and_kind(world: World) -> None:
    servers = world.tenant().mcp_servers
    first = await servers.create(NewMcpServer("ns/s", "MCPServer"))
    second = await servers.create(NewMcpServer("ns/s"))
    assert await servers.find("ns/s", "MCPServer") == first
    assert await servers.find("ns/s") == second
    await servers.delete(first.id)
    again = await servers.upsert(NewMcpServer("ns/s", "MCPServer", tools=[NewMcpTool("new")]))
    assert again.id != first.id
    assert [tool.server_id for tool in await servers.tools()] == [again.id]


@contract()
async def the_tools_of_a_server_are_replaced(world: World) -> None:
    acme = world.tenant()
    servers = acme.mcp_servers
    now = from_us(world.clock.now_us())
    first = [NewMcpTool("a"), NewMcpTool("b", "B"), NewMcpTool("d", "D")]
    created = await servers.create(NewMcpServer("ns/s", "K", description="d", tools=first))
    world.clock.advance(1)
    later = from_us(world.clock.now_us())
    tools = [NewMcpTool("b", "old"), NewMcpTool("b", "new"), NewMcpTool("c"), NewMcpTool("d", "D")]
    again = await servers.upsert(NewMcpServer("ns/s", "K", description="d", last_connected_at=now, tools=tools))
    assert (again.id, again.created_at, again.last_connected_at) == (created.id, created.created_at, now)
    listed = await servers.tools()
    assert [(tool.name, tool.description, tool.created_at, tool.updated_at) for tool in listed] == [
        ("b", "new", now, later),
        ("c", "", later, later),
        ("d", "D", now, now),
    ]
    assert {(tool.server_id, tool.server, tool.kind) for tool in listed} == {(created.id, "ns/s", "K")}
    world.clock.advance(1)
    kept = await servers.upsert(NewMcpServer("ns/s", "K", description="d"))
    assert kept == again, "an unset time stays unchanged"
    assert await servers.tools() == listed, "and so do unset tools"
    logged = await acme.activity.count()
    assert await servers.update(created.id, change=McpServerChange(tools=tools)) == again
    assert await servers.tools() == listed
    assert await acme.activity.count() == logged, "nothing differs"
    await servers.update(created.id, change=McpServerChange(tools=[]))
    assert await servers.tools() == []
    assert (await acme.activity.list(limit=1))[0].details == {"fields": ["tools"]}


@contract()
async def tools_are_listed_by_name_and_hidden_with_their_server(world: World) -> None:
    servers = world.tenant().mcp_servers
    ids = {}
    for name, kind in (("b", ""), ("a", "y"), ("a", "x")):
        tools = [NewMcpTool(text, text) for text in TEXTS]
        ids[name, kind] = (await servers.create(NewMcpServer(name, kind, tools=tools))).id
    everything = await servers.tools()
    of_one = await servers.tools(where=[column("server").eq("a"), column("kind").eq("y")])
    assert {(tool.name, tool.description) for tool in of_one} == {(text, text) for text in TEXTS}
    assert of_one == await servers.tools(where=[column("server_id").eq(ids["a", "y"])])
    assert [(tool.server, tool.kind) for tool in everything[:: len(of_one)]] == [("a", "x"), ("a", "y"), ("b", "")]
    named = await servers.tools(where=[column("name").eq(of_one[1].name)])
    assert named == everything[1 :: len(of_one)]
    for limit in (1, len(of_one), 2 * len(of_one) + 1):
        pages = [await servers.tools(limit=limit)]
        while pages[-1].next is not None:
            pages.append(await servers.tools(limit=limit, cursor=pages[-1].next))
        assert flat(pages) == everything
    assert await servers.tools(where=[column("server").eq("c")]) == []
    assert await world.tenant("zenith").mcp_servers.tools() == []
    await servers.delete(ids["a", "y"])
    assert [tool.kind for tool in await servers.tools() if tool.server == "a"] == ["x"] * len(of_one)
    await servers.restore(ids["a", "y"])
    assert await servers.tools() == everything
    for cursor in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await servers.tools(cursor=cursor)
    with raises(InvalidFilter, field="column"):
        await servers.tools(where=[column("description").eq("x")])


@contract(limits=Limits(tools=2, list_rows=3))
async def invalid_tools_are_refused(world: World) -> None:
    servers = world.tenant().mcp_servers
    wrong: list[Any] = ["text", [{"name": "x"}], 3, None, NewMcpTool("a")]
    for tools in wrong:
        with raises(InvalidInput, field="tools"):
            await servers.upsert(NewMcpServer("s", tools=tools))
    wrong_names: list[Any] = ["", 7]
    for name in wrong_names:
        with raises(InvalidInput, field="name of a tool"):
            await servers.upsert(NewMcpServer("s", tools=[NewMcpTool(name)]))
    with raises(LimitExceeded, field="tools", limit="tools", maximum=2):
        await servers.create(NewMcpServer("s", tools=[NewMcpTool(name) for name in "abc"]))
    assert await servers.list() == []
    for name in "ab":
        await servers.create(NewMcpServer(name, tools=[NewMcpTool("x"), NewMcpTool("y")]))
    with raises(LimitExceeded, limit="list_rows", maximum=3):
        await servers.tools()
    assert len(await servers.tools(where=[column("server").eq("a")])) == 2
