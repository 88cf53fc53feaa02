"""asyncpg: the asynchronous PostgreSQL engine's own connections."""

from __future__ import annotations

from asyncio import IncompleteReadError
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import asyncpg

from ..engines.dialect import Dialect
from ..engines.postgres.errors import LOST_ON_COMMIT, ConnectionLost, NotSent, translate
from ..engines.protocol import Row
from ..errors import HoldfastError, InvalidText, OutcomeUnknown, Unavailable

FAILED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, IncompleteReadError)
"""What asyncpg raises when a statement fails."""


class AsyncpgConnection:
    """A connection whose methods really suspend."""

    dialect = Dialect.POSTGRES
    distributed = False

    def __init__(self, raw: asyncpg.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            return cast("Sequence[Row]", await self.raw.fetch(sql, *args))
        except FAILED as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            await self.raw.executemany(sql, rows)
        except FAILED as error:
            raise translated(error) from error

    async def fetch_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> Sequence[Row]:
        """Run one statement for each row of arguments, in one round trip and one transaction; all their rows."""
        try:
            return cast("Sequence[Row]", await self.raw.fetchmany(sql, rows))
        except FAILED as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return Savepoint(self.raw)


def translated(error: Exception) -> HoldfastError:
    """An error of asyncpg as one of ours."""
    if isinstance(error, asyncpg.PostgresError):
        # asyncpg raises some of these itself when the connection is gone; the server names a severity.
        sqlstate = error.sqlstate if error.severity else None
        return translate(sqlstate, str(error), severity=error.severity_en, context=error.context)
    if isinstance(error, asyncpg.DataError):
        return InvalidText(f"{InvalidText.__doc__} (asyncpg says: {error})")
    if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
        return Unavailable(f"this connection is doing something else at the moment: {error}")
    kind = NotSent if was_not_sent(error) else ConnectionLost
    return kind(f"{(kind.__doc__ or '').splitlines()[0]} ({error})")


def was_not_sent(error: Exception) -> bool:
    """Whether asyncpg refused to send the statement, because the connection is closed or is just being closed.

    After the server's last message and before the end of the stream, asyncpg's state is neither idle nor closed: it refuses to
    switch to another one.
    """
    if isinstance(error, asyncpg.InternalClientError):
        return str(error).startswith(("cannot switch to state", "not connected"))
    return isinstance(error, asyncpg.InterfaceError) and "closed" in str(error)


def is_reported(error: BaseException | None) -> bool:
    """Whether the server reported this error and keeps serving the connection."""
    return isinstance(error, asyncpg.PostgresError) and (error.severity_en or error.severity) == "ERROR"


class Savepoint:
    """A savepoint or, outside a transaction, one. Cancelled, it leaves the connection as it is, for somebody to throw away."""

    commit = "COMMIT"

    def __init__(self, raw: asyncpg.Connection) -> None:
        self._raw, self._outermost = raw, False

    async def __aenter__(self) -> None:
        try:
            self._outermost = not self._raw.is_in_transaction()
            await self._say("BEGIN" if self._outermost else "SAVEPOINT holdfast")
        except FAILED as error:
            raise translated(error) from error

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                await self._say(self.commit if self._outermost else "RELEASE holdfast")
            elif isinstance(error, Exception):
                await self._undo()
        except FAILED as failure:
            if error is not None:
                return  # the server has undone it, and the first error says more
            found = translated(failure)
            lost = self._outermost and isinstance(found, LOST_ON_COMMIT) and not isinstance(found, NotSent)
            raise (OutcomeUnknown() if lost else found) from failure

    async def _say(self, sql: str) -> None:
        await self._raw.execute(sql)

    async def _undo(self) -> None:
        await self._say("ROLLBACK" if self._outermost else "ROLLBACK TO holdfast; RELEASE holdfast")
