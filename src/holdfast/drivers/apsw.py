"""apsw: the SQLite engine's own connections, and the caller's ``apsw.Connection``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ..engines.dialect import Dialect
from ..engines.protocol import Row
from ..engines.sqlite.errors import translate


class ApswConnection:
    """A blocking connection: its methods never suspend."""

    dialect = Dialect.SQLITE

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw
        self._depth = 0

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """``fetch``, for callers that are not coroutines."""
        try:
            return self.raw.execute(sql, args).fetchall()
        except apsw.Error as error:
            raise translate(getattr(error, "extendedresult", 0), str(error)) from error

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self.raw.executemany(sql, rows)
        except apsw.Error as error:
            raise translate(getattr(error, "extendedresult", 0), str(error)) from error

    def savepoint(self) -> _Savepoint:
        return _Savepoint(self)


def wrap(connection: apsw.Connection) -> ApswConnection:
    """The caller's connection."""
    return ApswConnection(connection)


class _Savepoint:
    def __init__(self, connection: ApswConnection) -> None:
        self._connection = connection
        self._outermost = not connection.raw.in_transaction

    async def __aenter__(self) -> None:
        connection = self._connection
        connection._depth += 1
        # Outside a transaction a savepoint would start one that may fail to become a writer later.
        connection.execute("BEGIN IMMEDIATE" if self._outermost else f"SAVEPOINT holdfast_{connection._depth}")

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        connection, name = self._connection, f"holdfast_{self._connection._depth}"
        connection._depth -= 1
        if not connection.raw.in_transaction:
            return  # SQLite has already undone everything, as it does when the disk is full
        if self._outermost:
            connection.execute("COMMIT" if error is None else "ROLLBACK")
            return
        if error is not None:
            connection.execute(f"ROLLBACK TO {name}")
        connection.execute(f"RELEASE {name}")
