"""SQLite through the library that Python was built with: for programs that join sqlite3, aiosqlite or SQLAlchemy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...drivers.sqlite3 import Sqlite3Connection, translating
from ...errors import InvalidInput
from .libraries import Claim

OLDEST = (3, 40, 0)
"""The oldest SQLite that our schema and statements are tried on."""


class _Raw(sqlite3.Connection):
    """What the engine asks of a connection, by the names that apsw gave it."""

    def set_busy_timeout(self, milliseconds: int) -> None:
        self.execute(f"PRAGMA busy_timeout = {milliseconds}")


def connect(path: str, *, read_only: bool, create: bool, statements: int) -> Sqlite3Connection:
    """A new connection that opens no transaction by itself.

    Raises:
        InvalidInput: this Python's SQLite is too old.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InvalidInput(
            f"this Python's SQLite is {sqlite3.sqlite_version}; it must be {oldest} or newer, or use apsw"
        )
    by_uri = read_only or not create
    place = f"{Path(path).absolute().as_uri()}?mode={'ro' if read_only else 'rw'}" if by_uri else path
    with translating(f"cannot open {path}: "):
        raw = sqlite3.connect(
            place,
            uri=by_uri,
            isolation_level=None,
            check_same_thread=False,  # the engine sees to it that one thread at a time uses it
            cached_statements=statements,
            factory=_Raw,
        )
    return Sqlite3Connection(raw, Claim((), "stdlib"))  # the engine has claimed the file for all its connections
