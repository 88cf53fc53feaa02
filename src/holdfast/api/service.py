"""What every operation is given: the open Holdfast, and what the server knows about itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from holdfast import AsyncHoldfast, AsyncTenantHandle, RandomIds
from holdfast.errors import Closed, HoldfastError, Unavailable
from holdfast.presence import Presence

from .limits import ServerLimits


class Service:
    """A Holdfast that is open as long as the server runs."""

    def __init__(self, database: str, limits: ServerLimits) -> None:
        self.limits = limits
        self.ids = RandomIds()
        self.document: Mapping[str, Any] = {}
        self.failure: HoldfastError | None = None
        self._database = database
        self._holdfast: AsyncHoldfast | None = None
        self._presence: Presence | None = None

    @property
    def holdfast(self) -> AsyncHoldfast:
        """The open Holdfast.

        Raises:
            Closed: the server has not started, or has stopped.
        """
        if self._holdfast is None:
            raise Closed
        return self._holdfast

    def tenant(self, name: str) -> AsyncTenantHandle:
        """The handle of one tenant."""
        return self.holdfast.tenant(name)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Open the database, and close it when everything accepted is done."""
        try:
            opened = await AsyncHoldfast(self._database).open()
        except HoldfastError as error:
            self.failure = error
            raise
        try:
            self._presence, self._holdfast = Presence(self._database), opened
            yield
        finally:
            self._holdfast = None
            await opened.close()

    async def check_ready(self) -> None:
        """Ask the database something.

        Raises:
            Unavailable: it does not answer, not in time, or is no longer there.
        """
        if self._presence is not None:
            self._presence.check()
        try:
            async with asyncio.timeout(self.limits.ready_s):
                await self.holdfast.tenants.list(limit=1)
        except TimeoutError:
            raise Unavailable(f"the database did not answer within {self.limits.ready_s} s") from None
