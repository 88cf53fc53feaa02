"""Driver for the caller's SQLAlchemy Connection, Session, AsyncConnection or AsyncSession.

SQLAlchemy decides on which connection its transaction runs, and when it begins and ends. So for each call the underlying
connection is looked up again, its transaction is begun if necessary, and the driver of that connection does the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from ..engines.dialect import Dialect
from ..engines.protocol import Connection, Row
from ..errors import Closed, InvalidInput, Unavailable
from . import join

CallerConnection = SyncConnection | Session | AsyncConnection | AsyncSession
_DIALECTS = {"sqlite": Dialect.SQLITE, "postgresql": Dialect.POSTGRES}


class SqlalchemyConnection:
    """Connection that blocks or suspends like the caller's own."""

    distributed = False

    def __init__(self, theirs: CallerConnection) -> None:
        self._theirs = theirs
        self._in_scope: Connection | None = None
        self.dialect = _dialect(theirs)

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await (self._in_scope or await self._underneath()).fetch(sql, args)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await (self._in_scope or await self._underneath()).many(sql, rows)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        outer = self._in_scope
        inner = outer or await self._underneath()
        async with inner.savepoint():
            self._in_scope = inner
            try:
                yield
            finally:
                self._in_scope = outer

    async def _underneath(self) -> Connection:
        """Return the wrapped driver connection, on which SQLAlchemy's transaction is open."""
        theirs = self._theirs
        with _translating():
            if isinstance(theirs, (AsyncConnection, AsyncSession)):
                raw = await _asynchronous(theirs)
                return join.asynchronous(raw, self.dialect)
            return join.blocking(_blocking(theirs), self.dialect)


def wrap(connection: CallerConnection) -> SqlalchemyConnection:
    """Wrap the caller's connection or session."""
    return SqlalchemyConnection(connection)


def _blocking(theirs: SyncConnection | Session) -> Any:
    connection = theirs.connection() if isinstance(theirs, Session) else theirs
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


async def _asynchronous(theirs: AsyncConnection | AsyncSession) -> Any:
    connection = await theirs.connection() if isinstance(theirs, AsyncSession) else theirs
    raw = (await connection.get_raw_connection()).driver_connection
    # With asyncpg the transaction begins with the first statement that goes through SQLAlchemy, so one is executed.
    begun = getattr(raw, "is_in_transaction", connection.in_transaction)
    if not begun():
        await connection.exec_driver_sql("SELECT 1")
    return raw


def _dialect(theirs: CallerConnection) -> Dialect:
    with _translating():
        bound = theirs.get_bind() if isinstance(theirs, (Session, AsyncSession)) else theirs
        name = bound.dialect.name
    if name not in _DIALECTS:
        raise InvalidInput(f"cannot join SQLAlchemy on {name}; supported: {' and '.join(_DIALECTS)}", field="dialect")
    return _DIALECTS[name]


@contextmanager
def _translating() -> Iterator[None]:
    """Convert SQLAlchemy's errors to ours."""
    try:
        yield
    except exc.ResourceClosedError as error:
        raise Closed("the joined SQLAlchemy connection is closed; join an open one") from error
    except (exc.DBAPIError, exc.TimeoutError) as error:
        raise Unavailable(f"SQLAlchemy cannot reach the database: {error}") from error
    except exc.SQLAlchemyError as error:
        field = "bind" if isinstance(error, exc.UnboundExecutionError) else "connection"
        raise InvalidInput(
            f"the joined SQLAlchemy connection or session cannot be used: {error}", field=field
        ) from error
