"""asyncpg: the asynchronous PostgreSQL engine's own connections, and the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from ..engines.dialect import Dialect
from ..engines.postgres.errors import ConnectionLost, translate
from ..engines.protocol import Row
from ..errors import HoldfastError, InvalidText, OutcomeUnknown, Unavailable

_LOST = (asyncpg.InterfaceError, OSError, asyncio.IncompleteReadError)


class AsyncpgConnection:
    """A connection whose methods really suspend."""

    dialect = Dialect.POSTGRES

    def __init__(self, raw: asyncpg.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            rows: Sequence[Row] = await self.raw.fetch(sql, *args)
            return rows
        except (asyncpg.PostgresError, *_LOST, asyncpg.DataError) as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            await self.raw.executemany(sql, rows)
        except (asyncpg.PostgresError, *_LOST, asyncpg.DataError) as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


def wrap(connection: asyncpg.Connection) -> AsyncpgConnection:
    """The caller's connection."""
    return AsyncpgConnection(connection)


def translated(error: Exception) -> HoldfastError:
    """An error of asyncpg as one of ours."""
    if isinstance(error, asyncpg.PostgresError):
        return translate(error.sqlstate, str(error))
    if isinstance(error, asyncpg.DataError):
        return InvalidText(f"{InvalidText.__doc__} (asyncpg says: {error})")
    if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
        return Unavailable(f"this connection is doing something else at the moment: {error}")
    return ConnectionLost(f"{(ConnectionLost.__doc__ or '').splitlines()[0]} ({error})")


class _Savepoint:
    """asyncpg's own transaction block: a savepoint inside a transaction, a transaction of its own outside one."""

    def __init__(self, connection: AsyncpgConnection) -> None:
        self._outermost = not connection.raw.is_in_transaction()
        self._block = connection.raw.transaction()

    async def __aenter__(self) -> None:
        try:
            await self._block.start()
        except (asyncpg.PostgresError, *_LOST) as error:
            raise translated(error) from error

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                await self._block.commit()
            else:
                await self._block.rollback()
        except (asyncpg.PostgresError, *_LOST) as failure:
            if error is not None:
                return  # the server has undone it, and the first error says more
            found = translated(failure)
            if self._outermost and isinstance(found, ConnectionLost):
                raise OutcomeUnknown from failure
            raise found from failure
