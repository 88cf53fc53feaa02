"""asyncpg: the asynchronous PostgreSQL engine's own connections, and the caller's."""

from __future__ import annotations

from asyncio import IncompleteReadError
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import asyncpg

from ..engines.dialect import Dialect
from ..engines.postgres.errors import ConnectionLost, translate
from ..engines.protocol import Row
from ..errors import HoldfastError, InvalidText, OutcomeUnknown, Unavailable
from .asyncpg_codecs import past_codecs

_FAILED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, IncompleteReadError)


class AsyncpgConnection:
    """A connection whose methods really suspend."""

    dialect = Dialect.POSTGRES

    def __init__(self, raw: asyncpg.Connection, *, thrown_away: bool = False) -> None:
        self.raw = raw
        self.thrown_away = thrown_away  # when interrupted, so that a transaction left open in it need not be ended

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            return cast("Sequence[Row]", await self.raw.fetch(sql, *args))
        except _FAILED as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            await self.raw.executemany(sql, rows)
        except _FAILED as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


class _Joined(AsyncpgConnection):
    """The caller's connection: its codecs are not for our values."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await super().fetch(await self._past_codecs(sql), args)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await super().many(await self._past_codecs(sql), rows)

    async def _past_codecs(self, sql: str) -> str:
        try:
            return await past_codecs(self.raw, sql)
        except _FAILED as error:
            raise translated(error) from error


def wrap(connection: asyncpg.Connection) -> AsyncpgConnection:
    """The caller's connection."""
    return _Joined(connection)


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
    """A savepoint or, outside a transaction, one. asyncpg's own block, cancelled as it begins, would leave it open."""

    def __init__(self, connection: AsyncpgConnection) -> None:
        self._raw, self._thrown_away, self._outermost = connection.raw, connection.thrown_away, False

    async def __aenter__(self) -> None:
        try:
            self._outermost = not self._raw.is_in_transaction()
            await self._raw.execute("BEGIN" if self._outermost else "SAVEPOINT holdfast")
        except _FAILED as error:
            raise translated(error) from error
        except BaseException as error:
            if self._outermost and not self._thrown_away:
                await self.__aexit__(type(error), error, None)
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._thrown_away and error is not None and not isinstance(error, Exception):
            return  # cancelled: the server may not even answer
        try:
            if error is None:
                await self._raw.execute("COMMIT" if self._outermost else "RELEASE holdfast")
            else:
                await self._undo()
        except _FAILED as failure:
            if error is not None:
                return  # the server has undone it, and the first error says more
            found = translated(failure)
            lost = self._outermost and isinstance(found, ConnectionLost)
            raise (OutcomeUnknown() if lost else found) from failure
        except BaseException:
            if self._outermost and not self._thrown_away:  # cancelled, and perhaps not ended
                await self._undo()
            raise

    async def _undo(self) -> None:
        for _ in range(3):
            try:
                await self._raw.execute("ROLLBACK" if self._outermost else "ROLLBACK TO holdfast; RELEASE holdfast")
            except asyncpg.QueryCanceledError:
                continue  # a cancellation of the statement before may arrive late and hit this one
            return
