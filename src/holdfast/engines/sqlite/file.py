"""Opening a SQLite file: WAL, full durability, strict about what it is."""

from __future__ import annotations

import os
from typing import Literal

import apsw

from ...drivers.apsw import ApswConnection
from ...errors import InvalidInput
from .errors import translate

Durability = Literal["full", "normal"]

BUSY_TIMEOUT_MS = 30_000
"""How long a writer waits for another process that is writing."""
CACHE_KIB = 65_536
"""Page cache of a connection; it grows only as pages are used."""
CHECKPOINT_PAGES = 1_000
"""Pages in the write-ahead log after which they are moved into the file."""
STATEMENTS = 256
"""Prepared statements a connection keeps."""


class SqliteFile:
    """Where a database is and how it is opened. ``:memory:`` lives in one connection only."""

    def __init__(
        self, path: str, *, durability: Durability = "full", read_only: bool = False, vfs: str | None = None
    ) -> None:
        if durability not in ("full", "normal"):
            raise InvalidInput(f"durability is 'full' or 'normal', not {durability!r}")
        self.path, self.durability, self.read_only, self.vfs = path, durability, read_only, vfs
        self.in_memory = path == ":memory:"

    def connect(self, *, reader: bool = False) -> ApswConnection:
        """A new connection. Readers cannot write, whatever they are asked to run."""
        mode = apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        raw = _open(os.fspath(self.path), mode, self.vfs)
        raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection = ApswConnection(raw)
        connection.execute("PRAGMA foreign_keys = ON")
        # A file somebody else made could name functions in its schema; ours never does.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if not self.read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self.durability.upper()}")
            raw.wal_autocheckpoint(CHECKPOINT_PAGES)
        if reader:
            connection.execute("PRAGMA query_only = ON")
        return connection


def _open(path: str, mode: int, vfs: str | None) -> apsw.Connection:
    try:
        return apsw.Connection(path, flags=mode, vfs=vfs, statementcachesize=STATEMENTS)
    except apsw.Error as error:
        folder = os.path.dirname(os.path.abspath(path))
        hint = "" if os.path.isdir(folder) else f"; the folder {folder} does not exist"
        raise translate(getattr(error, "extendedresult", 0), f"cannot open {path}: {error}{hint}") from error
