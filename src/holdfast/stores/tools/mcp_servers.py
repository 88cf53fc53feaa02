"""MCP servers: how to connect to each, and the tools that were discovered on it.

A server with a transport is one that agents connect to: over ``stdio`` it is started as a process, over ``sse`` and
``streamable-http`` it is reached at a URL. A server without a transport is only known to exist, with its tools.

People know a server by its name and its kind. Deleting a server hides it with its tools and grants; restoring it shows them
again. A server that is created under the name of a deleted one is a new server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core import scope as scopes
from ...core import text
from ...core.blocking import blocking
from ...core.crypto import Secret
from ...core.filters import Filter, FilterColumns
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.records import (
    AsyncSecretRecords,
    AsyncSoftRecords,
    AtLeast,
    DefaultsTo,
    Filterable,
    Key,
    Limited,
    Metadata,
    Natural,
    OnlyFor,
    Searchable,
    SecretRecords,
    SoftRecords,
    Url,
)
from ...core.records.values import cursor_of, cursor_params
from ...core.rows import Column, mapper
from ...core.store import reads
from ...engines.protocol import Connection
from ...errors import InvalidInput
from ...ids import Id
from ..objects.activity import Audited

Transport = Literal["stdio", "sse", "streamable-http"]
_PROCESS = OnlyFor("transport", ("stdio",))
_OVER_HTTP = OnlyFor("transport", ("sse", "streamable-http"))


class McpServer(Struct, frozen=True):
    """An MCP server. ``env.reveal()``, ``headers.reveal()`` and ``api_key.reveal()`` decrypt its secrets."""

    id: Annotated[Id, Key()]
    name: Annotated[str, Natural(), Limited("key_bytes", empty=False), Filterable(), Searchable()]
    kind: Annotated[str, Natural(), Column("group_kind"), Limited("name_bytes"), Filterable()]
    """The kind of resource that declares the server in Kubernetes, such as ``RemoteMCPServer``; empty for all others."""
    display_name: Annotated[str, Limited("display_bytes"), Searchable()]
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    transport: Annotated[Transport | None, Filterable()]
    command: Annotated[str, Limited("path_bytes"), OnlyFor("transport", ("stdio",), required=True)]
    args: Annotated[list[str], Limited("text_bytes"), _PROCESS]
    env: Annotated[Secret[dict[str, str]] | None, _PROCESS]
    url: Annotated[str, Limited("url_bytes"), Url(), OnlyFor("transport", ("sse", "streamable-http"), required=True)]
    headers: Annotated[Secret[dict[str, str]] | None, _OVER_HTTP]
    api_key: Secret[str] | None
    tool_prefix: Annotated[str, Limited("name_bytes")]
    """A prefix of the tools' names, so that agents can tell the tools of several servers apart."""
    timeout_ms: Annotated[int, AtLeast(1), Limited("tool_timeout_ms")]
    settings: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    is_enabled: Annotated[bool, Filterable()]
    created_by: Annotated[str, Limited("name_bytes"), Filterable(), DefaultsTo(actor="user")]
    last_connected_at: datetime | None
    version: int
    created_at: datetime
    updated_at: datetime


class McpTool(Struct, frozen=True):
    """A tool that was discovered on an MCP server."""

    name: Annotated[str, Column("t.name")]
    description: Annotated[str, Column("t.description")]
    server_id: Annotated[Id, Column("t.server_id")]
    server: Annotated[str, Column("s.name")]
    kind: Annotated[str, Column("s.group_kind")]
    """The kind of the server."""
    created_at: Annotated[datetime, Column("t.created_at")]
    updated_at: Annotated[datetime, Column("t.updated_at")]


