"""Read all rows of a SQLite database, and open one with frequent WAL checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw

from ..engines.sqlite.file import Durability, SqliteConnection, SqliteFile

State = dict[str, list[tuple[Any, ...]]]
"""Every row of every table."""


class SmallWalFile(SqliteFile):
    """A SQLite file with a WAL checkpoint after a few pages, so that it also happens in short workloads."""

    def __init__(self, path: str, *, pages: int, durability: Durability = "full", vfs: str | None = None) -> None:
        super().__init__(path, durability=durability, vfs=vfs)
        self._pages = pages

    def connect(self, *, reader: bool = False) -> SqliteConnection:
        connection = super().connect(reader=reader)
        connection.raw.wal_autocheckpoint(self._pages)
        return connection


class DatabaseDamaged(Exception):
    """The database file is damaged."""

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check
        """The check of SQLite that failed; empty if the file is not a readable database."""


def read_state(path: Path) -> State:
    """Check the integrity of a database file and return every row of every table.

    Raises:
        DatabaseDamaged: SQLite's integrity check failed.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for check in ("integrity_check", "foreign_key_check"):
            problems = [row for row in connection.execute(f"PRAGMA {check}") if row != ("ok",)]
            if problems:
                raise DatabaseDamaged(f"{check}: {problems[:3]}", check=check)
        return state_of(connection)
    except apsw.Error as error:
        raise DatabaseDamaged(str(error)) from error
    finally:
        connection.close()


def quick_folder() -> str | None:
    """Return a folder in memory for temporary files, if the machine has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def state_of(connection: apsw.Connection) -> State:
    """Return every row of every table that a connection sees."""
    tables = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite%'"
    ).fetchall()
    return {str(name): sorted(connection.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr) for (name,) in tables}
