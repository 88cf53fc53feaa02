"""Driver for apsw: connections of the SQLite engine, and the caller's ``apsw.Connection``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from ..engines.dialect import Dialect
from ..engines.protocol import Row
from ..engines.sqlite.errors import DiskFailed, translate
from ..engines.sqlite.library_claims import Claim
from ..errors import Closed, HoldfastError, OutcomeUnknown

MIN_CACHED_CHARS = 32
"""Length from which on a statement goes into apsw's cache. The cache is LRU: the BEGIN and COMMIT of every call would evict
the other statements, which take a hundred times as long to prepare."""


class ApswConnection:
    """Blocking connection: its methods never suspend."""

    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw
        self._depth = 0
        # One cursor for all statements: each result is fetched at once, and creating a cursor costs as much as a short statement.
        self._cursor = raw.cursor()

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run ``fetch`` for callers that are not coroutines."""
        try:
            return self._cursor.execute(sql, args, can_cache=len(sql) >= MIN_CACHED_CHARS).fetchall()
        except apsw.Error as error:
            raise holdfast_error(error) from error
        except BaseException:
            self._cursor = self.raw.cursor()  # interrupted: the old cursor may have unread rows
            raise

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self.raw.executemany(sql, rows)
        except apsw.Error as error:
            raise holdfast_error(error) from error

    def savepoint(self) -> _Savepoint:
        return _Savepoint(self)


class _JoinedConnection(ApswConnection):
    """The caller's connection; its row tracer is not applied to our rows."""

    _claim: Claim | None = None

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        try:
            if self._claim is None:
                files = [self.raw.db_filename(name) for name in self.raw.db_names()]
                self._claim = Claim(files, "apsw", raw=self.raw)
            cursor = self.raw.cursor()
            cursor.row_trace = lambda _, row: row
            return cursor.execute(sql, args).fetchall()
        except apsw.Error as error:
            raise holdfast_error(error) from error


def wrap(connection: apsw.Connection) -> ApswConnection:
    """Wrap the caller's connection."""
    return _JoinedConnection(connection)


def holdfast_error(error: apsw.Error) -> HoldfastError:
    """Convert an apsw error to one of ours."""
    if isinstance(error, (apsw.ConnectionClosedError, apsw.CursorClosedError)):
        return Closed("the joined connection is closed; join an open one")
    return translate(getattr(error, "extendedresult", 0), str(error))


class _Savepoint:
    def __init__(self, connection: ApswConnection) -> None:
        self._connection = connection
        self._outermost = False

    async def __aenter__(self) -> None:
        connection = self._connection
        try:
            self._outermost = not connection.raw.in_transaction
        except apsw.Error as error:
            raise holdfast_error(error) from error
        connection._depth += 1
        # Outside a transaction, SAVEPOINT would begin a read transaction that might not be upgraded to a write later.
        connection.execute("BEGIN IMMEDIATE" if self._outermost else f"SAVEPOINT holdfast_{connection._depth}")

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        connection, name = self._connection, f"holdfast_{self._connection._depth}"
        connection._depth -= 1
        if not connection.raw.in_transaction:
            return  # SQLite has already rolled back the transaction, as it does when the disk is full
        if self._outermost:
            self._end("COMMIT" if error is None else "ROLLBACK")
            return
        if error is not None:
            connection.execute(f"ROLLBACK TO {name}")
        connection.execute(f"RELEASE {name}")

    def _end(self, sql: str) -> None:
        connection = self._connection
        try:
            connection.execute(sql)
        except HoldfastError as error:
            if connection.raw.in_transaction:  # otherwise the next write would become part of it
                connection.execute("ROLLBACK")
            if isinstance(error, DiskFailed):
                raise OutcomeUnknown(f"the disk failed while committing: {error}") from error
            raise