class McpAccess(Struct, frozen=True):
    """An MCP server that an agent may use for a user. The lists are those of both grants, combined and sorted."""

    server: McpServer
    tool_allow: list[str] | None
    """The tools that both grants allow; all if it is ``None``."""
    tool_deny: list[str]
    """The tools that one of the grants denies, even if they are allowed."""
    config_overrides: dict[str, Any]

    def allows(self, tool: str) -> bool:
        """Return whether a tool of the server may be used."""
        return tool not in self.tool_deny and (self.tool_allow is None or tool in self.tool_allow)


class _GrantedTools(Struct, frozen=True):
    """The lists of the grant to an agent and of that to a user."""

    config_overrides: Annotated[dict[str, Any], Column("g.config_overrides")]
    agent_allow: Annotated[list[str] | None, Column("g.tool_allow")]
    agent_deny: Annotated[list[str], Column("g.tool_deny")]
    user_allow: Annotated[list[str] | None, Column("u.tool_allow")]
    user_deny: Annotated[list[str] | None, Column("u.tool_deny")]

    def access(self, server: McpServer) -> McpAccess:
        """Return the access to a server that both grants give."""
        allowed = [set(tools) for tools in (self.agent_allow, self.user_allow) if tools is not None]
        allow = sorted(set.intersection(*allowed)) if allowed else None
        return McpAccess(server, allow, sorted({*self.agent_deny, *(self.user_deny or ())}), self.config_overrides)


class NewMcpTool(Struct, frozen=True):
    """A tool of an MCP server to save."""

    name: str
    description: str = ""


class NewMcpServer(Struct, frozen=True):
    """An MCP server to save. ``tools`` replaces the tools discovered on it; without it they stay.

    Without ``created_by``, it names the user of the actor context.
    """

    name: str
    kind: str = ""
    id: str | UnsetType = UNSET
    display_name: str = ""
    description: str = ""
    transport: Transport | None = None
    command: str = ""
    args: list[str] = []
    env: Secret[dict[str, str]] | None = None
    url: str = ""
    headers: Secret[dict[str, str]] | None = None
    api_key: Secret[str] | None = None
    tool_prefix: str = ""
    timeout_ms: int = 60_000
    settings: dict[str, Any] = {}
    is_enabled: bool = True
    created_by: str | UnsetType = UNSET
    last_connected_at: datetime | UnsetType | None = UNSET
    tools: list[NewMcpTool] | UnsetType = UNSET


class McpServerChange(Struct, frozen=True):
    """A change of an MCP server. Another transport needs its own fields, and the fields of the previous one must be cleared.

    ``tools`` replaces the tools discovered on the server.
    """

    name: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    transport: Transport | UnsetType | None = UNSET
    command: str | UnsetType = UNSET
    args: list[str] | UnsetType = UNSET
    env: Secret[dict[str, str]] | UnsetType | None = UNSET
    url: str | UnsetType = UNSET
    headers: Secret[dict[str, str]] | UnsetType | None = UNSET
    api_key: Secret[str] | UnsetType | None = UNSET
    tool_prefix: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET
    last_connected_at: datetime | UnsetType | None = UNSET
    tools: list[NewMcpTool] | UnsetType = UNSET


queries = Queries(__package__, "mcp_servers.sql", McpServer, McpTool, _GrantedTools)
TOOL_FILTERS = FilterColumns(
    {
        "name": ("t.name", "text"),
        "server": ("s.name", "text"),
        "kind": ("s.group_kind", "text"),
        "server_id": ("t.server_id", "id"),
    }
)

SERVERS_IN_ORDER = "mcp_servers_by_name"
"""The index by which SQLite reads the servers of a list of tools, unless the list is that of one server's id."""


