"""SQLite connections through Python's own library, for programs that join sqlite3, aiosqlite or SQLAlchemy connections."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...drivers.sqlite3 import Sqlite3Connection, translating
from ...errors import InvalidInput
from .library_claims import Claim

MIN_SQLITE_VERSION = (3, 40, 0)
"""The oldest SQLite that our schema and statements are tested with."""


class _Raw(sqlite3.Connection):
    """sqlite3 connection with the method names of apsw that the engine uses."""

    def set_busy_timeout(self, milliseconds: int) -> None:
        self.execute(f"PRAGMA busy_timeout = {milliseconds}")


def connect(path: str, *, read_only: bool, create: bool, statements: int) -> Sqlite3Connection:
    """Open a connection that never begins a transaction implicitly.

    Raises:
        InvalidInput: this Python's SQLite is too old.
    """
    if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        minimum = ".".join(map(str, MIN_SQLITE_VERSION))
        raise InvalidInput(
            f"this Python's SQLite is {sqlite3.sqlite_version}; Holdfast needs {minimum} or newer: upgrade it, or use apsw",
            field="sqlite",
        )
    by_uri = read_only or not create
    database = f"{Path(path).absolute().as_uri()}?mode={'ro' if read_only else 'rw'}" if by_uri else path
    with translating(f"cannot open {path}: "):
        raw = sqlite3.connect(
            database,
            uri=by_uri,
            isolation_level=None,
            check_same_thread=False,  # the engine ensures that one thread at a time uses it
            cached_statements=statements,
            factory=_Raw,
        )
    return Sqlite3Connection(raw, Claim((), "stdlib"))  # the engine holds the claim on the file
