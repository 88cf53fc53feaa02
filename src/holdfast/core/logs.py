"""Append-only logs: rows are added and never changed, listed newest first, filtered, counted, and pruned by age.

A row type has at least ``id`` and ``created_at``; the table's primary key is ``(tenant_id, id)``. Callers append an *entry*:
a Struct with a subset of the row's fields. Appending with the same caller-chosen id again returns the stored row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from ..clock import to_us
from ..engines.protocol import Connection
from ..errors import InvalidInput
from ..ids import parse as parse_id
from .blocking import Blocking, blocking
from .filters import Filter
from .paging import Page
from .scope import Scope
from .store import TenantStore, reads, writes
from .tables import ListTable, R

A = TypeVar("A", bound=Struct)


class LogTable(ListTable[R]):
    """One append-only table, listed newest first."""

    template = (
        ListTable.template
        + """
-- name: append_all
INSERT INTO {table} (tenant_id, {columns}) VALUES (:tenant_id, {values});

-- name: prune
DELETE FROM {table}
WHERE tenant_id = :tenant_id AND id IN (
    SELECT id FROM {table} WHERE tenant_id = :tenant_id AND created_at < :before_at ORDER BY created_at, id LIMIT :limit)
RETURNING 1;
"""
    )

    def __init__(
        self,
        name: str,
        row: type[R],
        *,
        noun: str,
        nouns: str | None = None,
        condition: str = "",
        indexes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, row, noun=noun, nouns=nouns, condition=condition, descending=True, indexes=indexes)

    async def append(self, connection: Connection, scope: Scope, entry: Struct, *, id: str | None = None) -> R:
        """Append an entry. Repeating a call with the same id and the same content returns the stored row.

        Raises:
            InvalidInput: a value is not valid.
            Conflict: a row with this id and other content exists.
        """
        row, _ = await self.add(connection, self._params(scope, entry, id), entry.__struct_fields__)
        return row

    async def append_all(self, connection: Connection, scope: Scope, entries: Sequence[Struct]) -> None:
        """Append entries, each under a new id.

        Raises:
            InvalidInput: a value is not valid.
        """
        if entries:
            rows = [self._params(scope, entry, None) for entry in entries]
            await self.by_name["append_all"].many(connection, rows)

    async def prune(self, connection: Connection, scope: Scope, *, before: datetime, limit: int | None = None) -> int:
        """Delete the oldest rows before a time, at most ``batch_rows``; return how many. Call it until it returns 0.

        Raises:
            InvalidInput: ``before`` is not a datetime with a time zone.
        """
        if not isinstance(before, datetime) or before.tzinfo is None:
            raise InvalidInput(f"before must be a datetime with a time zone, not {before!r}", field="before")
        params = scope.params(before_at=to_us(before, "before"), limit=limit or scope.limits.batch_rows)
        return len(await self.by_name["prune"].all(connection, params))

    def _params(self, scope: Scope, entry: Struct, id: str | None) -> dict[str, Any]:
        params = self.params(asdict(entry), scope.limits)
        params["id"] = scope.ids.new() if id is None else parse_id(id, f"{self.noun} id")
        return scope.params(**params, created_at=scope.clock.now_us())


class AsyncLog(TenantStore, Generic[R, A]):
    """Base of stores that keep a log; a subclass sets the table and adds its own methods."""

    log: ClassVar[LogTable[Any]]

    @writes
    async def append(self, connection: Connection, entry: A, *, id: str | None = None) -> R:
        """Append an entry. Repeating a call with the same id and the same content returns the stored row.

        Raises:
            Conflict: a row with this id and other content exists.
        """
        row: R = await self.log.append(connection, self._scope, entry, id=id)
        return row

    @reads
    async def get(self, connection: Connection, id: str) -> R:
        """Return one entry.

        Raises:
            NotFound: it does not exist.
        """
        row: R = await self.log.get(connection, self._scope, id)
        return row

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """List entries, newest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await self.log.list(connection, self._scope, {}, where=where, limit=limit, cursor=cursor)

    @reads
    async def count(self, connection: Connection, *, where: Sequence[Filter] = ()) -> int:
        """Return the number of entries that match.

        Raises:
            InvalidFilter: a filter is not valid.
        """
        return await self.log.count(connection, self._scope, {}, where=where)

    @writes
    async def prune(self, connection: Connection, *, before: datetime) -> int:
        """Delete the oldest entries before a time, at most ``batch_rows``; return how many."""
        return await self.log.prune(connection, self._scope, before=before)


class Log(Blocking[AsyncLog[R, A]], Generic[R, A]):
    """Base of stores that keep a log, for synchronous programs."""

    append = blocking(AsyncLog[R, A].append)
    get = blocking(AsyncLog[R, A].get)
    list = blocking(AsyncLog[R, A].list)
    count = blocking(AsyncLog[R, A].count)
    prune = blocking(AsyncLog[R, A].prune)
