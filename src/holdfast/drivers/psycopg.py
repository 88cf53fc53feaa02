"""Driver for psycopg 3: connections of the blocking PostgreSQL engine, and the caller's ``Connection``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ..engines.dialect import Dialect
from ..engines.postgres.errors import LOST_ON_COMMIT
from ..engines.protocol import Row
from ..errors import OutcomeUnknown
from .psycopg_shared import holdfast_error, is_idle, needs_transaction, refuse_pipeline

MAX_REUSED_ROWS = 100
"""Result rows up to which a cursor is reused; creating one costs a fifth of a statement. A cursor keeps its last result in
memory, so after a larger result it is closed."""


class PsycopgConnection:
    """Blocking connection: its methods never suspend."""

    dialect = Dialect.POSTGRES
    commit = "COMMIT"
    distributed = False

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self.depth = 0
        self._cursor: psycopg.RawCursor[Any] | None = None

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run ``fetch`` for callers that are not coroutines."""
        refuse_pipeline(self.raw)
        try:
            # Our own raw cursor: it ignores the row factory of the caller's connection and accepts $1 placeholders.
            cursor = self._cursor = self._cursor or psycopg.RawCursor(self.raw, row_factory=tuple_row)
            cursor.execute(sql.encode(), args or None, binary=bool(args))
            rows = cursor.fetchall() if cursor.description else []
            if len(rows) > MAX_REUSED_ROWS:
                cursor.close()
                self._cursor = None
            return rows
        except psycopg.Error as error:
            raise holdfast_error(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        refuse_pipeline(self.raw)
        try:
            with psycopg.RawCursor(self.raw) as cursor:
                cursor.executemany(sql.encode(), rows)
        except psycopg.Error as error:
            raise holdfast_error(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


def wrap(connection: psycopg.Connection[Any]) -> PsycopgConnection:
    """Wrap the caller's connection."""
    return PsycopgConnection(connection)


class _Savepoint:
    def __init__(self, connection: PsycopgConnection) -> None:
        self._connection, self._outermost = connection, needs_transaction(connection.raw)

    async def __aenter__(self) -> None:
        self._connection.depth += 1
        try:
            self._connection.execute("BEGIN" if self._outermost else f"SAVEPOINT holdfast_{self._connection.depth}")
        except BaseException:
            self._connection.depth -= 1
            # If interrupted, the transaction may have begun, and the next write would become part of it.
            if self._outermost and not is_idle(self._connection.raw):
                self._connection.execute("ROLLBACK")
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        connection, name = self._connection, f"holdfast_{self._connection.depth}"
        connection.depth -= 1
        if error is not None and (connection.raw.closed or connection.raw.broken):
            return  # the server has rolled back
        if self._outermost:
            self._end(connection.commit if error is None else "ROLLBACK")
            return
        if error is not None:
            connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
        connection.execute(f"RELEASE SAVEPOINT {name}")

    def _end(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except LOST_ON_COMMIT as error:
            raise OutcomeUnknown from error
        except BaseException:
            if not is_idle(self._connection.raw):  # interrupted: the transaction is still open
                self._connection.execute("ROLLBACK")
            raise
