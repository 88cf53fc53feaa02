"""apsw: the SQLite engine's own connections, and the caller's ``apsw.Connection``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from ..engines.dialect import Dialect
from ..engines.protocol import Row
from ..engines.sqlite.errors import DiskFailed, translate
from ..engines.sqlite.libraries import Claim
from ..errors import Closed, HoldfastError, OutcomeUnknown

KEPT_FROM = 32
"""Characters from which on a statement stays prepared. apsw keeps those that were run last: the BEGIN and COMMIT of every call
would push out the others, which take a hundred times as long to prepare."""


class ApswConnection:
    """A blocking connection: its methods never suspend."""

    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw
        self._depth = 0
        # One for all statements: each is read to its end at once, and making a cursor takes as long as a short statement.
        self._cursor = raw.cursor()

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """``fetch``, for callers that are not coroutines."""
        try:
            return self._cursor.execute(sql, args, can_cache=len(sql) >= KEPT_FROM).fetchall()
        except apsw.Error as error:
            raise translated(error) from error
        except BaseException:
            self._cursor = self.raw.cursor()  # interrupted, so the last one may have more to give
            raise

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self.raw.executemany(sql, rows)
        except apsw.Error as error:
            raise translated(error) from error

    def savepoint(self) -> _Savepoint:
        return _Savepoint(self)


class _Joined(ApswConnection):
    """The caller's connection: its row tracer is not for our rows."""

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
            raise translated(error) from error


def wrap(connection: apsw.Connection) -> ApswConnection:
    """The caller's connection."""
    return _Joined(connection)


def translated(error: apsw.Error) -> HoldfastError:
    """An error of apsw as one of ours."""
    if isinstance(error, (apsw.ConnectionClosedError, apsw.CursorClosedError)):
        return Closed("the connection that was joined is closed; join an open one")
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
            raise translated(error) from error
        connection._depth += 1
        # Outside a transaction a savepoint would start one that may fail to become a writer later.
        connection.execute("BEGIN IMMEDIATE" if self._outermost else f"SAVEPOINT holdfast_{connection._depth}")

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        connection, name = self._connection, f"holdfast_{self._connection._depth}"
        connection._depth -= 1
        if not connection.raw.in_transaction:
            return  # SQLite has already undone everything, as it does when the disk is full
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
            if connection.raw.in_transaction:  # left open, it would swallow what is written next
                connection.execute("ROLLBACK")
            if isinstance(error, DiskFailed):
                raise OutcomeUnknown(f"the disk failed while committing: {error}") from error
            raise
