"""Agents, tool servers and tools in kagent's format, and the caller's identity."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field, structs
from starlette.responses import Response

import holdfast
from holdfast import AgentChange, column
from holdfast.declared.rows import agent_id
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, NotFound, Unavailable
from holdfast.types import Agent, DeclaredResource, McpServer, McpServerChange, NewMcpServer, NewMcpTool

from .request import KagentRequest, bare, route, success
from .sessions import ensure_agent

KINDS = ("RemoteMCPServer", "MCPServer")
"""Kinds of tool servers in kagent."""
MAX_TRIES = 16
"""Attempts of an update while other requests change the same agent."""
AGENT_TYPE = "kagent"
"""The type of an agent that was registered without one."""
WORKLOAD_TYPE = "deployment"
"""kagent's default workload type of an agent."""


class _NewAgent(Struct):
    """An agent to register or update; omitted fields stay unchanged."""

    agent_ref: str
    type: Annotated[str, Meta(min_length=1)] | None = None
    config: dict[str, Any] | None = None
    workload_type: Annotated[str, Meta(min_length=1)] | None = None


class _WireAgent(Struct, frozen=True):
    """An agent in a response."""

    id: str
    name: str
    type: str
    config: dict[str, Any] | None
    workload_type: str
    model: str
    created_at: datetime
    updated_at: datetime
    agent: dict[str, Any] | None = None
    """The custom resource, if the agent is declared by one."""
    model_provider: str = field(default="", name="modelProvider")
    model_config_ref: str = field(default="", name="modelConfigRef")
    memory_refs: list[str] = field(default_factory=list, name="memoryRefs")
    tools: list[Any] = []
    deployment_ready: bool = field(default=True, name="deploymentReady")
    accepted: bool = True


class _WireTool(Struct, frozen=True):
    """A discovered tool of a tool server."""

    name: str
    description: str = ""


class _NewToolServer(Struct, rename="camel"):
    """A tool server with its discovered tools."""

    ref: str
    group_kind: str = KINDS[0]
    description: str = ""
    discovered_tools: list[_WireTool] = []


class _WireToolServer(Struct, frozen=True, rename="camel"):
    """A tool server in a response."""

    ref: str
    group_kind: str
    discovered_tools: list[_WireTool]


class _WireListedTool(Struct, frozen=True):
    """A tool in a list of all tools."""

    id: str
    server_name: str
    group_kind: str
    description: str
    created_at: datetime
    updated_at: datetime


class _Version(Struct, frozen=True):
    """The versions of the API and of the server."""

    kagent_version: str = "0.10.4"
    git_commit: str = ""
    build_date: str = ""
    holdfast_version: str = field(default_factory=lambda: holdfast.__version__)


_AGENT = msgspec.json.Decoder(_NewAgent)
_SERVER = msgspec.json.Decoder(_NewToolServer)


@route("GET", "/health")
async def health_of_kagent(request: KagentRequest) -> Response:
    """Whether the process is alive."""
    return Response("OK", 200, media_type="text/plain")


@route("GET", "/version")
async def version(request: KagentRequest) -> Response:
    """Return the versions of kagent's protocol and of Holdfast."""
    return bare(_Version())


@route("GET", "/api/me")
async def me(request: KagentRequest) -> Response:
    """Return the user that the request is made for."""
    return bare({"sub": request.user})


@route("GET", "/api/agents")
async def list_agents_of_kagent(request: KagentRequest) -> Response:
    """List all registered agents, or those that resources of one ``namespace`` declare."""
    agents = await request.tenant.agents.list()
    where = [column("kind").is_in(["Agent", "ModelConfig"])]
    declared = {row.ref: row for row in await request.tenant.declared.list(where=where)}
    by_id = {agent_id(f"{row.namespace}/{row.name}"): row for row in declared.values() if row.kind == "Agent"}
    namespace = request.query.get("namespace", "")
    chosen = [agent for agent in agents if not namespace or getattr(by_id.get(agent.id), "namespace", "") == namespace]
    listed = [_wire_agent(agent, by_id.get(agent.id), declared) for agent in chosen]
    return success(listed, "Successfully listed agents")


@route("POST", "/api/agents")
@route("PUT", "/api/agents")
async def register_agent(request: KagentRequest) -> Response:
    """Register an agent with its type and configuration, or update an existing one. Agents that start a session are
    registered automatically, without type and configuration."""
    body = request.body(_AGENT)
    id = await ensure_agent(request, body.agent_ref)
    fields = {"type": body.type, "config": body.config, "workload_type": body.workload_type}
    changes = {name: value for name, value in fields.items() if value is not None}
    for _ in range(MAX_TRIES):
        current = await request.tenant.agents.get(id)
        try:
            change = AgentChange(metadata={**current.metadata, **changes})
            agent = await request.tenant.agents.update(id, change=change, version=current.version)
        except Conflict:
            continue  # another request changed it: read it again, so that no change is lost
        return success(_wire_agent(agent), "Successfully created agent", 201)
    raise Unavailable(f"agent {id!r} is changed by too many requests at once; nothing was changed, retry")