class AsyncMcpServers(
    Audited,
    AsyncSecretRecords[McpServer, NewMcpServer, McpServerChange],
    AsyncSoftRecords[McpServer, NewMcpServer, McpServerChange],
):
    """The MCP servers of one tenant, by name and kind."""

    table, noun, order, extra = "mcp_servers", "MCP server", ("name", "kind"), ("tools",)

    @reads
    async def tools(
        self,
        connection: Connection,
        *,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[McpTool]:
        """List discovered tools in the order of servers, kinds and names. With ``limit``, a page.

        Filters: ``name``, and ``server``, ``kind`` and ``server_id`` of the server.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = TOOL_FILTERS.compile(where, params, connection.dialect, limits)
        if cursor is not None:
            server, kind, name = map(text.escape, decode_cursor(cursor, "mcp_tools", str, str, str))
            params |= {"after_server": server, "after_kind": kind, "after_name": name}
            # The first condition is what an index of servers can use.
            clause += """
  AND (s.name, s.group_kind) >= (:after_server, :after_kind)
  AND (s.name, s.group_kind, t.name) > (:after_server, :after_kind, :after_name)"""
        index = "" if any(item.column == "server_id" for item in where) else SERVERS_IN_ORDER
        rows = mapper(McpTool, connection.dialect)(await queries.tools.all(connection, params, clause, index))
        return page(
            rows, limit, limits, "tools", lambda tool: encode_cursor("mcp_tools", tool.server, tool.kind, tool.name)
        )

    @reads
    async def list_accessible(
        self,
        connection: Connection,
        agent: str,
        user: str | None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[McpAccess]:
        """List the servers that an agent may use for a user, with their tools, the oldest first. With ``limit``, a page.

        The agent needs an enabled grant. A grant to the user is optional: a disabled one blocks the server, and its lists of
        tools are combined with those of the agent. Servers that are disabled are left out. Without a user, for work that is
        done for no one, only the agent's grants count.

        Raises:
            InvalidFilter: the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(
            agent_id=scopes.name(agent, "agent", limits),
            user_id=None if user is None else scopes.name(user, "user", limits),
            limit=rows_to_read(limit, limits),
        )
        listing, order = "mcp_access", self.declared.key
        query = queries.accessible
        if cursor is not None:
            query = queries.accessible_after
            params |= cursor_params(cursor, listing, order)
        found = await query.all(connection, params)
        width = len(McpServer.__struct_fields__)
        servers = self._rows(connection, [row[:width] for row in found])
        grants = mapper(_GrantedTools, connection.dialect)([row[width:] for row in found])
        rows = [granted.access(server) for server, granted in zip(servers, grants, strict=True)]
        return page(rows, limit, limits, self.nouns, lambda row: cursor_of(listing, order, row.server))

    async def _after_save(self, connection: Connection, given: Struct, row: McpServer) -> Sequence[str]:
        tools = getattr(given, "tools", UNSET)
        return [] if tools is UNSET else await self._replace_tools(connection, row.id, tools)

    async def _replace_tools(self, connection: Connection, server_id: str, tools: object) -> Sequence[str]:
        if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, NewMcpTool) for tool in tools):
            raise InvalidInput(f"tools must be a list of NewMcpTool, not {tools!r:.60}", field="tools")
        limits = self._scope.limits
        limits.check("tools", len(tools), "tools")
        given = {
            scopes.name(tool.name, "name of a tool", limits, limit="key_bytes"): scopes.free_text(
                tool.description, "description of a tool", limits
            )
            for tool in tools
        }
        params = self._at([server_id]) | {"now_at": self._scope.clock.now_us()}
        stored: dict[str, str] = dict(await queries.tools_of_server.all(connection, params))
        removed = [{**params, "tool": name} for name in stored if name not in given]
        changed = [
            {**params, "tool": name, "description": description}
            for name, description in given.items()
            if stored.get(name) != description
        ]
        if removed:
            await queries.delete_tool.many(connection, removed)
        if changed:
            await queries.put_tool.many(connection, changed)
        return ["tools"] if removed or changed else []


class McpServers(
    SecretRecords[McpServer, NewMcpServer, McpServerChange], SoftRecords[McpServer, NewMcpServer, McpServerChange]
):
    """The MCP servers of one tenant, by name and kind."""

    tools = blocking(AsyncMcpServers.tools)
    list_accessible = blocking(AsyncMcpServers.list_accessible)
