"""Opening a SQLite file: WAL, full durability, strict about what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import apsw

from ...address import Library
from ...clock import monotonic_s, pause
from ...drivers.apsw import ApswConnection
from ...errors import InvalidInput, Unavailable
from ..protocol import Connection, Row
from .errors import Busy, translate
from .file_location import Place
from .libraries import Claim

Durability = Literal["full", "normal"]

BUSY_TIMEOUT_MS = 30_000
"""How long a writer waits for another process that is writing."""
READER_CACHE_KIB, WRITER_CACHE_KIB = 65_536, 1_536
"""Page cache of a connection; it grows only as pages are used. What is read is read again; what is written is rather not, and
would stay in the memory of a process that only writes."""
SPILL_PAGES = 4_000
"""Changed pages that a transaction may hold, however small the cache; more go into the write-ahead log before it is committed,
and are written twice. Afterwards the cache is as small as before. (SQLite up to 3.40 takes a multiple of 256 for no limit.)"""
CHECKPOINT_PAGES = 1_000
"""Pages in the write-ahead log after which they are moved into the file."""
STATEMENTS = 512
"""Statements a connection keeps prepared; apsw keeps no more. It keeps those that were run last, however often: between two
of the same kind so many may be run before it must be prepared anew, which takes longer than running it."""


class SqliteConnection(Connection, Protocol):
    """A connection of the engine's own, through either library."""

    @property
    def raw(self) -> Any:
        """The library's connection: it has ``in_transaction``, ``set_busy_timeout`` and ``close``."""

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """``fetch``, for callers that are not coroutines."""


class SqliteFile:
    """Where a database is and how it is opened. ``:memory:`` lives in one connection only."""

    def __init__(
        self,
        path: str,
        *,
        durability: Durability = "full",
        read_only: bool = False,
        vfs: str | None = None,
        library: Library = "apsw",
    ) -> None:
        if durability not in ("full", "normal"):
            raise InvalidInput(f"durability is 'full' or 'normal', not {durability!r}")
        if library not in get_args(Library):
            raise InvalidInput(f"sqlite is 'apsw' or 'stdlib', not {library!r}")
        self.path, self.durability, self.read_only, self.vfs = path, durability, read_only, vfs
        self.library: Library = library
        self.in_memory = path == ":memory:"
        self.place: Place | None = None
        """Where the file is that the writing connection has open, if it can be looked at."""
        self._claim: Claim | None = None

    def connect(self, *, reader: bool = False) -> SqliteConnection:
        """A new connection. Readers cannot write, whatever they are asked to run.

        Raises:
            InvalidInput: this process has the file open through the other library.
            Unavailable: it cannot be opened, or, for a reader, is not there any more.
        """
        if reader and self.place is not None:
            self.place.look()  # what is opened by its path now must be what was opened before
        # Before it is opened: opening and closing it would be enough to take the other library's locks away.
        Claim([self.path], self.library)
        connection = self._open_or_say_why(reader=reader)
        try:
            self._prepare(connection, reader=reader)
        except BaseException:
            # Left to the garbage collector, it would be closed at some later time, and move the log into the file then.
            _close_quietly(connection)
            raise
        if not (reader or self.in_memory or self.read_only or self.vfs):
            self.place = Place(self.path)
        return connection

    def let_go(self) -> None:
        """Say that every connection is closed, and that the other library may have the file."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _prepare(self, connection: SqliteConnection, *, reader: bool) -> None:
        self._claim = self._claim or Claim([self.path], self.library)
        connection.raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA foreign_keys = ON")
        # A file somebody else made could name functions in its schema; ours never does.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if reader else WRITER_CACHE_KIB}")
        if not self.read_only:
            _switch_to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self.durability.upper()}")
            connection.execute(f"PRAGMA cache_spill = {SPILL_PAGES}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if reader:
            connection.execute("PRAGMA query_only = ON")

    def _open_or_say_why(self, *, reader: bool) -> SqliteConnection:
        try:
            return self._open(reader=reader)
        except Unavailable as error:
            folder = os.path.dirname(os.path.abspath(self.path))
            if self.vfs or os.path.isdir(folder):
                raise
            raise Unavailable(f"{error}; the folder {folder} does not exist") from error.__cause__

    def _open(self, *, reader: bool) -> SqliteConnection:
        path, create = os.fspath(self.path), not reader
        if self.library == "stdlib":
            from . import stdlib

            return stdlib.connect(path, read_only=self.read_only, create=create, statements=STATEMENTS)
        mode = apsw.SQLITE_OPEN_READONLY if self.read_only else apsw.SQLITE_OPEN_READWRITE
        if create and not self.read_only:
            mode |= apsw.SQLITE_OPEN_CREATE
        if reader:
            # Whoever reads has the connection to itself, and SQLite would take and release its lock for every value of every row.
            mode |= apsw.SQLITE_OPEN_NOMUTEX
        return ApswConnection(_open(path, mode, self.vfs))


def _close_quietly(connection: SqliteConnection) -> None:
    try:
        connection.raw.close()
    except Exception:
        return  # what it failed with before is what matters


def _switch_to_wal(connection: SqliteConnection) -> None:
    """Others may be opening the same new file, and for this one statement SQLite does not wait by itself."""
    until = monotonic_s() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except Busy:
            if monotonic_s() > until:
                raise
            pause(0.002)


def _open(path: str, mode: int, vfs: str | None) -> apsw.Connection:
    try:
        raw = apsw.Connection(path, flags=mode, vfs=vfs, statementcachesize=STATEMENTS)
        # Otherwise every query with a range is planned anew for its arguments, which takes longer than running it.
        raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return raw
    except apsw.Error as error:
        raise translate(getattr(error, "extendedresult", 0), f"cannot open {path}: {error}") from error
