"""Tenants: the walls. A tenant comes into being with its first session; this store is for those who keep the list."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.paging import Page
from ...core.queries import Queries
from ...core.records import Records
from ...core.store import Store, reads, writes
from ...engines.protocol import Connection, Engine
from ...errors import Conflict, InvalidInput
from ..conversation.search.index import forget
from . import packs
from .retention import rules


class Tenant(Struct, frozen=True):
    """Somebody whose data nobody else can see."""

    id: str
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    checkpoint_quota_mib: int | None = None
    """MiB of stored bytes that its snapshots may take; nothing for what everybody has."""


queries = Queries(__package__, "tenants.sql")
records = Records("tenants", Tenant, key=["id"], editable=["metadata", "checkpoint_quota_mib"])


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
        """
        now = self._setting.clock.now_us()
        stored = scopes.metadata(metadata, self._setting.limits)
        return await records.create(
            connection, {**self._key(tenant), "metadata": stored, "created_at": now, "updated_at": now}
        )

    @reads
    async def get(self, connection: Connection, tenant: str) -> Tenant:
        """One tenant.

        Raises:
            NotFound: it was never created and has never written anything.
        """
        return await records.get(connection, self._key(tenant))

    @reads
    async def list(
        self, connection: Connection, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Tenant]:
        """All tenants by name. With ``limit``, a page; its ``next`` is the cursor of the one after."""
        return await records.list(connection, {}, self._setting.limits, limit=limit, cursor=cursor)

    @writes
    async def update(self, connection: Connection, tenant: str, *, metadata: Mapping[str, Any]) -> Tenant:
        """Replace a tenant's metadata.

        Raises:
            NotFound: there is no such tenant.
        """
        changes = {
            "metadata": scopes.metadata(metadata, self._setting.limits),
            "updated_at": self._setting.clock.now_us(),
        }
        return await records.update(connection, self._key(tenant), changes)

    @writes
    async def set_quota(self, connection: Connection, tenant: str, *, checkpoint_quota_mib: int | None) -> Tenant:
        """Let a tenant's snapshots take so many MiB of stored bytes; ``None`` for what everybody has.

        Raises:
            InvalidInput: it is no whole number from 0 on.
            NotFound: there is no such tenant.
        """
        quota = checkpoint_quota_mib
        if quota is not None and (not isinstance(quota, int) or isinstance(quota, bool) or not 0 <= quota < 2**40):
            raise InvalidInput(f"checkpoint_quota_mib must be a whole number from 0 on, not {quota!r}")
        changes = {"checkpoint_quota_mib": quota, "updated_at": self._setting.clock.now_us()}
        return await records.update(connection, self._key(tenant), changes)

    async def delete(self, tenant: str, *, cascade: bool = False) -> None:
        """Remove a tenant, its API keys and its activity log; with ``cascade``, everything that belongs to it as well, packs of
        large objects included.

        Raises:
            NotFound: there is no such tenant.
            Conflict: it still has sessions, runs, checkpoints or anything else of its own, and ``cascade`` was not asked for;
                or something of it is held.
        """
        await self._delete(tenant, cascade)
        if cascade:
            await packs.clear(self._engine, scopes.Scope(tenant, self._setting))

    @writes
    async def _delete(self, connection: Connection, tenant: str, cascade: bool) -> None:
        key = self._key(tenant)
        params = {"tenant_id": key["id"]}
        # Its own row first: whoever registers it from now on waits, and then begins anew.
        await records.delete(connection, key, now_us=self._setting.clock.now_us())
        if cascade:
            await rules.check_not_held(connection, scopes.Scope(tenant, self._setting))
        elif await queries.anything.one(connection, params) is not None:
            raise Conflict(
                f"tenant {tenant!r} still has sessions, runs, checkpoints or something else; cascade=True removes them too"
            )
        # Whoever has the name next must find nothing of it, and no key may open what is theirs.
        await queries.run_all("purge_", connection, params)
        await forget(connection, params)

    def _key(self, tenant: str) -> dict[str, str]:
        return {"id": scopes.name(tenant, "tenant", self._setting.limits, limit="tenant_bytes")}


class Tenants(Blocking[AsyncTenants]):
    """All tenants of a Holdfast."""

    create = blocking(AsyncTenants.create)
    get = blocking(AsyncTenants.get)
    list = blocking(AsyncTenants.list)
    update = blocking(AsyncTenants.update)
    set_quota = blocking(AsyncTenants.set_quota)
    delete = blocking(AsyncTenants.delete)
