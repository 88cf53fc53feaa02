"""Tenants: the walls. A tenant comes into being with its first session; this store is for those who keep the list.

A tenant may have millions of rows, so a deletion is many small transactions. The first marks the tenant as deleted and takes
away its API keys; from then on its handles refuse every call. The next ones hide its sessions and then remove its rows, children
first. The last one removes the row of the tenant itself, with whatever somebody wrote meanwhile; then the name is free. A
deletion that was broken off is continued by the next ``delete``, or by ``maintain``, which servers and workers call in the
background.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct, field

from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries, Query
from ...core.rows import Column, mapper
from ...core.store import Store, in_steps, reads, writes
from ...engines.offload import Heavy
from ...engines.protocol import Connection, Engine
from ...errors import AlreadyExists, Conflict, InvalidInput, NotFound
from ..conversation.search.index import drain, remove_deleted
from ..objects import packs
from ..workspace import retention_rules as rules
from . import purge_statements
from .tenant_engine import deletion_message, queries, tenants_being_deleted


class MaintenanceResult(Struct, frozen=True):
    """What one call of ``maintain`` did."""

    indexed: int = 0
    """Messages that were indexed for search."""
    is_done: bool = False
    """Whether nothing is left to do for now."""


class Tenant(Struct, frozen=True):
    """Somebody whose data nobody else can see."""

    id: str
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    snapshot_quota_mib: Annotated[int | None, Column("checkpoint_quota_mib")] = field(
        default=None, name="checkpoint_quota_mib"
    )
    """MiB of stored bytes that its snapshots may take; nothing for what everybody has."""


rows = Queries(__package__, "tenant_rows.sql", Tenant)

HIDDEN_ROWS = 1_000
"""Sessions of a deleted tenant that are hidden in one transaction."""
PURGED_ROWS = 200
"""Rows of a deleted tenant that are removed in one transaction."""
_MAINTAINED = "maintained tenants"


class AsyncTenants(Store):
    """All tenants of a Holdfast."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    @writes
    async def create(self, connection: Connection, tenant: str, *, metadata: Mapping[str, Any] | None = None) -> Tenant:
        """Register a tenant before it writes anything.

        Raises:
            AlreadyExists: it is there.
            Conflict: a tenant of that name is being deleted.
        """
        params = self._now(tenant) | {"metadata": scopes.metadata(metadata, self._setting.limits)}
        row = await rows.create.one(connection, params)
        if row is not None:
            return mapper(Tenant, connection.dialect)([row])[0]
        if await queries.is_deleted.one(connection, params) is not None:
            raise Conflict(deletion_message(tenant))
        raise AlreadyExists(f"there is already a tenant {tenant!r}")

    @reads
    async def get(self, connection: Connection, tenant: str) -> Tenant:
        """One tenant.

        Raises:
            NotFound: it was never created and has never written anything.
        """
        return await self._one(connection, rows.get, self._now(tenant), tenant)

    @reads
    async def list(
        self, connection: Connection, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Tenant]:
        """All tenants by name. With ``limit``, a page; its ``next`` is the cursor of the one after."""
        limits = self._setting.limits
        (after,) = ("",) if cursor is None else decode_cursor(cursor, "tenants", str)
        params = {"after": text.escape(after), "limit": rows_to_read(limit, limits)}
        found = mapper(Tenant, connection.dialect)(await rows.list.all(connection, params))
        return page(found, limit, limits, "tenants", lambda tenant: encode_cursor("tenants", tenant.id))

    @writes
    async def update(self, connection: Connection, tenant: str, *, metadata: Mapping[str, Any]) -> Tenant:
        """Replace a tenant's metadata.

        Raises:
            NotFound: there is no such tenant.
        """
        params = self._now(tenant) | {"metadata": scopes.metadata(metadata, self._setting.limits)}
        return await self._one(connection, rows.update, params, tenant)

    @writes
    async def set_quota(self, connection: Connection, tenant: str, *, snapshot_quota_mib: int | None) -> Tenant:
        """Let a tenant's snapshots take so many MiB of stored bytes; ``None`` for what everybody has.

        Raises:
            InvalidInput: it is no whole number from 0 on.
            NotFound: there is no such tenant.
        """
        quota = snapshot_quota_mib
        if quota is not None and (not isinstance(quota, int) or isinstance(quota, bool) or not 0 <= quota < 2**40):
            raise InvalidInput(f"snapshot_quota_mib must be a whole number from 0 on, not {quota!r}")
        params = self._now(tenant) | {"checkpoint_quota_mib": quota}
        return await self._one(connection, rows.set_quota, params, tenant)

    @in_steps
    async def delete(self, tenant: str, *, cascade: bool = False) -> None:
        """Remove a tenant, its API keys and its activity log; with ``cascade``, everything that belongs to it as well, packs of
        large objects included.

        The tenant is gone at once, and its rows are then removed in small transactions. When this returns, the name can be
        used again. A deletion that was broken off is continued by calling this again, or by ``maintain``.

        Raises:
            NotFound: there is no such tenant.
            Conflict: it still has sessions, runs, checkpoints or anything else of its own, and ``cascade`` was not asked for;
                or something of it is held.
        """
        await self._mark(tenant, cascade)
        while await self._purge_some(tenant):
            pass

    @in_steps
    async def maintain(self) -> MaintenanceResult:
        """Do one bounded piece of work in the background, for any tenant: continue a deletion, or index messages for search.

        Any number of processes may call this again and again. Servers and workers do.
        """
        row = await self._engine.read(lambda connection: queries.next_deleted.one(connection, {}))
        if row is not None:
            await self._purge_some(text.unescape(row[0]))
            return MaintenanceResult()
        at = self._setting.shared.setdefault(_MAINTAINED, {"after": "", "more": False})
        row = await self._engine.read(lambda connection: queries.next_behind.one(connection, {"after": at["after"]}))
        if row is None:
            more, at["after"], at["more"] = at["more"], "", False
            return MaintenanceResult(is_done=not more)
        at["after"] = row[0]  # the next piece is of another tenant, so that a large one keeps no other waiting
        drained = await drain(self._engine, scopes.Scope(text.unescape(row[0]), self._setting))
        at["more"] = at["more"] or drained.more
        return MaintenanceResult(drained.messages)

    @writes
    async def _mark(self, connection: Connection, tenant: str, cascade: bool) -> None:
        params = self._now(tenant)
        if await queries.is_deleted.one(connection, params) is not None:
            return  # begun before: it is only continued
        # Its own row first: whoever registers it from now on waits.
        if await rows.delete.one(connection, params) is None:
            raise _missing(tenant)
        if cascade:
            await rules.check_not_held(connection, scopes.Scope(tenant, self._setting))
        elif await purge_statements.anything().one(connection, params) is not None:
            raise Conflict(
                f"tenant {tenant!r} still has sessions, runs, checkpoints or something else; cascade=True removes them too"
            )
        await queries.purge_api_keys.all(connection, params)
        await queries.purge_run_queue.all(connection, params)

    async def _purge_some(self, tenant: str) -> bool:
        """Continue a deletion with one transaction; ``False`` if that was the last one."""
        scope = scopes.Scope(tenant, self._setting)
        tenants_being_deleted(self._setting).add(scope.stored_tenant)
        if await self._engine.write(Heavy(lambda connection: _remove_some(connection, scope))):
            return True
        await self._engine.write(Heavy(lambda connection: _remove_rest(connection, scope)))
        tenants_being_deleted(self._setting).discard(scope.stored_tenant)
        await packs.clear(self._engine, scope)
        return False

    def _now(self, tenant: str) -> dict[str, Any]:
        stored = scopes.name(tenant, "tenant", self._setting.limits, limit="tenant_bytes")
        return {"tenant_id": stored, "now_at": self._setting.clock.now_us()}

    async def _one(self, connection: Connection, query: Query, params: Mapping[str, Any], tenant: str) -> Tenant:
        row = await query.one(connection, params)
        if row is None:
            raise _missing(tenant)
        return mapper(Tenant, connection.dialect)([row])[0]


