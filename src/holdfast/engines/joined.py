"""An engine over the caller's own connection: what we write lives and dies with the caller's transaction."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from .dialect import Dialect
from .protocol import Call, Connection, Group, run_one

T = TypeVar("T")
Item = TypeVar("Item")


class JoinedEngine:
    """Runs every call on one connection, one after the other.

    Each write is a savepoint, so one that fails leaves the caller's work alone.
    """

    joined = True

    def __init__(self, connection: Connection, turn: AbstractAsyncContextManager[None], *, blocking: bool) -> None:
        self._connection, self._turn, self.blocking = connection, turn, blocking

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    async def read(self, call: Call[T]) -> T:
        async with self._turn:
            return await call(self._connection)

    async def write(self, call: Call[T]) -> T:
        async with self._turn, self._connection.savepoint():
            return await call(self._connection)

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        async with self._turn:
            return await run_one(group, self._connection, item)
