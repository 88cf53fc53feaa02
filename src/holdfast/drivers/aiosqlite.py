"""Driver for the caller's aiosqlite connection; runs the sqlite3 driver in that connection's thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import aiosqlite

from ..engines.dialect import Dialect
from ..engines.protocol import Row
from ..errors import Closed
from ..sync_runner import step
from .sqlite3 import Sqlite3Connection

T = TypeVar("T")


class AiosqliteConnection:
    """Asynchronous connection: its methods suspend."""

    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self._raw = raw
        self._blocking: Sqlite3Connection | None = None

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await self.run(lambda connection: connection.fetch(sql, args))

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self.run(lambda connection: connection.many(sql, rows))

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)

    async def run(self, call: Callable[[Sqlite3Connection], Coroutine[Any, Any, T]]) -> T:
        """Run a blocking call in the connection's thread; it completes even if the task is cancelled."""
        try:
            raw = self._raw._conn
        except ValueError as error:
            raise Closed("the joined aiosqlite connection is not open: await it, or join an open one") from error
        self._blocking = blocking = self._blocking or Sqlite3Connection(raw)
        # Private API, but every method of aiosqlite uses it to run code in the thread, and no public equivalent exists.
        execute: Callable[[Callable[[], T]], Awaitable[T]] = self._raw._execute
        return await execute(lambda: step(call(blocking)))


def wrap(connection: aiosqlite.Connection) -> AiosqliteConnection:
    """Wrap the caller's connection."""
    return AiosqliteConnection(connection)


class _Savepoint:
    def __init__(self, connection: AiosqliteConnection) -> None:
        self._connection = connection
        self._inner: Any = None

    async def __aenter__(self) -> None:
        try:
            await self._connection.run(self._enter)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._connection.run(lambda connection: self._leave(kind, error, trace))

    async def _leave(self, *outcome: object) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(*outcome)

    async def _enter(self, connection: Sqlite3Connection) -> None:
        self._inner = connection.savepoint()
        await self._inner.__aenter__()
