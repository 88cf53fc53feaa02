"""The state of a server: the open Holdfast and everything that operations share."""

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
    """A Holdfast that is open as long as the server runs."""

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
        self.drawn_key: str | None = None
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
        """The tenant of callers and addresses that name none.

        Raises:
            Closed: nobody was told who may come in.
        """
        if self.access is None:
            raise Closed
        return self.access.tenant

    def tenant(self, name: str) -> AsyncTenantHandle:
        """The handle of one tenant.

        Raises:
            Closed: the server has not started, or has stopped.
        """
        return self.holdfast.tenant(name)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Open the database, and close it when everything accepted is done."""
        try:
            unopened = AsyncHoldfast(
                self._database, auto_migrate=self._migrate, packs=self._packs, encryption_key=self._keys
            )
            opened = await unopened.open()
        except HoldfastError as error:
            self.failure = error
            raise
        try:
            self._presence, self._holdfast = FileIdentity(self._database), opened
            try:
                await self._let_somebody_in(opened)
            except ReadOnly:
                log.warning("the database cannot be written: only keys that are in it are let in")
            tasks = [asyncio.create_task(work) for work in (self.audit.run(opened), keep_up(opened))]
            try:
                if self._snapshots_per_run is not None:
                    await opened.server_settings.set_snapshots_per_run(self._snapshots_per_run)
                async with background(opened, self._background):
                    yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.audit.flush(opened)
        except HoldfastError as error:
            self.failure = error
            raise
        finally:
            self._holdfast = None
            await opened.close()

    def stop(self) -> None:
        """Let what never ends by itself, such as a stream, come to an end."""
        self.notifier.close()

    async def _let_somebody_in(self, opened: AsyncHoldfast) -> None:
        """Make the key of whoever looks after this server: the one that was given, or, if there is none yet, a new one.

        Raises:
            Conflict: the key that was given is there for another purpose.
        """
        if self._admin_key is not None:
            try:
                await opened.api_keys.create(self._admin_key, name="admin", scopes=["admin"])
            except Conflict:
                raise Conflict("the admin key is in this database for another purpose: draw a new one") from None
            return
        now_us = self.clock.now_us()
        for each in await opened.api_keys.list(tenant=""):
            is_over = each.expires_at is not None and to_us(each.expires_at) <= now_us
            if "admin" in each.scopes and each.revoked_at is None and not is_over:
                return
        key = new_api_key()
        await opened.api_keys.create(key, name="admin", scopes=["admin"])
        self.drawn_key = key

    async def take_back_drawn_key(self) -> None:
        """Revoke the key that was drawn, so that the next start draws another."""
        if self.drawn_key is not None:
            key = await self.holdfast.api_keys.verify(self.drawn_key)
            await self.holdfast.api_keys.revoke(key.id)
            self.drawn_key = None

    async def check_ready(self) -> None:
        """Ask the database something.

        Raises:
            Unavailable: it does not answer, not in time, or is no longer there; or no file descriptors are left.
        """
        file_descriptors.check_free()
        if self._presence is not None:
            self._presence.check()
        try:
            async with asyncio.timeout(self.limits.ready_s):
                await self.holdfast.tenants.list(limit=1)
        except TimeoutError:
            raise Unavailable(f"the database did not answer within {self.limits.ready_s} s") from None
