"""ServerTool servers and the tools that were discovered on them.

A server is identified by its name and its kind. Creating or upserting a server replaces its list of tools. Deleting a server
hides it and its tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core import scope as scopes
from ...core.blocking import blocking
from ...core.queries import Queries
from ...core.records import AsyncSoftRecords, Filterable, Key, Limited, Searchable, SoftRecords
from ...core.rows import Column, mapper
from ...core.store import reads
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded
from ..objects.activity import Audited


class ToolServer(Struct, frozen=True):
    """A server that has tools."""

    name: Annotated[str, Key(), Limited("key_bytes", empty=False), Filterable(), Searchable()]
    kind: Annotated[str, Key(), Column("group_kind"), Limited("name_bytes"), Filterable()]
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    last_connected_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ServerTool(Struct, frozen=True):
    """A tool of a tool server."""

    name: str
    server: Annotated[str, Column("server_name")]
    kind: Annotated[str, Column("group_kind")]
    description: str
    created_at: datetime
    updated_at: datetime


class NewServerTool(Struct, frozen=True):
    """A tool of a server to save."""

    name: str
    description: str = ""


class NewToolServer(Struct, frozen=True):
    """A tool server to save, with its current tools."""

    name: str
    kind: str = ""
    description: str = ""
    last_connected_at: datetime | UnsetType | None = UNSET
    tools: list[NewServerTool] = []


class ToolServerChange(Struct, frozen=True):
    """A change of a tool server. Its tools stay unchanged."""

    description: str | UnsetType = UNSET
    last_connected_at: datetime | UnsetType | None = UNSET


queries = Queries(__package__, "tool_servers.sql", ServerTool)


class AsyncToolServers(Audited, AsyncSoftRecords[ToolServer, NewToolServer, ToolServerChange]):
    """The tool servers of one tenant."""

    table, noun, extra = "tool_servers", "tool server", ("tools",)

    @reads
    async def tools(self, connection: Connection, *, server: str | None = None, kind: str = "") -> Sequence[ServerTool]:
        """List the tools of a server, or of all servers, in the order of server and tool names.

        Raises:
            LimitExceeded: there are more than ``list_rows``.
        """
        maximum = self._scope.limits.list_rows
        params, clause = self._scope.params(limit=maximum + 1), ""
        if server is not None:
            params |= self._at((server, kind))
            clause = "\n  AND t.server_name = :name AND t.group_kind = :group_kind"
        rows = await queries.tools.all(connection, params, clause)
        if len(rows) > maximum:
            raise LimitExceeded(
                f"there are more than list_rows = {maximum:,} tools: query those of one server",
                limit="list_rows",
                maximum=maximum,
            )
        return mapper(ServerTool, connection.dialect)(rows)

    def _prepare(self, new: NewToolServer) -> NewToolServer:
        tools: object = new.tools
        if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, NewServerTool) for tool in tools):
            raise InvalidInput(f"tools must be a list of NewServerTool, not {tools!r:.60}", field="tools")
        self._scope.limits.check("tools", len(new.tools), "tools")
        return new

    async def _after_save(self, connection: Connection, argument: Struct, row: ToolServer) -> None:
        if not isinstance(argument, NewToolServer):
            return
        params = self._at((row.name, row.kind)) | {"now_at": self._scope.clock.now_us()}
        tools = {values["tool"]: params | values for values in map(self._tool, argument.tools)}
        names = [name for (name,) in await queries.names.all(connection, params)]
        removed = [params | {"tool": name} for name in names if name not in tools]
        if removed:
            await queries.delete_tool.many(connection, removed)
        if tools:
            await queries.put_tool.many(connection, [*tools.values()])

    def _tool(self, tool: NewServerTool) -> dict[str, Any]:
        limits = self._scope.limits
        return {
            "tool": scopes.name(tool.name, "name of a tool", limits, limit="key_bytes"),
            "tool_description": scopes.free_text(tool.description, "description of a tool", limits),
        }


class ToolServers(SoftRecords[ToolServer, NewToolServer, ToolServerChange]):
    """The tool servers of one tenant."""

    tools = blocking(AsyncToolServers.tools)
