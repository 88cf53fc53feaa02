"""Read a whole SQLite database, and make one that checkpoints its write-ahead log early."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw

from ..engines.sqlite.file import Durability, SqliteConnection, SqliteFile

State = dict[str, list[tuple[Any, ...]]]
"""Every row of every table."""


class SmallLog(SqliteFile):
    """A SQLite file whose write-ahead log is moved into it after a few pages, so that short workloads see it happen."""

    def __init__(self, path: str, *, pages: int, durability: Durability = "full", vfs: str | None = None) -> None:
        super().__init__(path, durability=durability, vfs=vfs)
        self._pages = pages

    def connect(self, *, reader: bool = False) -> SqliteConnection:
        connection = super().connect(reader=reader)
        connection.raw.wal_autocheckpoint(self._pages)
        return connection


class Damaged(Exception):
    """The file is not sound."""


def read_state(path: Path) -> State:
    """Every row of every table, through a connection of our own, once SQLite has checked the whole file.

    Raises:
        Damaged: it is not sound.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for check in ("integrity_check", "foreign_key_check"):
            complaints = [row for row in connection.execute(f"PRAGMA {check}") if row != ("ok",)]
            if complaints:
                raise Damaged(f"{check}: {complaints[:3]}")
        return state_of(connection)
    except apsw.Error as error:
        raise Damaged(str(error)) from error
    finally:
        connection.close()


def quick_folder() -> str | None:
    """Where files cost no disk, if the machine has such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def state_of(connection: apsw.Connection) -> State:
    """Every row of every table that a connection sees."""
    tables = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite%'"
    ).fetchall()
    return {str(name): sorted(connection.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr) for (name,) in tables}
