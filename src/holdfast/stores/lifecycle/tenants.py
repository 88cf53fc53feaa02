"""Tenants: the isolation boundary. A tenant is created by its first session; this store is for operators.

A tenant may have millions of rows, so deleting it takes many small transactions. The first marks the tenant as
deleted and removes its API keys; from then on its handles refuse every call. The following ones hide its sessions and
then remove its rows, children before parents. The last one removes the tenant's own row, with any rows written in the
meantime; then the name is free. An interrupted deletion is continued by the next ``delete``, or by ``maintain``,
which servers and workers call in the background.
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
from ...engines.heavy_calls import HeavyCall
from ...engines.protocol import Connection, Engine
from ...errors import AlreadyExists, Conflict, InvalidInput, NotFound
from ..conversation.search.index import drain, remove_deleted
from ..objects import packs
from ..workspace import retention_rules as rules
from . import purge_statements
from .tenant_engine import deletion_message, queries, tenants_being_deleted


class MaintenanceResult(Struct, frozen=True):
    """The result of one call of ``maintain``."""

    indexed: int = 0
    """Number of messages indexed for search."""
    is_done: bool = False
    """Whether no work is left for now."""


class Tenant(Struct, frozen=True):
    """An isolated owner of data: no tenant can see another's."""

    id: str
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    snapshot_quota_mib: Annotated[int | None, Column("checkpoint_quota_mib")] = field(
        default=None, name="checkpoint_quota_mib"
    )
    """MiB of stored bytes its snapshots may take; ``None`` for the default."""


rows = Queries(__package__, "tenant_rows.sql", Tenant)

HIDDEN_ROWS = 1_000
"""Sessions of a deleted tenant hidden in one transaction."""
PURGED_ROWS = 200
"""Rows of a deleted tenant removed in one transaction."""
_MAINTAINED = "maintained tenants"


