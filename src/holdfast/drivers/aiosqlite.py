"""aiosqlite: the caller's connection. Everything sqlite3 needs, done in that connection's own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import aiosqlite

from ..engines.dialect import Dialect
from ..engines.protocol import Row
from ..errors import Closed
from ..stepping import step
from .sqlite3 import Sqlite3Connection

T = TypeVar("T")


class AiosqliteConnection:
    """A connection whose methods really suspend. Tasks that share it take turns."""

    dialect = Dialect.SQLITE

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self._raw = raw
        self.turn = _turns.setdefault(raw, Turn())

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await self.run(lambda connection: connection.fetch(sql, args))

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await self.run(lambda connection: connection.many(sql, rows))

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)

    async def run(self, call: Callable[[Sqlite3Connection], Coroutine[Any, Any, T]]) -> T:
        """Run a blocking call in the connection's thread, whole even if the task is cancelled meanwhile."""
        try:
            blocking = Sqlite3Connection(self._raw._conn)
        except ValueError as error:
            raise Closed("the connection that was joined is not open: await it, or join an open one") from error
        # Private, but it is how every method of aiosqlite gets to the thread, and there is no public way.
        execute: Callable[[Callable[[], T]], Awaitable[T]] = self._raw._execute
        return await execute(lambda: step(call(blocking)))


def wrap(connection: aiosqlite.Connection) -> AiosqliteConnection:
    """The caller's connection."""
    return AiosqliteConnection(connection)


class Turn:
    """A lock that the task holding it can take again."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._depth = 0

    async def take(self) -> None:
        if self._holder is not asyncio.current_task():
            await self._lock.acquire()
            self._holder = asyncio.current_task()
        self._depth += 1

    def give(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._lock.release()


_turns: WeakKeyDictionary[aiosqlite.Connection, Turn] = WeakKeyDictionary()


class _Savepoint:
    def __init__(self, connection: AiosqliteConnection) -> None:
        self._connection = connection
        self._inner: Any = None

    async def __aenter__(self) -> None:
        await self._connection.turn.take()
        try:
            await self._connection.run(self._enter)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self._connection.run(lambda connection: self._inner.__aexit__(kind, error, trace))
        finally:
            self._connection.turn.give()

    async def _enter(self, connection: Sqlite3Connection) -> None:
        self._inner = connection.savepoint()
        await self._inner.__aenter__()
