"""``holdfast mcp``: MCP servers and their tools, who may use them, and requests for access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import click
from msgspec import structs

from holdfast import column
from holdfast.errors import NotFound
from holdfast.types import AsyncMcpGrants, AsyncMcpServers, McpRequest

from .database import open_tenant, tenant_option
from .grant_commands import add_grants
from .output import json_option, print_json, print_table
from .record_commands import MAX_ROWS, acting_option, as_user, cell, record_commands

_limit = click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, MAX_ROWS), help="Maximum number of rows."
)
_cursor = click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")
_id = click.argument("request_id", metavar="ID")
_note = click.option("--note", default="", help="A note of the reviewer.")


def server_id(handle: Any, server: str) -> str:
    """Return the id of a server that the caller names by its name or its id.

    Raises:
        NotFound: no server has this name.
        UsageError: several servers of different kinds have it.
    """
    servers = handle.mcp_servers.list(where=[column("name").eq(server)])
    if len(servers) > 1:
        ids = ", ".join(f"{row.id} ({row.kind or 'no kind'})" for row in servers)
        raise click.UsageError(f"several MCP servers have the name {server!r}; name one by its id: {ids}")
    if servers:
        return str(servers[0].id)
    try:
        return str(UUID(server))
    except ValueError:
        raise NotFound(f"MCP server {server!r} does not exist", noun="MCP server", key=server) from None


@click.group()
def mcp() -> None:
    """Manage MCP servers and who may use them."""


mcp.add_command(
    record_commands(
        "mcp_servers",
        AsyncMcpServers,
        name="servers",
        columns=["name", "kind", "transport", "is_enabled", "last_connected_at", "id"],
        about="Manage MCP servers: how to connect to each.",
    )
)


@mcp.command()
@tenant_option
@click.argument("server", required=False)
@_limit
@_cursor
@json_option
def tools(database: str, tenant: str, server: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the tools discovered on all servers, or on one SERVER, which is a name or an id."""
    with open_tenant(database, tenant) as handle:
        where = [] if server is None else [column("server_id").eq(server_id(handle, server))]
        page = handle.mcp_servers.tools(where=where, limit=limit, cursor=cursor)
    if as_json:
        print_json({"tools": [*page], "next": page.next})
        return
    rows = [[row.server, row.kind, row.name, row.description] for row in page]
    print_table(f"Tools of {tenant}", ["server", "kind", "name", "description"], rows)


@mcp.command()
@tenant_option
@click.argument("agent")
@click.option("--user", help="The user for whom the agent works; without one, only the agent's grants count.")
@_limit
@_cursor
@json_option
def access(
    database: str, tenant: str, agent: str, user: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List the servers that an AGENT may use, with the tools that its grants and those to the user allow and deny."""
    with open_tenant(database, tenant) as handle:
        page = handle.mcp_servers.list_accessible(agent, user, limit=limit, cursor=cursor)
    if as_json:
        print_json({"access": [*page], "next": page.next})
        return
    rows = [
        [row.server.name, "all" if row.tool_allow is None else cell(row.tool_allow), cell(row.tool_deny)]
        for row in page
    ]
    print_table(f"MCP servers of {agent}", ["server", "allowed tools", "denied tools"], rows)


@mcp.group()
def grants() -> None:
    """Manage the agents and users that may use a server. SERVER is a name or an id."""


add_grants(grants, "mcp_grants", AsyncMcpGrants, list="list", key_of=server_id)


@mcp.group()
def requests() -> None:
    """Request access to a server, and review such requests."""


@requests.command("list")
@tenant_option
@click.option("--status", default="pending", show_default=True, help="Only those with this status.")
@click.option("--server", help="Only those for this server: a name or an id.")
@_limit
@_cursor
@json_option
def list_requests(
    database: str, tenant: str, status: str, server: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List requests, the oldest first."""
    with open_tenant(database, tenant) as handle:
        where = [] if server is None else [column("server").eq(server_id(handle, server))]
        page = handle.mcp_requests.list(status=status, where=where, limit=limit, cursor=cursor)
    if as_json:
        print_json({"requests": [*page], "next": page.next})
        return
    columns = ["id", "server", "scope", "agent", "user", "tool_allow", "reason", "requested_by"]
    rows = [[cell(getattr(row, name)) for name in columns] for row in page]
    print_table(f"MCP requests of {tenant}", [name.replace("_", " ") for name in columns], rows)


@requests.command()
@tenant_option
@_id
@json_option
def show(database: str, tenant: str, request_id: str, as_json: bool) -> None:
    """Show the request ID."""
    with open_tenant(database, tenant) as handle:
        row = handle.mcp_requests.get(request_id)
    _print(row, as_json)


@requests.command()
@tenant_option
@click.argument("server")
@click.option("--agent", help="Request access for this agent.")
@click.option("--user", help="Request access for this user.")
@click.option("--tool", "tools", multiple=True, help="A tool to allow; repeatable. Without it, all tools.")
@click.option("--reason", default="", help="Why access is needed.")
@acting_option
@json_option
def create(
    database: str,
    tenant: str,
    server: str,
    agent: str | None,
    user: str | None,
    tools: Sequence[str],
    reason: str,
    acting: str | None,
    as_json: bool,
) -> None:
    """Request access to a SERVER, which is a name or an id, for an agent or a user."""
    if (agent is None) == (user is None):
        raise click.UsageError("name either an --agent or a --user")
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        row = handle.mcp_requests.create(
            server_id(handle, server),
            scope="agent" if user is None else "user",
            agent=agent,
            user=user,
            tool_allow=[*tools] or None,
            reason=reason,
        )
    _print(row, as_json)


@requests.command()
@tenant_option
@_id
@_note
@acting_option
@json_option
def approve(database: str, tenant: str, request_id: str, note: str, acting: str | None, as_json: bool) -> None:
    """Approve the request ID: make the grant that it asks for."""
    _review(database, tenant, request_id, note, acting, as_json, approved=True)


@requests.command()
@tenant_option
@_id
@_note
@acting_option
@json_option
def reject(database: str, tenant: str, request_id: str, note: str, acting: str | None, as_json: bool) -> None:
    """Reject the request ID."""
    _review(database, tenant, request_id, note, acting, as_json, approved=False)


@requests.command()
@tenant_option
@_id
@acting_option
@json_option
def cancel(database: str, tenant: str, request_id: str, acting: str | None, as_json: bool) -> None:
    """Cancel the request ID, if it was not reviewed."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        row = handle.mcp_requests.cancel(request_id)
    _print(row, as_json)


def _review(
    database: str, tenant: str, request_id: str, note: str, acting: str | None, as_json: bool, *, approved: bool
) -> None:
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        row = handle.mcp_requests.review(request_id, approved=approved, note=note)
    _print(row, as_json)


def _print(row: McpRequest, as_json: bool) -> None:
    if as_json:
        print_json({"request": row})
        return
    rows = [[name.replace("_", " "), cell(value)] for name, value in structs.asdict(row).items()]
    print_table("MCP request", ["field", "value"], rows)
