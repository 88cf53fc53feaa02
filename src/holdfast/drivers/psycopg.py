"""psycopg 3: the synchronous PostgreSQL engine's own connections, and the caller's."""

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
from .psycopg_states import is_idle, opens_itself, refuse_pipeline, translated

KEPT_ROWS = 100
"""A cursor is used again: making one takes a fifth of what a statement does. It holds its last answer, so not after more rows."""


class PsycopgConnection:
    """A blocking connection: its methods never suspend."""

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
        """``fetch``, for callers that are not coroutines."""
        refuse_pipeline(self.raw)
        try:
            # A cursor of our own: the caller's connection keeps its row factory, and we keep $1 for placeholders.
            cursor = self._cursor = self._cursor or psycopg.RawCursor(self.raw, row_factory=tuple_row)
            cursor.execute(sql.encode(), args or None, binary=bool(args))
            rows = cursor.fetchall() if cursor.description else []
            if len(rows) > KEPT_ROWS:
                cursor.close()
                self._cursor = None
            return rows
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
            if not is_idle(self._connection.raw):  # interrupted, and not ended
                self._connection.execute("ROLLBACK")
            raise
