"""Tool servers and the tools that were discovered on them.

A server is known by its name and its kind. Whoever looks at it says what tools it has now, and that replaces what it had.
Deleting hides a server with its tools; ``restore`` undoes it, and registering it anew makes it live with what it has then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...clock import to_us
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ...core.queries import Queries
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import InvalidInput, LimitExceeded, NotFound
from ..objects.registration import register_tenant


class ToolServer(Struct, frozen=True):
    """A server that has tools."""

    name: str
    kind: Annotated[str, Column("group_kind")]
    description: str
    last_connected_at: datetime | None
    created_at: datetime
    updated_at: datetime


class Tool(Struct, frozen=True):
    """A tool, and where it is."""

    name: str
    server: Annotated[str, Column("server_name")]
    kind: Annotated[str, Column("group_kind")]
    description: str
    created_at: datetime
    updated_at: datetime


class NewTool(Struct, frozen=True):
    """A tool that a server has."""

    name: str
    description: str = ""


queries = Queries(__package__, "tool_servers.sql", ToolServer, Tool)


class AsyncToolServers(TenantStore):
    """The tool servers of one tenant."""

    @writes
    async def upsert(
        self,
        connection: Connection,
        name: str,
        *,
        kind: str = "",
        description: str = "",
        tools: Sequence[NewTool] = (),
        connected_at: datetime | None = None,
    ) -> ToolServer:
        """A server as it is now, with the tools it has now; made if it is not there, and live if it was deleted.

        Raises:
            LimitExceeded: it has more tools than ``tools``.
        """
        if not isinstance(tools, Sequence) or not all(isinstance(each, NewTool) for each in tools):
            raise InvalidInput("tools come as a list of NewTool")
        if connected_at is not None and (not isinstance(connected_at, datetime) or connected_at.tzinfo is None):
            raise InvalidInput("connected_at is a datetime with a time zone")
        limits = self._scope.limits
        limits.check("tools", len(tools), "tools")
        params = self._at(name, kind) | {
            "description": scopes.free_text(description, "description", limits),
            "connected_at": None if connected_at is None else to_us(connected_at),
            "now_at": self._scope.clock.now_us(),
        }
        rows = {row["tool"]: row for row in [params | self._tool(each) for each in tools]}
        await register_tenant(connection, params)
        row = await queries.upsert.one(connection, params)
        assert row is not None
        gone = [each[0] for each in await queries.names.all(connection, params) if each[0] not in rows]
        if gone:
            await queries.delete_tool.many(connection, [params | {"tool": each} for each in gone])
        if rows:
            await queries.put_tool.many(connection, list(rows.values()))
        return _server(connection, row)

    @reads
    async def find(self, connection: Connection, name: str, *, kind: str = "") -> ToolServer | None:
        """A server, or ``None``."""
        row = await queries.find.one(connection, self._at(name, kind))
        return None if row is None else _server(connection, row)

    @reads
    async def list(
        self, connection: Connection, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[ToolServer]:
        """The servers by name. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        name, kind = ("", "") if cursor is None else decode_cursor(cursor, "tool_servers", str, str)
        params = self._scope.params(
            after_name=text.escape(name), after_kind=text.escape(kind), limit=rows_to_read(limit, limits)
        )
        found = mapper(ToolServer, connection.dialect)(await queries.list.all(connection, params))
        most = limits.list_rows if limit is None else limit
        if limit is None and len(found) > most:
            raise LimitExceeded(f"there are more than list_rows = {most:,} servers: page them with limit= and cursor=")
        if len(found) <= most:
            return Page(found)
        return Page(found[:most], encode_cursor("tool_servers", found[most - 1].name, found[most - 1].kind))

    @reads
    async def tools(self, connection: Connection, *, server: str | None = None, kind: str = "") -> Sequence[Tool]:
        """The tools of a server, or of all of them, by the names of servers and tools.

        Raises:
            LimitExceeded: there are more than ``list_rows``.
        """
        most = self._scope.limits.list_rows
        params = self._scope.params(limit=most + 1)
        clause = ""
        if server is not None:
            params |= self._at(server, kind)
            clause = "\n  AND t.server_name = :name AND t.group_kind = :group_kind"
        rows = await queries.tools.all(connection, params, clause)
        if len(rows) > most:
            raise LimitExceeded(f"there are more than list_rows = {most:,} tools: ask for those of one server")
        return mapper(Tool, connection.dialect)(rows)

    @writes
    async def delete(self, connection: Connection, name: str, *, kind: str = "") -> None:
        """Hide a server with its tools.

        Raises:
            NotFound: there is no such server.
        """
        params = self._at(name, kind) | {"now_at": self._scope.clock.now_us()}
        if await queries.delete.one(connection, params) is None:
            raise NotFound(f"there is no tool server {name!r} here")

    @writes
    async def restore(self, connection: Connection, name: str, *, kind: str = "") -> ToolServer:
        """Bring a deleted server back with the tools it had. A live one is returned unchanged.

        Raises:
            NotFound: there never was such a server.
        """
        row = await queries.restore.one(connection, self._at(name, kind))
        if row is None:
            raise NotFound(f"there is no tool server {name!r} here")
        return _server(connection, row)

    def _at(self, name: str, kind: str) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            name=scopes.name(name, "name of a tool server", limits, limit="key_bytes"),
            group_kind=scopes.free_text(kind, "kind", limits, limit="name_bytes"),
        )

    def _tool(self, tool: NewTool) -> dict[str, Any]:
        limits = self._scope.limits
        return {
            "tool": scopes.name(tool.name, "name of a tool", limits, limit="key_bytes"),
            "tool_description": scopes.free_text(tool.description, "description", limits),
        }


class ToolServers(Blocking[AsyncToolServers]):
    """The tool servers of one tenant."""

    upsert = blocking(AsyncToolServers.upsert)
    find = blocking(AsyncToolServers.find)
    list = blocking(AsyncToolServers.list)
    tools = blocking(AsyncToolServers.tools)
    delete = blocking(AsyncToolServers.delete)
    restore = blocking(AsyncToolServers.restore)


def _server(connection: Connection, row: Row) -> ToolServer:
    return mapper(ToolServer, connection.dialect)([row])[0]
