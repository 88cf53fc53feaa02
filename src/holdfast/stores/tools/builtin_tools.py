"""Builtin tools: the tools that a program brings along, each of which can be disabled and configured.

The program describes its tools with ``seed`` when it starts. People change only whether a tool is enabled, and its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core.actor_context import ActorContext
from ...core.blocking import blocking
from ...core.filters import column
from ...core.paging import Page
from ...core.queries import Queries
from ...core.records import AsyncRecords, Filterable, Key, Limited, Metadata, Names, Records, Searchable
from ...core.records.values import encode_row_value, is_same
from ...core.store import only_reads, reads, writes_with_actor
from ...engines.protocol import Connection
from ...errors import InvalidInput
from ..objects.activity import Audited


class BuiltinTool(Struct, frozen=True):
    """A tool that a program brings along."""

    name: Annotated[str, Key(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    display_name: Annotated[str, Limited("display_bytes"), Searchable()]
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    category: Annotated[str, Limited("name_bytes", empty=False), Filterable()]
    settings: Annotated[dict[str, Any], Limited("metadata_bytes")]
    requires: Annotated[list[str], Names("tools")]
    """What the tool depends on, such as a program or a service."""
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    is_enabled: Annotated[bool, Filterable()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewBuiltinTool(Struct, frozen=True):
    """A builtin tool to create or to describe."""

    name: str
    display_name: str = ""
    description: str = ""
    category: str = "general"
    settings: dict[str, Any] = {}
    requires: list[str] = []
    metadata: dict[str, Any] = {}
    is_enabled: bool = True


class BuiltinToolChange(Struct, frozen=True):
    """A change of a builtin tool."""

    is_enabled: bool | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET


class SeedResult(Struct, frozen=True):
    """The names of the tools that ``seed`` created, changed and removed."""

    created: list[str]
    changed: list[str]
    removed: list[str]


queries = Queries(__package__, "builtin_tools.sql", BuiltinTool)


class AsyncBuiltinTools(Audited, AsyncRecords[BuiltinTool, NewBuiltinTool, BuiltinToolChange]):
    """The builtin tools of one tenant, by category and name."""

    table, noun, order = "builtin_tools", "builtin tool", ("category", "name")

    @writes_with_actor
    async def seed(
        self, connection: Connection, acting: ActorContext, tools: Sequence[NewBuiltinTool], *, prune: bool = False
    ) -> SeedResult:
        """Create the tools that do not exist, and update the descriptions of those that do, in one transaction.

        ``is_enabled`` of an existing tool stays, and so do its settings, unless they are empty. With ``prune``, tools that
        are not in the list are removed.

        Raises:
            InvalidInput: the list is empty, without ``prune``, or names a tool twice.
            LimitExceeded: there are more tools than ``builtin_tools``.
        """
        seeds = self._seeds(tools, prune=prune)
        existing = {
            row.name: row for row in self._rows(connection, await queries.lock_all.all(connection, self._now({})))
        }
        result = SeedResult([], [], [])
        for name, new in seeds.items():
            params = self._now(self._new_values(new, acting))
            row = existing.get(name)
            if row is None:
                row = await self._insert(connection, acting, params)
                if row is not None:
                    result.created.append(name)
                    await self._on_change(connection, acting, "created", row, ())
                    continue
                row = await self._lock_row(connection, (name,), None)  # another call has just created it
            if await self._describe(connection, acting, row, params):
                result.changed.append(name)
        if prune:
            for row in existing.values():
                if row.name not in seeds:
                    result.removed.append(row.name)
                    await self.queries.delete.all(connection, self._at((row.name,)))
                    await self._on_change(connection, acting, "deleted", row, ())
        return result

    @only_reads
    async def list_enabled(self) -> Page[BuiltinTool]:
        """List the enabled tools, by category and name.

        Raises:
            LimitExceeded: there are more than ``list_rows``.
        """
        return await self.list(where=[column("is_enabled").eq(True)])

    @reads
    async def settings(self, connection: Connection, name: str) -> dict[str, Any]:
        """Return the settings of a tool.

        Raises:
            NotFound: the tool does not exist.
        """
        row = await self._one(connection, self.queries.get, self._at((name,)))
        if row is None:
            raise self._missing((name,))
        return row.settings

    def _seeds(self, tools: Sequence[NewBuiltinTool], *, prune: bool) -> dict[str, NewBuiltinTool]:
        """Return the tools by name."""
        listed: object = tools
        if not isinstance(listed, list | tuple):
            raise InvalidInput(f"tools must be a list of NewBuiltinTool, not {type(listed).__name__}", field="tools")
        if not tools and not prune:
            raise InvalidInput("tools is empty: pass prune=True to remove all builtin tools", field="tools")
        self._scope.limits.check("builtin_tools", len(tools), "tools")
        seeds: dict[str, NewBuiltinTool] = {}
        for tool in map(self._checked, tools):
            self._at((tool.name,))  # raises an error for a name that is not a text
            if seeds.setdefault(tool.name, tool) is not tool:
                raise InvalidInput(f"tools contains {tool.name!r} twice", field="tools")
        return seeds

    async def _describe(
        self, connection: Connection, acting: ActorContext, row: BuiltinTool, params: dict[str, Any]
    ) -> bool:
        """Update the description of a tool, which is locked; return whether anything differs."""
        kept = {"name", "is_enabled", *(["settings"] if row.settings else [])}
        fields = [field for field in self.declared.new_fields if field.name not in kept]
        different = [field.name for field in fields if not is_same(field, params[field.column], row)]
        if not different:
            return False
        if row.settings:
            params |= {"settings": encode_row_value(self.declared.fields["settings"], row.settings)}
        changed = await self._one(connection, queries.describe, params)
        assert changed is not None  # the row is locked
        await self._on_change(connection, acting, "changed", changed, different)
        return True


class BuiltinTools(Records[BuiltinTool, NewBuiltinTool, BuiltinToolChange]):
    """The builtin tools of one tenant, by category and name."""

    seed = blocking(AsyncBuiltinTools.seed)
    list_enabled = blocking(AsyncBuiltinTools.list_enabled)
    settings = blocking(AsyncBuiltinTools.settings)
