"""The state of a server: the open Holdfast and the objects that operations share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast import AsyncHoldfast, AsyncTenantHandle, Clock, RandomIds, SystemClock, new_api_key
from holdfast.background import BackgroundOptions, background
from holdfast.clock import to_us
from holdfast.encryption import KeyRing, Keys
from holdfast.errors import Closed, Conflict, HoldfastError, ReadOnly, Unavailable
from holdfast.file_identity import FileIdentity
from holdfast.maintenance import keep_up

from . import file_descriptors
from .audit import AuditLog
from .key_cache import KeyCache
from .limits import ServerLimits
from .metrics import Metrics
from .notifier import Notifier
from .slots import Slots
from .temp_dirs import TempDirs

if TYPE_CHECKING:
    from .auth import Access


log = logging.getLogger("holdfast.api")


class Service:
    """The open Holdfast of a running server, its limits, and the shared objects."""

    def __init__(
        self,
        database: str,
        limits: ServerLimits,
        *,
        admin_key: str | None = None,
        migrate: bool | None = None,
        snapshots_per_run: int | None = None,
        background: BackgroundOptions | None = None,
        packs: str | None = None,
        encryption_key: Keys | None = None,
    ) -> None:
        self.limits = limits
        self.ids = RandomIds()
        self.clock: Clock = SystemClock()
        self.audit, self.metrics, self.notifier = AuditLog(), Metrics(), Notifier()
        self.temp_dirs = TempDirs(limits)
        self.streams = Slots("streams", limits.streams, limits.tenant_share)
        self.requests = Slots("connections", limits.connections, limits.tenant_share)
        self.key_cache = KeyCache(self)
        self.access: Access | None = None
        self.generated_key: str | None = None
        self._admin_key, self._migrate = admin_key, migrate
        self._snapshots_per_run, self._background = snapshots_per_run, background
        self.document: Callable[[], bytes] = lambda: b"{}"
        self.failure: HoldfastError | None = None
        self._database, self._packs = database, packs
        self._keys = KeyRing.of(encryption_key)
        self._keys.check()
        self._holdfast: AsyncHoldfast | None = None
        self._presence: FileIdentity | None = None

    @property
    def holdfast(self) -> AsyncHoldfast:
        """The open Holdfast.

        Raises:
            Closed: the server has not started, or has stopped.
        """
        if self._holdfast is None:
            raise Closed
        return self._holdfast

    @property
    def default_tenant(self) -> str:
        """The tenant of callers and paths that name none.

        Raises:
            Closed: ``access`` is not set yet.
        """
        if self.access is None:
            raise Closed
        return self.access.tenant

    def tenant(self, name: str) -> AsyncTenantHandle:
        """Return the handle of a tenant.

        Raises:
            Closed: the server has not started, or has stopped.
        """
        return self.holdfast.tenant(name)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Open the database; at the end, wait for background work and close it."""
        try:
            holdfast = AsyncHoldfast(
                self._database, auto_migrate=self._migrate, packs=self._packs, encryption_key=self._keys
            )
            await holdfast.open()
        except HoldfastError as error:
            self.failure = error
            raise
        try:
            self._presence, self._holdfast = FileIdentity(self._database), holdfast
            try:
                await self._ensure_admin_key(holdfast)
            except ReadOnly:
                log.warning("the database is read-only: no admin key can be added, only existing keys are accepted")
            tasks = [asyncio.create_task(work) for work in (self.audit.run(holdfast), keep_up(holdfast))]
            try:
                if self._snapshots_per_run is not None:
                    await holdfast.server_settings.set_snapshots_per_run(self._snapshots_per_run)
                async with background(holdfast, self._background):
                    yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.audit.flush(holdfast)
        except HoldfastError as error:
            self.failure = error
            raise
        finally:
            self._holdfast = None
            await holdfast.close()

    def stop(self) -> None:
        """End everything that does not end by itself, such as streams."""
        self.notifier.close()

    async def _ensure_admin_key(self, holdfast: AsyncHoldfast) -> None:
        """Store the admin key: the configured one or, if the database has no valid admin key, a generated one.

        Raises:
            Conflict: the configured key already exists with other scopes.
        """
        if self._admin_key is not None:
            try:
                await holdfast.api_keys.create(self._admin_key, name="admin", scopes=["admin"])
            except Conflict:
                raise Conflict(
                    "the admin key already exists in this database with other scopes: use another key",
                    reason="other_content",
                ) from None
            return
        now_us = self.clock.now_us()
        for stored_key in await holdfast.api_keys.list(tenant=""):
            is_expired = stored_key.expires_at is not None and to_us(stored_key.expires_at) <= now_us
            if "admin" in stored_key.scopes and stored_key.revoked_at is None and not is_expired:
                return
        key = new_api_key()
        await holdfast.api_keys.create(key, name="admin", scopes=["admin"])
        self.generated_key = key

    async def revoke_generated_key(self) -> None:
        """Revoke the generated key, so that the next start generates another."""
        if self.generated_key is not None:
            key = await self.holdfast.api_keys.verify(self.generated_key)
            await self.holdfast.api_keys.revoke(key.id)
            self.generated_key = None

    async def check_ready(self) -> None:
        """Check that the server can answer requests.

        Raises:
            Unavailable: the database does not answer in time or no longer exists, or no file descriptors are free.
        """
        file_descriptors.check_free()
        if self._presence is not None:
            self._presence.check()
        try:
            async with asyncio.timeout(self.limits.ready_s):
                await self.holdfast.tenants.list(limit=1)
        except TimeoutError:
            raise Unavailable(f"the database did not answer within {self.limits.ready_s} s") from None
