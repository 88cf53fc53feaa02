"""sqlite3: the caller's connection of the standard library, in all its transaction modes.

A connection that opens transactions by itself (``isolation_level`` is a text, or ``autocommit=False``) keeps doing so: we
open the transaction it would have opened, and only the caller's ``commit()`` makes it last. On one that opens none
(``isolation_level=None``, or ``autocommit=True``), a write outside the caller's ``BEGIN`` is a transaction of its own.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..engines.dialect import Dialect
from ..engines.protocol import Row
from ..engines.sqlite.errors import DiskFailed, translate
from ..engines.sqlite.libraries import Claim
from ..errors import Closed, InvalidInput, OutcomeUnknown

_FILES = "PRAGMA database_list"
_NUMBERS_ARE_NAMES = (3, 12, 0) <= sys.version_info < (3, 12, 4)  # these warn about a sequence for ?1, ?2


class Sqlite3Connection:
    """A blocking connection: its methods never suspend."""

    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, raw: sqlite3.Connection, claim: Claim | None = None) -> None:
        self.raw, self._claim = raw, claim

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """``fetch``, for callers that are not coroutines."""
        with self._cursor() as cursor:
            return cursor.execute(sql, _arguments(args)).fetchall()

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._cursor() as cursor:
            cursor.executemany(sql, map(_arguments, rows))

    def savepoint(self) -> Savepoint:
        return Savepoint(self)

    @contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        """A cursor that gives plain rows of plain text, whatever factories the caller has set."""
        with translating():
            cursor = sqlite3.Cursor(self.raw)
            theirs, self.raw.text_factory = self.raw.text_factory, str
            try:
                self._claim = self._claim or Claim([row[2] for row in cursor.execute(_FILES)], "stdlib", raw=self.raw)
                yield cursor
            finally:
                self.raw.text_factory = theirs


class Savepoint:
    """A scope in the caller's transaction, or a transaction opened for it. Leaving what was not entered does nothing."""

    def __init__(self, connection: Sqlite3Connection) -> None:
        self._connection = connection
        self._ends: tuple[list[str], list[str]] | None = None

    async def __aenter__(self) -> None:
        with translating():
            begin, keep, undo = _scope(self._connection.raw)
        await self._connection.fetch(begin, ())
        self._ends = (keep, undo)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if (ends := self._ends) is None:
            return
        connection, self._ends = self._connection, None
        try:
            # SQLite undoes everything by itself when, for example, the disk is full.
            for sql in ends[error is not None] if connection.raw.in_transaction else ():
                await connection.fetch(sql, ())
        except DiskFailed as failure:
            raise OutcomeUnknown(f"the disk failed while committing: {failure}") from failure
        finally:
            if ends[0] == ["COMMIT"] and connection.raw.in_transaction:
                await connection.fetch("ROLLBACK", ())


def wrap(connection: sqlite3.Connection) -> Sqlite3Connection:
    """The caller's connection."""
    return Sqlite3Connection(connection)


@contextmanager
def translating(what: str = "") -> Iterator[None]:
    """Errors of sqlite3 become ours; ``what`` is said before its own words."""
    try:
        yield
    except sqlite3.Error as error:
        if (code := getattr(error, "sqlite_errorcode", None)) is not None:
            raise translate(code, f"{what}{error}") from error
        if "closed" in str(error):
            raise Closed("the connection that was joined is closed; join an open one") from error
        raise InvalidInput(f"the connection that was joined cannot be used: {error}") from error


def _scope(raw: sqlite3.Connection) -> tuple[str, list[str], list[str]]:
    """How a scope begins, and how it ends when it is kept and when it is undone."""
    if raw.in_transaction:  # the innermost of several savepoints of one name is meant
        return "SAVEPOINT holdfast", ["RELEASE holdfast"], ["ROLLBACK TO holdfast", "RELEASE holdfast"]
    autocommit = getattr(raw, "autocommit", -1)  # new in Python 3.12; at -1, isolation_level decides as it always did
    opens_none = raw.isolation_level is None if autocommit == -1 else autocommit
    # We are about to write, so we begin as a writer: a reader may find that it cannot become one.
    begin = "BEGIN EXCLUSIVE" if raw.isolation_level == "EXCLUSIVE" else "BEGIN IMMEDIATE"
    return begin, ["COMMIT"] if opens_none else [], ["ROLLBACK"]


def _arguments(args: Sequence[Any]) -> Any:
    return {str(n): arg for n, arg in enumerate(args, 1)} if _NUMBERS_ARE_NAMES else args
