"""Driver for the caller's sqlite3 connection, in all its transaction modes.

If the connection begins transactions implicitly (``isolation_level`` is a string, or ``autocommit=False``), we begin the
transaction that it would have begun, and only the caller's ``commit()`` makes it durable. If it does not
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
from ..engines.sqlite.library_claims import Claim
from ..errors import Closed, InvalidInput, OutcomeUnknown

_FILES = "PRAGMA database_list"
_NUMBERS_ARE_NAMES = (3, 12, 0) <= sys.version_info < (3, 12, 4)  # these versions warn about a sequence for ?1, ?2


class Sqlite3Connection:
    """Blocking connection: its methods never suspend."""

    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, raw: sqlite3.Connection, claim: Claim | None = None) -> None:
        self.raw, self._claim = raw, claim

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return self.execute(sql, args)

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run ``fetch`` for callers that are not coroutines."""
        with self._cursor() as cursor:
            return cursor.execute(sql, _arguments(args)).fetchall()

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._cursor() as cursor:
            cursor.executemany(sql, map(_arguments, rows))

    def savepoint(self) -> Sqlite3Savepoint:
        return Sqlite3Savepoint(self)

    @contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        """Return a cursor that produces tuples and ``str``, regardless of the factories the caller has set."""
        with translating():
            cursor = sqlite3.Cursor(self.raw)
            theirs, self.raw.text_factory = self.raw.text_factory, str
            try:
                self._claim = self._claim or Claim([row[2] for row in cursor.execute(_FILES)], "stdlib", raw=self.raw)
                yield cursor
            finally:
                self.raw.text_factory = theirs


class Sqlite3Savepoint:
    """A savepoint in the caller's transaction, or a new transaction. Exiting without having entered has no effect."""

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
            # SQLite rolls back by itself when, for example, the disk is full.
            for sql in ends[error is not None] if connection.raw.in_transaction else ():
                await connection.fetch(sql, ())
        except DiskFailed as failure:
            raise OutcomeUnknown(f"the disk failed while committing: {failure}") from failure
        finally:
            if ends[0] == ["COMMIT"] and connection.raw.in_transaction:
                await connection.fetch("ROLLBACK", ())


def wrap(connection: sqlite3.Connection) -> Sqlite3Connection:
    """Wrap the caller's connection."""
    return Sqlite3Connection(connection)


@contextmanager
def translating(prefix: str = "") -> Iterator[None]:
    """Convert sqlite3's errors to ours; ``prefix`` is prepended to the message."""
    try:
        yield
    except sqlite3.Error as error:
        if (code := getattr(error, "sqlite_errorcode", None)) is not None:
            raise translate(code, f"{prefix}{error}") from error
        if "closed" in str(error):
            raise Closed("the joined connection is closed; join an open one") from error
        raise InvalidInput(f"the joined connection cannot be used: {error}", field="connection") from error


def _scope(raw: sqlite3.Connection) -> tuple[str, list[str], list[str]]:
    """Return the statements that begin, keep and roll back a scope."""
    if raw.in_transaction:  # a savepoint name refers to the innermost savepoint of that name
        return "SAVEPOINT holdfast", ["RELEASE holdfast"], ["ROLLBACK TO holdfast", "RELEASE holdfast"]
    autocommit = getattr(raw, "autocommit", -1)  # since Python 3.12; -1 means that isolation_level decides
    opens_none = raw.isolation_level is None if autocommit == -1 else autocommit
    # We are about to write, and a transaction that begins as a reader may be unable to become a writer.
    begin = "BEGIN EXCLUSIVE" if raw.isolation_level == "EXCLUSIVE" else "BEGIN IMMEDIATE"
    return begin, ["COMMIT"] if opens_none else [], ["ROLLBACK"]


def _arguments(args: Sequence[Any]) -> Any:
    return {str(n): arg for n, arg in enumerate(args, 1)} if _NUMBERS_ARE_NAMES else args