def _missing(tenant: str) -> NotFound:
    return NotFound(f"there is no tenant {tenant!r}")


async def _remove_some(connection: Connection, scope: scopes.Scope) -> bool:
    """Hide some sessions, or remove some rows, of a tenant that was marked; whether there was anything."""
    now = scope.clock.now_us()
    params = scope.params(limit=HIDDEN_ROWS, now_at=now)
    if await queries.is_deleted.one(connection, params) is None:
        return False  # somebody else has finished it
    if await queries.hide_sessions.all(connection, params):
        return True
    left = PURGED_ROWS
    for query in purge_statements.bounded():
        left -= len(await query.all(connection, {**params, "limit": left}))
        if not left:
            break
    await remove_deleted(connection, params)
    return left < PURGED_ROWS


async def _remove_rest(connection: Connection, scope: scopes.Scope) -> None:
    """Remove a tenant that was marked, with all that is left of it."""
    params = scope.params()
    # Its own row first: whoever registers the name from now on waits, and then begins anew.
    if not await queries.remove.all(connection, params):
        return
    # Again until nothing is left: a statement may have waited for a writer, whose rows an earlier one did not see.
    while [row for query in purge_statements.unbounded() for row in await query.all(connection, params)]:
        pass
    await remove_deleted(connection, params)


class Tenants(Blocking[AsyncTenants]):
    """All tenants of a Holdfast."""

    create = blocking(AsyncTenants.create)
    get = blocking(AsyncTenants.get)
    list = blocking(AsyncTenants.list)
    update = blocking(AsyncTenants.update)
    set_quota = blocking(AsyncTenants.set_quota)
    delete = blocking(AsyncTenants.delete)
    maintain = blocking(AsyncTenants.maintain)
