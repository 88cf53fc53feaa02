"""psycopg 3: the synchronous PostgreSQL engine's own connections, and the caller's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..engines.dialect import Dialect
from ..engines.postgres.errors import ConnectionLost, translate
from ..engines.protocol import Row
from ..errors import HoldfastError, InvalidInput, InvalidText, OutcomeUnknown


class PsycopgConnection:
    """A blocking connection: its methods never suspend."""

    dialect = Dialect.POSTGRES

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self.depth = 0

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """``fetch``, for callers that are not coroutines."""
        refuse_pipeline(self.raw)
        try:
            # A cursor of our own: the caller's connection keeps its row factory, and we keep $1 for placeholders.
            with psycopg.RawCursor(self.raw, row_factory=tuple_row) as cursor:
                cursor.execute(sql.encode(), args or None, binary=bool(args))
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        refuse_pipeline(self.raw)
        try:
            with psycopg.RawCursor(self.raw) as cursor:
                cursor.executemany(sql.encode(), rows)
        except psycopg.Error as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


def wrap(connection: psycopg.Connection[Any]) -> PsycopgConnection:
    """The caller's connection."""
    return PsycopgConnection(connection)


def translated(error: psycopg.Error) -> HoldfastError:
    """An error of psycopg as one of ours."""
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return InvalidText(f"{InvalidText.__doc__} (psycopg says: {error})")
    return translate(error.sqlstate, str(error))


def opens_itself(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether we must open and close a transaction: the caller has none and its connection starts none by itself.

    psycopg's own ``transaction()`` cannot be used: where there is no autocommit, it would commit before the caller has.
    """
    return raw.autocommit and is_idle(raw)


def refuse_pipeline(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse what would only be queued: there the answer to a statement comes later, and now looks as if it were empty."""
    if raw._pipeline is not None:
        raise InvalidInput("leave the pipeline block before you use the joined handle: its calls need answers at once")


def is_idle(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether no transaction is open, as far as the connection knows; a lost one has none."""
    return raw.closed or raw.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


class _Savepoint:
    def __init__(self, connection: PsycopgConnection) -> None:
        self._connection, self._outermost = connection, opens_itself(connection.raw)

    async def __aenter__(self) -> None:
        self._connection.depth += 1
        try:
            self._connection.execute("BEGIN" if self._outermost else f"SAVEPOINT holdfast_{self._connection.depth}")
        except BaseException:
            self._connection.depth -= 1
            # Interrupted, it may have begun all the same, and would swallow what is written next.
            if self._outermost and not is_idle(self._connection.raw):
                self._connection.execute("ROLLBACK")
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        connection, name = self._connection, f"holdfast_{self._connection.depth}"
        connection.depth -= 1
        if error is not None and (connection.raw.closed or connection.raw.broken):
            return  # the server has undone it
        if self._outermost:
            self._end("COMMIT" if error is None else "ROLLBACK")
            return
        if error is not None:
            connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
        connection.execute(f"RELEASE SAVEPOINT {name}")

    def _end(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except ConnectionLost as error:
            raise OutcomeUnknown from error
        except BaseException:
            if not is_idle(self._connection.raw):  # interrupted, and not ended
                self._connection.execute("ROLLBACK")
            raise
