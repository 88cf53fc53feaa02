"""Scope overlays: a row for a specific scope shadows the row of the same name for a more general one.

A row's ``level`` field names its scope, a user for example, and is empty in the most general row. A caller passes the levels to
look through, the most specific one first: ``["user-7", ""]``. A row that a filter excludes shadows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic

from ..engines.protocol import Connection
from ..errors import InvalidInput
from .blocking import Blocking, blocking
from .filters import Filter
from .paging import Page, rows_to_read
from .scope import Scope
from .store import TenantStore, reads
from .tables import R, TypedTable

MAX_LEVELS = 8
"""The number of levels one call may look through; each level can add a row per name to the rows read."""


class OverlayTable(TypedTable[R]):
    """One table whose rows shadow each other.

    Args:
        name_field: the field by which rows shadow each other.
        level: the field that names the scope of a row.
    """

    template = """
-- name: read
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id{visible}/*where*/
ORDER BY {name_column}
LIMIT :limit;
"""

    def __init__(self, name: str, row: type[R], *, name_field: str, level: str, noun: str, condition: str = "") -> None:
        super().__init__(name, row, noun=noun, condition=condition)
        self.name_field, self.level = name_field, level
        self.parts["name_column"] = self.column(name_field)

    async def first(
        self,
        connection: Connection,
        scope: Scope,
        name: str,
        levels: Sequence[str],
        *,
        equal: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
    ) -> R | None:
        """Return the row of this name at the most specific level that has one, or ``None``.

        Raises:
            InvalidInput: the levels are not a list of distinct names.
            InvalidFilter: a filter is not valid.
        """
        levels = _checked(levels)
        params = scope.params(limit=len(levels))
        self.params({self.name_field: name}, scope.limits)
        clause = self._within(levels, {**(equal or {}), self.name_field: name}, where, params, connection, scope)
        rows = self.rows(connection, await self.by_name["read"].all(connection, params, clause))
        return min(rows, key=lambda row: levels.index(getattr(row, self.level)), default=None)

    async def union(
        self,
        connection: Connection,
        scope: Scope,
        levels: Sequence[str],
        *,
        equal: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """Return one row for each name, from the most specific level that has one, sorted by name. With ``limit``, a page.

        Raises:
            InvalidInput: the levels are not a list of distinct names.
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        levels = _checked(levels)
        order = [self.name_field]
        names = rows_to_read(limit, scope.limits)
        # A name has at most one row per level, so this many rows include all rows of the names that are returned.
        params = scope.params(limit=names * len(levels))
        clause = self._within(levels, equal or {}, where, params, connection, scope)
        clause += self.after(cursor, order, params)
        chosen: dict[str, R] = {}
        for row in self.rows(connection, await self.by_name["read"].all(connection, params, clause)):
            name = getattr(row, self.name_field)
            other = chosen.setdefault(name, row)
            if levels.index(getattr(row, self.level)) < levels.index(getattr(other, self.level)):
                chosen[name] = row
        return self.page([*chosen.values()][:names], limit, scope.limits, order)

    def _within(
        self,
        levels: Sequence[str],
        equal: Mapping[str, Any],
        where: Sequence[Filter],
        params: dict[str, Any],
        connection: Connection,
        scope: Scope,
    ) -> str:
        return self.where(equal, [Filter("in", [*levels], column=self.level), *where], params, connection, scope)


class AsyncOverlay(TenantStore, Generic[R]):
    """Base of stores whose rows apply at a chain of levels; a subclass sets the table."""

    overlay: ClassVar[OverlayTable[Any]]

    @reads
    async def resolve(
        self, connection: Connection, name: str, levels: Sequence[str], *, where: Sequence[Filter] = ()
    ) -> R | None:
        """Return the row of this name at the most specific level that has one, or ``None``."""
        row: R | None = await self.overlay.first(connection, self._scope, name, levels, where=where)
        return row

    @reads
    async def effective(
        self,
        connection: Connection,
        levels: Sequence[str],
        *,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """Return one row for each name, from the most specific level that has one, sorted by name. With ``limit``, a page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await self.overlay.union(connection, self._scope, levels, where=where, limit=limit, cursor=cursor)


class Overlay(Blocking[AsyncOverlay[R]], Generic[R]):
    """Base of stores whose rows apply at a chain of levels, for synchronous programs."""

    resolve = blocking(AsyncOverlay[R].resolve)
    effective = blocking(AsyncOverlay[R].effective)


def _checked(levels: Sequence[str]) -> list[str]:
    is_list = isinstance(levels, Sequence) and not isinstance(levels, (str, bytes))
    if not is_list or not levels or not all(isinstance(level, str) for level in levels):
        raise InvalidInput(
            f"levels must be a list of names, the most specific one first, not {levels!r}", field="levels"
        )
    if len(set(levels)) < len(levels) or len(levels) > MAX_LEVELS:
        raise InvalidInput(f"levels must be at most {MAX_LEVELS} distinct names, not {levels!r}", field="levels")
    return [*levels]
