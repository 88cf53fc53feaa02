"""An engine over the caller's own connection: what we write lives and dies with the caller's transaction."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from .dialect import Dialect
from .postgres.citus import is_distributed
from .protocol import Call, Connection, Engine, Group, run_one

T = TypeVar("T")
Item = TypeVar("Item")


class JoinedEngine:
    """Runs every call on one connection, one after the other.

    Each write is a savepoint, so one that fails leaves the caller's work alone.
    """

    joined = True

    def __init__(
        self, connection: Connection, turn: AbstractAsyncContextManager[None], *, blocking: bool, owner: Engine
    ) -> None:
        self._connection, self._turn, self.blocking, self._owner = connection, turn, blocking, owner
        self.distributed = owner.distributed

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    async def read(self, call: Call[T]) -> T:
        async with self._turn:
            return await call(await self._known())

    async def write(self, call: Call[T]) -> T:
        async with self._turn, self._connection.savepoint():
            return await call(await self._known())

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        async with self._turn:
            return await run_one(group, await self._known(), item)

    async def _known(self) -> Connection:
        """The connection, once it is known whether its tables are distributed. A Holdfast that was never opened asks it."""
        if self.distributed is None:
            if self._owner.distributed is None:
                self._owner.distributed = await is_distributed(self._connection)
            self.distributed = self._owner.distributed
        self._connection.distributed = self.distributed
        return self._connection
