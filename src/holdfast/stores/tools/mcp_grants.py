"""Grants of MCP servers: which agents may use a server, what each user may use of it, and which tools.

An agent needs an enabled grant. A user needs none, but a grant to a user narrows what agents may do for that user: a disabled
one blocks the server, and its lists of tools are combined with those of the agent's grant. ``acme.mcp_servers.list_accessible``
returns the result.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core.grants import AsyncGrants, Grants, GrantTable
from ...core.records import Limited, Names, References
from ...core.rows import Column
from ...ids import Id
from ..agents.agent_shares import LIVE_AGENT
from ..objects.activity import Audited

Server = Annotated[Id, Column("server_id"), References("mcp_servers", "MCP server", live="deleted_at IS NULL")]


class McpAgentGrant(Struct, frozen=True):
    """An agent may use an MCP server."""

    server: Server
    agent: Annotated[str, Column("agent_id"), Limited("name_bytes", empty=False), LIVE_AGENT]
    is_enabled: bool
    tool_allow: Annotated[list[str] | None, Names("tools")]
    """The tools that may be used; all if it is ``None``."""
    tool_deny: Annotated[list[str], Names("tools")]
    """Tools that must not be used, even if they are allowed."""
    config_overrides: Annotated[dict[str, Any], Limited("metadata_bytes")]
    granted_by: Annotated[str, Limited("name_bytes")]
    """The actor who made the grant last; empty if none was set."""
    created_at: datetime
    updated_at: datetime


class NewMcpAgentGrant(Struct, frozen=True):
    """A grant to an agent. Without ``granted_by``, it names the actor."""

    server: str
    agent: str
    is_enabled: bool = True
    tool_allow: list[str] | None = None
    tool_deny: list[str] = []
    config_overrides: dict[str, Any] = {}
    granted_by: str | UnsetType = UNSET


class McpUserGrant(Struct, frozen=True):
    """What a user may use of an MCP server, through any agent that may use it."""

    server: Server
    user: Annotated[str, Column("user_id"), Limited("name_bytes", empty=False)]
    is_enabled: bool
    tool_allow: Annotated[list[str] | None, Names("tools")]
    tool_deny: Annotated[list[str], Names("tools")]
    granted_by: Annotated[str, Limited("name_bytes")]
    created_at: datetime
    updated_at: datetime


class NewMcpUserGrant(Struct, frozen=True):
    """A grant to a user. Without ``granted_by``, it names the actor."""

    server: str
    user: str
    is_enabled: bool = True
    tool_allow: list[str] | None = None
    tool_deny: list[str] = []
    granted_by: str | UnsetType = UNSET


McpGrant = McpAgentGrant | McpUserGrant
NewMcpGrant = NewMcpAgentGrant | NewMcpUserGrant


class AsyncMcpGrants(Audited, AsyncGrants[McpGrant, NewMcpGrant]):
    """The grants of one tenant's MCP servers, of the kinds ``agent`` and ``user``."""

    grants = (
        GrantTable(
            "mcp_agent_grants",
            McpAgentGrant,
            NewMcpAgentGrant,
            resource="server",
            principal="agent",
            noun="MCP agent grant",
            kept=("tool_deny", "config_overrides"),
        ),
        GrantTable(
            "mcp_user_grants",
            McpUserGrant,
            NewMcpUserGrant,
            resource="server",
            principal="user",
            noun="MCP user grant",
            kept=("tool_deny",),
        ),
    )


class McpGrants(Grants[McpGrant, NewMcpGrant]):
    """The grants of one tenant's MCP servers, of the kinds ``agent`` and ``user``."""
