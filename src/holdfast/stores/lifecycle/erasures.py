"""Erasures: requests to erase a tenant, with their deadlines.

A request is recorded first and carried out afterwards, so a process that dies in between leaves it to the next one.
Requests are idempotent: the same request is stored once, and a request that was carried out is never carried out
again, even if the tenant's name is in use again. Data under a hold stays until the hold is released, and the request
stays open. The record outlives the tenant: it proves that the erasure was done.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Struct

from ...clock import MICROSECONDS, to_us
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.rows import Column, mapper
from ...core.store import Store, in_steps, reads, writes
from ...engines.protocol import Connection, Engine
from ...errors import Conflict, InvalidInput, NotFound
from ...ids import Id
from ..workspace import retention_rules as rules
from .retention.sweeps import Sweep, SweepResult
from .tenants import AsyncTenants

WINDOW_S = 24 * 3_600
"""Seconds after a request within which it must be carried out."""
_BY_HAND = "by hand"


class Erasure(Struct, frozen=True):
    """A request to erase a tenant."""

    tenant: Annotated[str, Column("tenant")]
    event_id: str
    is_whole: bool
    """Whether all data is erased, or only snapshots and the objects that only they need."""
    requested_at: datetime
    due_at: datetime
    finished_at: datetime | None


class ErasureResult(Struct, frozen=True):
    """The result of carrying out an erasure. It is not finished while anything is held."""

    swept: SweepResult
    is_finished: bool


queries = Queries(__package__, "erasures.sql", Erasure)


class AsyncErasures(Store):
    """Requests to erase tenants."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    @writes
    async def request(
        self,
        connection: Connection,
        tenant: str,
        *,
        event_id: Id = _BY_HAND,
        whole: bool = True,
        requested_at: datetime | None = None,
    ) -> Erasure:
        """Record that a tenant must be erased within 24 hours. The same request again changes nothing.

        Raises:
            InvalidInput: the name of the tenant or the event is empty, or the time has no time zone or is out of
                range.
        """
        scope = scopes.Scope(tenant, self._setting)
        if requested_at is not None and (not isinstance(requested_at, datetime) or requested_at.tzinfo is None):
            raise InvalidInput("requested_at must be a datetime with a time zone", field="requested_at")
        if requested_at is not None and not 1970 <= requested_at.year < 9999:
            raise InvalidInput(
                f"requested_at must be between the years 1970 and 9998, not in {requested_at.year}",
                field="requested_at",
            )
        if not isinstance(whole, bool):
            raise InvalidInput(f"whole must be true or false, not {whole!r}", field="whole")
        requested_us = self._setting.clock.now_us() if requested_at is None else to_us(requested_at)
        params = scope.params(
            event_id=scopes.name(event_id, "event_id", self._setting.limits),
            is_whole=whole,
            requested_at=requested_us,
            due_at=requested_us + WINDOW_S * MICROSECONDS,
        )
        await queries.request.all(connection, params)
        row = await queries.get.one(connection, params)
        assert row is not None
        return mapper(Erasure, connection.dialect)([row])[0]

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        only_open: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Erasure]:
        """List erasures, the most urgent first: all, or those that are not finished. With ``limit``, return a page.

        Raises:
            InvalidFilter: the cursor belongs to another list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._setting.limits
        at, tenant, event = (0, "", "") if cursor is None else decode_cursor(cursor, "erasures", int, str, str)
        params = {
            "after_at": at,
            "after_tenant": text.escape(tenant),
            "after_event": text.escape(event),
            "limit": rows_to_read(limit, limits),
        }
        query = queries.open if only_open else queries.by_name["all"]
        erasures = mapper(Erasure, connection.dialect)(await query.all(connection, params))
        return page(erasures, limit, limits, "erasures", _cursor)

    @in_steps
    async def carry_out(self, tenant: str, *, holder: str | None = None) -> ErasureResult:
        """Erase a tenant as requested: its snapshots one by one, each with a line in the log, and then everything
        else.

        Data under a hold stays, and the requests stay open until the hold is released and this is called again.

        Raises:
            NotFound: no erasure of this tenant was requested, or it is finished.
            Conflict: another process is sweeping this tenant.
            Unavailable: the storage of packs cannot be reached; calling this again resumes.
        """
        scope = scopes.Scope(tenant, self._setting)
        is_whole_by_event = await self._engine.read(lambda connection: _open_requests(connection, scope))
        sweep = Sweep(self._engine, scope)
        await sweep.claim(f"erasure {self._setting.ids.new()}" if holder is None else holder)
        try:
            swept = await sweep.erase()
        finally:
            await sweep.release()
        if await self._engine.read(lambda connection: _any_hold(connection, scope)):
            return ErasureResult(swept, False)
        if any(is_whole_by_event.values()) and not await self._delete_tenant(tenant):
            return ErasureResult(swept, False)
        now = self._setting.clock.now_us()
        finished = [scope.params(event_id=event_id, now_at=now) for event_id in is_whole_by_event]
        await self._engine.write(lambda connection: queries.finish.many(connection, finished))
        return ErasureResult(swept, True)

    async def _delete_tenant(self, tenant: str) -> bool:
        """Delete the tenant with all its data; return ``False`` if a hold was placed in the meantime."""
        try:
            await AsyncTenants(self._engine, self._setting).delete(tenant, cascade=True)
        except NotFound:
            return True
        except Conflict:
            return False
        return True


class Erasures(Blocking[AsyncErasures]):
    """Requests to erase tenants."""

    request = blocking(AsyncErasures.request)
    list = blocking(AsyncErasures.list)
    carry_out = blocking(AsyncErasures.carry_out)


async def _open_requests(connection: Connection, scope: scopes.Scope) -> dict[str, bool]:
    """Return the open requests by event id, and whether each is for all data."""
    rows = await queries.open_of.all(connection, scope.params())
    if not rows:
        raise NotFound(
            f"tenant {scope.tenant!r} has no open erasure: request one first", noun="erasure", key=scope.tenant
        )
    return {row[0]: bool(row[1]) for row in rows}


async def _any_hold(connection: Connection, scope: scopes.Scope) -> bool:
    return await rules.queries.any_hold.one(connection, scope.params()) is not None


def _cursor(erasure: Erasure) -> str:
    return encode_cursor("erasures", to_us(erasure.due_at), erasure.tenant, erasure.event_id)
