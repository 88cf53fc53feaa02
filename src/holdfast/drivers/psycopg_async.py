"""psycopg 3, asynchronous: the caller's ``AsyncConnection``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ..engines.dialect import Dialect
from ..engines.postgres.errors import ConnectionLost
from ..engines.protocol import Row
from ..errors import OutcomeUnknown
from .psycopg import is_idle, opens_itself, refuse_pipeline, translated


class AsyncPsycopgConnection:
    """A connection whose methods really suspend."""

    dialect = Dialect.POSTGRES

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw
        self.depth = 0

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        refuse_pipeline(self.raw)
        try:
            async with psycopg.AsyncRawCursor(self.raw, row_factory=tuple_row) as cursor:
                await cursor.execute(sql.encode(), args or None, binary=bool(args))
                return await cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        refuse_pipeline(self.raw)
        try:
            async with psycopg.AsyncRawCursor(self.raw) as cursor:
                await cursor.executemany(sql.encode(), rows)
        except psycopg.Error as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


def wrap(connection: psycopg.AsyncConnection[Any]) -> AsyncPsycopgConnection:
    """The caller's connection."""
    return AsyncPsycopgConnection(connection)


class _Savepoint:
    def __init__(self, connection: AsyncPsycopgConnection) -> None:
        self._connection = connection
        self._outermost = opens_itself(connection.raw)

    async def __aenter__(self) -> None:
        self._connection.depth += 1
        opening = "BEGIN" if self._outermost else f"SAVEPOINT holdfast_{self._connection.depth}"
        try:
            await self._connection.fetch(opening, ())
        except BaseException:
            self._connection.depth -= 1
            # Cancelled, it may have begun all the same, and would swallow what is written next.
            if self._outermost and not is_idle(self._connection.raw):
                await self._connection.fetch("ROLLBACK", ())
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        connection, name = self._connection, f"holdfast_{self._connection.depth}"
        connection.depth -= 1
        if error is not None and (connection.raw.closed or connection.raw.broken):
            return  # the server has undone it
        if self._outermost:
            await self._end("COMMIT" if error is None else "ROLLBACK")
            return
        if error is not None:
            await connection.fetch(f"ROLLBACK TO SAVEPOINT {name}", ())
        await connection.fetch(f"RELEASE SAVEPOINT {name}", ())

    async def _end(self, sql: str) -> None:
        try:
            await self._connection.fetch(sql, ())
        except ConnectionLost as error:
            raise OutcomeUnknown from error
        except BaseException:
            if not is_idle(self._connection.raw):  # interrupted, and not ended
                await self._connection.fetch("ROLLBACK", ())
            raise
