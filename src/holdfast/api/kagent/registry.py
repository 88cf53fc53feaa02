"""Agents, tool servers and tools as kagent lists them, and who the caller is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, field
from starlette.responses import Response

import holdfast
from holdfast import AgentChange, NewServerTool, NewToolServer, column
from holdfast.errors import Conflict, InvalidInput, NotFound, Unavailable
from holdfast.types import Agent

from .request import Ask, agent_id, bare, enveloped, route
from .sessions import AGENT_TYPE, registered

KINDS = ("RemoteMCPServer", "MCPServer")
"""Kinds of tool servers that kagent knows."""
TRIES = 16
"""How often an update is tried while others change the same agent."""
WORKLOAD_TYPE = "deployment"
"""What kagent takes an agent's workload for when it says nothing else."""


class NewAgent(Struct):
    """An agent to register or to update; what is left out stays as it is."""

    agent_ref: str
    type: Annotated[str, Meta(min_length=1)] | None = None
    config: dict[str, Any] | None = None
    workload_type: Annotated[str, Meta(min_length=1)] | None = None


class AgentShown(Struct, frozen=True):
    """An agent."""

    id: str
    name: str
    type: str
    config: dict[str, Any] | None
    workload_type: str
    created_at: datetime
    updated_at: datetime


class ToolOfServer(Struct, frozen=True):
    """A tool that was discovered."""

    name: str
    description: str = ""


class ToolServerBody(Struct, rename="camel"):
    """A tool server with the tools that were discovered on it."""

    ref: str
    group_kind: str = KINDS[0]
    description: str = ""
    discovered_tools: list[ToolOfServer] = []


class ToolServerShown(Struct, frozen=True, rename="camel"):
    """A tool server as kagent shows it."""

    ref: str
    group_kind: str
    discovered_tools: list[ToolOfServer]


class ToolShown(Struct, frozen=True):
    """A tool as kagent shows it."""

    id: str
    server_name: str
    group_kind: str
    description: str
    created_at: datetime
    updated_at: datetime


class Version(Struct, frozen=True):
    """What answers here."""

    kagent_version: str = "0.10.4"
    git_commit: str = ""
    build_date: str = ""
    holdfast_version: str = field(default_factory=lambda: holdfast.__version__)


_AGENT = msgspec.json.Decoder(NewAgent)
_SERVER = msgspec.json.Decoder(ToolServerBody)


@route("GET", "/health")
async def health_of_kagent(ask: Ask) -> Response:
    """Whether the process is alive."""
    return Response("OK", 200, media_type="text/plain")


@route("GET", "/version")
async def version(ask: Ask) -> Response:
    """Whose protocol this is, and what speaks it."""
    return bare(Version())


@route("GET", "/api/me")
async def me(ask: Ask) -> Response:
    """Who the caller is taken for."""
    return bare({"sub": ask.user})


@route("GET", "/api/agents")
async def list_agents_of_kagent(ask: Ask) -> Response:
    """Every agent that is registered."""
    return enveloped([_agent(each) for each in await ask.tenant.agents.list()], "Successfully listed agents")


@route("POST", "/api/agents")
@route("PUT", "/api/agents")
async def register_agent(ask: Ask) -> Response:
    """Register an agent with its type and configuration, or update the one that is there. Agents that start a session are
    registered without them."""
    body = ask.body(_AGENT)
    id = await registered(ask, body.agent_ref, body.type or AGENT_TYPE)
    given = {"config": body.config, "workload_type": body.workload_type}
    changes = {name: value for name, value in given.items() if value is not None}
    for _ in range(TRIES):
        there = await ask.tenant.agents.get(id)
        try:
            change = AgentChange(agent_type=body.type or UNSET, metadata={**there.metadata, **changes})
            agent = await ask.tenant.agents.update(id, change=change, version=there.version)
        except Conflict:
            continue  # changed meanwhile: read it again, so that no other change is lost
        return enveloped(_agent(agent), "Successfully created agent", 201)
    raise Unavailable(f"agent {id!r} is being changed all the time; nothing was changed, try again")


@route("GET", "/api/agents/{namespace}/{name}")
async def get_agent_of_kagent(ask: Ask) -> Response:
    """One agent."""
    return enveloped(_agent(await ask.tenant.agents.get(_id(ask))), "Successfully retrieved agent")


@route("DELETE", "/api/agents/{namespace}/{name}")
async def delete_agent_of_kagent(ask: Ask) -> Response:
    """Remove an agent; its sessions stay."""
    await ask.tenant.agents.delete(_id(ask))
    return enveloped({}, "Successfully deleted agent")


@route("GET", "/api/tools")
async def list_tools(ask: Ask) -> Response:
    """The tools of all servers."""
    found = await ask.tenant.tool_servers.tools()
    return enveloped(
        [
            ToolShown(each.name, each.server, each.kind, each.description, each.created_at, each.updated_at)
            for each in found
        ],
        "Successfully listed tools",
    )


@route("GET", "/api/toolservers")
async def list_tool_servers(ask: Ask) -> Response:
    """The tool servers with their tools."""
    by_server: dict[tuple[str, str], list[ToolOfServer]] = {}
    for tool in await ask.tenant.tool_servers.tools():
        by_server.setdefault((tool.server, tool.kind), []).append(ToolOfServer(tool.name, tool.description))
    servers = await ask.tenant.tool_servers.list()
    return enveloped(
        [ToolServerShown(each.name, each.kind, by_server.get((each.name, each.kind), [])) for each in servers],
        "Successfully listed ToolServers",
    )


@route("POST", "/api/toolservers")
async def register_tool_server(ask: Ask) -> Response:
    """A tool server as it is now, with the tools it has now."""
    body = ask.body(_SERVER)
    if body.group_kind not in KINDS:
        raise InvalidInput(f"groupKind is one of {', '.join(KINDS)}, not {body.group_kind!r}")
    tools = [NewServerTool(each.name, each.description) for each in body.discovered_tools]
    new = NewToolServer(name=body.ref, kind=body.group_kind, description=body.description, tools=tools)
    made = await ask.tenant.tool_servers.upsert(new)
    shown = ToolServerShown(made.name, made.kind, body.discovered_tools)
    return enveloped(shown, "Successfully created ToolServer", 201)


@route("DELETE", "/api/toolservers/{namespace}/{name}")
async def delete_tool_server(ask: Ask) -> Response:
    """Hide a tool server, of whichever kind it is, with its tools."""
    ref = f"{ask.names['namespace']}/{ask.names['name']}"
    there = await ask.tenant.tool_servers.list(where=[column("name").eq(ref)])
    if not there:
        raise NotFound("ToolServer not found")
    for each in there:
        await ask.tenant.tool_servers.delete(each.name, each.kind)
    return enveloped({}, "Successfully deleted ToolServer")


@route("GET", "/api/toolservertypes")
async def list_tool_server_types(ask: Ask) -> Response:
    """The kinds of tool servers there are."""
    return enveloped(list(KINDS), "Successfully listed tool server types")


def _id(ask: Ask) -> str:
    return agent_id(f"{ask.names['namespace']}/{ask.names['name']}")


def _agent(agent: Agent) -> AgentShown:
    config, workload = agent.metadata.get("config"), agent.metadata.get("workload_type")
    return AgentShown(
        agent.id,
        agent.name,
        agent.agent_type,
        config if isinstance(config, dict) else None,
        workload if isinstance(workload, str) else WORKLOAD_TYPE,
        agent.created_at,
        agent.updated_at,
    )
