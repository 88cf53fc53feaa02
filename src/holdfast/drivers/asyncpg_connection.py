"""Driver for asyncpg connections of the asynchronous PostgreSQL engine."""

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
"""Exceptions that asyncpg raises when a statement fails."""


class AsyncpgConnection:
    """Asynchronous connection: its methods suspend."""

    dialect = Dialect.POSTGRES
    distributed = False

    def __init__(self, raw: asyncpg.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            return cast("Sequence[Row]", await self.raw.fetch(sql, *args))
        except FAILED as error:
            raise holdfast_error(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            await self.raw.executemany(sql, rows)
        except FAILED as error:
            raise holdfast_error(error) from error

    async def fetch_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> Sequence[Row]:
        """Run a statement once for each row of arguments, in one round trip and one transaction, and return all result rows."""
        try:
            return cast("Sequence[Row]", await self.raw.fetchmany(sql, rows))
        except FAILED as error:
            raise holdfast_error(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return AsyncpgSavepoint(self.raw)


def holdfast_error(error: Exception) -> HoldfastError:
    """Convert an asyncpg error to one of ours."""
    if isinstance(error, asyncpg.PostgresError):
        # asyncpg raises some of these itself when the connection was lost; only errors from the server have a severity.
        sqlstate = error.sqlstate if error.severity else None
        return translate(sqlstate, str(error), severity=error.severity_en, context=error.context)
    if isinstance(error, asyncpg.DataError):
        return InvalidText(f"{InvalidText.__doc__} (asyncpg reported: {error})")
    if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
        return Unavailable(f"this connection is in use by another task: {error}")
    kind = NotSent if was_not_sent(error) else ConnectionLost
    return kind(f"{(kind.__doc__ or '').splitlines()[0]} ({error})")


def was_not_sent(error: Exception) -> bool:
    """Return whether asyncpg refused to send the statement because the connection is closed or closing.

    Between the server's last message and the end of the stream, asyncpg is in a state that is neither idle nor closed, and
    refuses to switch to another state.
    """
    if isinstance(error, asyncpg.InternalClientError):
        return str(error).startswith(("cannot switch to state", "not connected"))
    return isinstance(error, asyncpg.InterfaceError) and "closed" in str(error)


def is_reported(error: BaseException | None) -> bool:
    """Return whether the server reported this error and the connection remains usable."""
    return isinstance(error, asyncpg.PostgresError) and (error.severity_en or error.severity) == "ERROR"


class AsyncpgSavepoint:
    """A savepoint or, outside a transaction, a transaction. If cancelled, the connection must be closed by its owner."""

    commit = "COMMIT"

    def __init__(self, raw: asyncpg.Connection) -> None:
        self._raw, self._outermost = raw, False

    async def __aenter__(self) -> None:
        try:
            self._outermost = not self._raw.is_in_transaction()
            await self._execute("BEGIN" if self._outermost else "SAVEPOINT holdfast")
        except FAILED as error:
            raise holdfast_error(error) from error

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                await self._execute(self.commit if self._outermost else "RELEASE holdfast")
            elif isinstance(error, Exception):
                await self._roll_back()
        except FAILED as failure:
            if error is not None:
                return  # the server has rolled back, and the first error is more specific
            converted = holdfast_error(failure)
            lost = self._outermost and isinstance(converted, LOST_ON_COMMIT) and not isinstance(converted, NotSent)
            raise (OutcomeUnknown() if lost else converted) from failure

    async def _execute(self, sql: str) -> None:
        await self._raw.execute(sql)

    async def _roll_back(self) -> None:
        await self._execute("ROLLBACK" if self._outermost else "ROLLBACK TO holdfast; RELEASE holdfast")