class AsyncTenants(Store):
    """All tenants of a database."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    @writes
    async def create(self, connection: Connection, tenant: str, *, metadata: Mapping[str, Any] | None = None) -> Tenant:
        """Register a tenant before it writes anything.

        Raises:
            AlreadyExists: the tenant exists.
            Conflict: a tenant of that name is being deleted.
        """
        params = self._now(tenant) | {"metadata": scopes.metadata(metadata, self._setting.limits)}
        row = await rows.create.one(connection, params)
        if row is not None:
            return mapper(Tenant, connection.dialect)([row])[0]
        if await queries.is_deleted.one(connection, params) is not None:
            raise Conflict(deletion_message(tenant), reason="being_deleted")
        raise AlreadyExists(f"tenant {tenant!r} already exists", noun="tenant", key=tenant)

    @reads
    async def get(self, connection: Connection, tenant: str) -> Tenant:
        """Return a tenant.

        Raises:
            NotFound: it was never created and has never written anything.
        """
        return await self._one(connection, rows.get, self._now(tenant), tenant)

    @reads
    async def list(
        self, connection: Connection, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Tenant]:
        """List all tenants by name. With ``limit``, return a page; its ``next`` is the cursor of the page after it."""
        limits = self._setting.limits
        (after,) = ("",) if cursor is None else decode_cursor(cursor, "tenants", str)
        params = {"after": text.escape(after), "limit": rows_to_read(limit, limits)}
        tenants = mapper(Tenant, connection.dialect)(await rows.list.all(connection, params))
        return page(tenants, limit, limits, "tenants", lambda tenant: encode_cursor("tenants", tenant.id))

    @writes
    async def update(self, connection: Connection, tenant: str, *, metadata: Mapping[str, Any]) -> Tenant:
        """Replace a tenant's metadata.

        Raises:
            NotFound: the tenant does not exist.
        """
        params = self._now(tenant) | {"metadata": scopes.metadata(metadata, self._setting.limits)}
        return await self._one(connection, rows.update, params, tenant)

    @writes
    async def set_quota(self, connection: Connection, tenant: str, *, snapshot_quota_mib: int | None) -> Tenant:
        """Set the MiB of stored bytes that a tenant's snapshots may take; ``None`` restores the default.

        Raises:
            InvalidInput: the quota is not a non-negative integer.
            NotFound: the tenant does not exist.
        """
        quota = snapshot_quota_mib
        if quota is not None and (not isinstance(quota, int) or isinstance(quota, bool) or not 0 <= quota < 2**40):
            raise InvalidInput(
                f"snapshot_quota_mib must be a non-negative integer below 2**40, not {quota!r}",
                field="snapshot_quota_mib",
            )
        params = self._now(tenant) | {"checkpoint_quota_mib": quota}
        return await self._one(connection, rows.set_quota, params, tenant)

    @in_steps
    async def delete(self, tenant: str, *, cascade: bool = False) -> None:
        """Delete a tenant with its API keys and its activity log; with ``cascade``, with all of its data, including
        packs.

        The tenant disappears at once; its rows are then removed in small transactions. When this returns, the name
        can be used again. An interrupted deletion is continued by calling this again, or by ``maintain``.

        Raises:
            NotFound: the tenant does not exist.
            Conflict: it has sessions, runs, checkpoints or other data and ``cascade`` is false, or a retention hold
                covers some of its data.
        """
        await self._mark(tenant, cascade)
        while await self._purge_some(tenant):
            pass

    @in_steps
    async def maintain(self) -> MaintenanceResult:
        """Do one bounded piece of background work for any tenant: continue a deletion, or index messages for search.

        Any number of processes may call this repeatedly. Servers and workers do.
        """
        row = await self._engine.read(lambda connection: queries.next_deleted.one(connection, {}))
        if row is not None:
            await self._purge_some(text.unescape(row[0]))
            return MaintenanceResult()
        cursor = self._setting.shared.setdefault(_MAINTAINED, {"after": "", "more": False})
        row = await self._engine.read(
            lambda connection: queries.next_behind.one(connection, {"after": cursor["after"]})
        )
        if row is None:
            more, cursor["after"], cursor["more"] = cursor["more"], "", False
            return MaintenanceResult(is_done=not more)
        cursor["after"] = row[
            0
        ]  # take the next piece from another tenant, so that a large tenant does not delay the others
        drained = await drain(self._engine, scopes.Scope(text.unescape(row[0]), self._setting))
        cursor["more"] = cursor["more"] or drained.more
        return MaintenanceResult(drained.messages)

    @writes
    async def _mark(self, connection: Connection, tenant: str, cascade: bool) -> None:
        params = self._now(tenant)
        if await queries.is_deleted.one(connection, params) is not None:
            return  # already marked by an earlier call, which this one continues
        # Lock its own row first: from now on, a transaction that registers the tenant waits.
        if await rows.delete.one(connection, params) is None:
            raise _not_found(tenant)
        if cascade:
            await rules.check_not_held(connection, scopes.Scope(tenant, self._setting))
        elif await purge_statements.anything().one(connection, params) is not None:
            raise Conflict(
                f"tenant {tenant!r} still has sessions, runs, checkpoints or other data; pass cascade=True to delete it too",
                reason="not_empty",
            )
        await queries.purge_api_keys.all(connection, params)
        await queries.purge_run_queue.all(connection, params)

    async def _purge_some(self, tenant: str) -> bool:
        """Continue a deletion with one transaction; return ``False`` if that was the last one."""
        scope = scopes.Scope(tenant, self._setting)
        tenants_being_deleted(self._setting).add(scope.stored_tenant)
        if await self._engine.write(HeavyCall(lambda connection: _remove_some(connection, scope))):
            return True
        await self._engine.write(HeavyCall(lambda connection: _remove_rest(connection, scope)))
        tenants_being_deleted(self._setting).discard(scope.stored_tenant)
        await packs.clear(self._engine, scope)
        return False

    def _now(self, tenant: str) -> dict[str, Any]:
        tenant_id = scopes.name(tenant, "tenant", self._setting.limits, limit="tenant_bytes")
        return {"tenant_id": tenant_id, "now_at": self._setting.clock.now_us()}

    async def _one(self, connection: Connection, query: Query, params: Mapping[str, Any], tenant: str) -> Tenant:
        row = await query.one(connection, params)
        if row is None:
            raise _not_found(tenant)
        return mapper(Tenant, connection.dialect)([row])[0]


def _not_found(tenant: str) -> NotFound:
    return NotFound(f"tenant {tenant!r} does not exist", noun="tenant", key=tenant)


async def _remove_some(connection: Connection, scope: scopes.Scope) -> bool:
    """Hide some sessions, or remove some rows, of a deleted tenant; return whether there were any."""
    now = scope.clock.now_us()
    params = scope.params(limit=HIDDEN_ROWS, now_at=now)
    if await queries.is_deleted.one(connection, params) is None:
        return False  # another process has finished it
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
    """Remove a deleted tenant with all rows that are left."""
    params = scope.params()
    # Its own row first: a transaction that registers the name from now on waits, and then creates a new tenant.
    if not await queries.remove.all(connection, params):
        return
    # Repeat until nothing is left: a statement may have waited for a writer whose rows an earlier statement did not see.
    while [row for query in purge_statements.unbounded() for row in await query.all(connection, params)]:
        pass
    await remove_deleted(connection, params)


class Tenants(Blocking[AsyncTenants]):
    """All tenants of a database."""

    create = blocking(AsyncTenants.create)
    get = blocking(AsyncTenants.get)
    list = blocking(AsyncTenants.list)
    update = blocking(AsyncTenants.update)
    set_quota = blocking(AsyncTenants.set_quota)
    delete = blocking(AsyncTenants.delete)
    maintain = blocking(AsyncTenants.maintain)
