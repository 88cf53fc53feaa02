"""Engine on the caller's own connection: our writes commit or roll back with the caller's transaction."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from .dialect import Dialect
from .postgres.citus import is_distributed
from .protocol import Call, Connection, Engine, Group, run_one

T = TypeVar("T")
Item = TypeVar("Item")


class JoinedEngine:
    """Runs every call on one connection, one at a time.

    Each write runs in a savepoint, so a failed write does not affect the caller's other work.
    """

    joined = True

    def __init__(
        self, connection: Connection, lock: AbstractAsyncContextManager[None], *, blocking: bool, owner: Engine
    ) -> None:
        self._connection, self._lock, self.blocking, self._owner = connection, lock, blocking, owner
        self.distributed = owner.distributed

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    async def read(self, call: Call[T]) -> T:
        async with self._lock:
            return await call(await self._detected())

    async def write(self, call: Call[T]) -> T:
        async with self._lock, self._connection.savepoint():
            return await call(await self._detected())

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        async with self._lock:
            return await run_one(group, await self._detected(), item)

    async def _detected(self) -> Connection:
        """Return the connection with ``distributed`` set; query the server if the owning engine was never opened."""
        if self.distributed is None:
            if self._owner.distributed is None:
                self._owner.distributed = await is_distributed(self._connection)
            self.distributed = self._owner.distributed
        self._connection.distributed = self.distributed
        return self._connection