@route("GET", "/api/agents/{namespace}/{name}")
async def get_agent_of_kagent(request: KagentRequest) -> Response:
    """Get one agent."""
    agent = await request.tenant.agents.get(_id(request))
    name = f"{request.names['namespace']}/{request.names['name']}"
    resource = await request.tenant.declared.find(f"Agent/{name}")
    model = None if resource is None else await request.tenant.declared.find(f"ModelConfig/{agent.provider}")
    return success(
        _wire_agent(agent, resource, {} if model is None else {model.ref: model}), "Successfully retrieved agent"
    )


@route("DELETE", "/api/agents/{namespace}/{name}")
async def delete_agent_of_kagent(request: KagentRequest) -> Response:
    """Delete an agent; its sessions remain."""
    await request.tenant.agents.delete(_id(request))
    return success({}, "Successfully deleted agent")


@route("GET", "/api/tools")
async def list_tools(request: KagentRequest) -> Response:
    """List the tools of all servers."""
    tools = await request.tenant.mcp_servers.tools()
    return success(
        [
            _WireListedTool(tool.name, tool.server, tool.kind, tool.description, tool.created_at, tool.updated_at)
            for tool in tools
        ],
        "Successfully listed tools",
    )


@route("GET", "/api/toolservers")
async def list_tool_servers(request: KagentRequest) -> Response:
    """List the tool servers with their tools."""
    by_server: dict[tuple[str, str], list[_WireTool]] = {}
    for tool in await request.tenant.mcp_servers.tools():
        by_server.setdefault((tool.server, tool.kind), []).append(_WireTool(tool.name, tool.description))
    servers = await request.tenant.mcp_servers.list()
    return success(
        [
            _WireToolServer(server.name, server.kind, by_server.get((server.name, server.kind), []))
            for server in servers
        ],
        "Successfully listed ToolServers",
    )


@route("POST", "/api/toolservers")
async def register_tool_server(request: KagentRequest) -> Response:
    """Register a tool server with its tools, or update an existing one. How to connect to it stays unchanged."""
    body = request.body(_SERVER)
    if body.group_kind not in KINDS:
        raise InvalidInput(f"groupKind must be one of {', '.join(KINDS)}, not {body.group_kind!r}", field="groupKind")
    server = await _register(request, body)
    result = _WireToolServer(server.name, server.kind, body.discovered_tools)
    return success(result, "Successfully created ToolServer", 201)


async def _register(request: KagentRequest, body: _NewToolServer) -> McpServer:
    tools = [NewMcpTool(tool.name, tool.description) for tool in body.discovered_tools]
    servers = request.tenant.mcp_servers
    for _ in range(MAX_TRIES):
        current = await servers.find(body.ref, body.group_kind)
        try:
            if current is None:
                new = NewMcpServer(body.ref, body.group_kind, description=body.description, tools=tools)
                return await servers.create(new)
            change = McpServerChange(description=body.description, tools=tools)
            return await servers.update(current.id, change=change)
        except (AlreadyExists, NotFound):
            continue  # another request created or deleted it
    raise Unavailable(f"tool server {body.ref!r} is changed by too many requests at once; nothing was changed, retry")


@route("DELETE", "/api/toolservers/{namespace}/{name}")
async def delete_tool_server(request: KagentRequest) -> Response:
    """Delete a tool server of any kind, with its tools."""
    ref = f"{request.names['namespace']}/{request.names['name']}"
    servers = await request.tenant.mcp_servers.list(where=[column("name").eq(ref)])
    if not servers:
        raise NotFound("ToolServer not found", noun="tool server", key=ref)
    for server in servers:
        await request.tenant.mcp_servers.delete(server.id)
    return success({}, "Successfully deleted ToolServer")


@route("GET", "/api/toolservertypes")
async def list_tool_server_types(request: KagentRequest) -> Response:
    """List the kinds of tool servers."""
    return success(list(KINDS), "Successfully listed tool server types")


def _id(request: KagentRequest) -> str:
    return agent_id(f"{request.names['namespace']}/{request.names['name']}")


def _wire_agent(
    agent: Agent, resource: DeclaredResource | None = None, models: Mapping[str, DeclaredResource] | None = None
) -> _WireAgent:
    type, config, workload = (agent.metadata.get(name) for name in ("type", "config", "workload_type"))
    wire = _WireAgent(
        agent.id,
        agent.display_name or agent.key,
        type if isinstance(type, str) else AGENT_TYPE,
        config if isinstance(config, dict) else None,
        workload if isinstance(workload, str) else WORKLOAD_TYPE,
        agent.model,
        agent.created_at,
        agent.updated_at,
    )
    if resource is None:
        return wire
    section = resource.spec.get("declarative", resource.spec)
    model = (models or {}).get(f"ModelConfig/{agent.provider}")
    return structs.replace(
        wire,
        config=wire.config or resource.spec,
        agent={
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": resource.name, "namespace": resource.namespace, **resource.metadata},
            "spec": resource.spec,
        },
        model_provider="" if model is None else model.spec.get("provider", "OpenAI"),
        model_config_ref=agent.provider,
        memory_refs=resource.spec.get("memory", []),
        tools=section.get("tools", []),
    )
