"""Open a SQLite file, in WAL mode and with full durability by default."""

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
from .file_location import FileLocation
from .library_claims import Claim

Durability = Literal["full", "normal"]

BUSY_TIMEOUT_MS = 30_000
"""Time that a writer waits for the write lock of another process."""
READER_CACHE_KIB, WRITER_CACHE_KIB = 65_536, 1_536
"""Page cache of a connection; it grows only as pages are used. Pages that were read are often read again; pages that were
written rarely are, and would only stay in the memory of a process that only writes."""
SPILL_PAGES = 4_000
"""Dirty pages that a transaction may hold, whatever the cache size. Further pages go into the write-ahead log before the commit
and are written twice. Afterwards the cache shrinks again. (SQLite up to 3.40 treats a multiple of 256 as no limit.)"""
CHECKPOINT_PAGES = 1_000
"""Pages in the write-ahead log after which a WAL checkpoint moves them into the file."""
STATEMENTS = 512
"""Prepared statements cached by a connection, which is apsw's maximum. The cache is LRU: a statement must be prepared again
after this many others, which takes longer than running it."""


class SqliteConnection(Connection, Protocol):
    """A connection owned by the engine, through either library."""

    @property
    def raw(self) -> Any:
        """The library's connection, which has ``in_transaction``, ``set_busy_timeout`` and ``close``."""

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run ``fetch`` for callers that are not coroutines."""


class SqliteFile:
    """Path and options of a database file. ``:memory:`` exists in one connection only."""

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
            raise InvalidInput(f"durability must be 'full' or 'normal', not {durability!r}", field="durability")
        if library not in get_args(Library):
            raise InvalidInput(f"sqlite must be 'apsw' or 'stdlib', not {library!r}", field="sqlite")
        self.path, self.durability, self.read_only, self.vfs = path, durability, read_only, vfs
        self.library: Library = library
        self.in_memory = path == ":memory:"
        self.location: FileLocation | None = None
        """Location of the file that the writing connection has open, if it can be checked."""
        self._claim: Claim | None = None

    def connect(self, *, reader: bool = False) -> SqliteConnection:
        """Open a new connection. A reading connection refuses every write.

        Raises:
            InvalidInput: this process has the file open through the other library.
            Unavailable: the file cannot be opened or, for a reader, no longer exists.
        """
        if reader and self.location is not None:
            self.location.verify()  # the path must still name the file that the writer has open
        # Checked before opening: opening and closing the file would already release the other library's locks.
        Claim([self.path], self.library)
        connection = self._open_with_reason(reader=reader)
        try:
            self._prepare(connection, reader=reader)
        except BaseException:
            # Otherwise the garbage collector would close it at some later time, with a WAL checkpoint.
            _close_quietly(connection)
            raise
        if not (reader or self.in_memory or self.read_only or self.vfs):
            self.location = FileLocation(self.path)
        return connection

    def release_claim(self) -> None:
        """Release the claim after every connection was closed, so that the other library may open the file."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _prepare(self, connection: SqliteConnection, *, reader: bool) -> None:
        self._claim = self._claim or Claim([self.path], self.library)
        connection.raw.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA foreign_keys = ON")
        # The schema of a file from another source could call functions; ours never does.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if reader else WRITER_CACHE_KIB}")
        if not self.read_only:
            _switch_to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self.durability.upper()}")
            connection.execute(f"PRAGMA cache_spill = {SPILL_PAGES}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if reader:
            connection.execute("PRAGMA query_only = ON")

    def _open_with_reason(self, *, reader: bool) -> SqliteConnection:
        """Open the file; if its folder is missing, the error names the folder."""
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
            # A reader is used by one thread at a time; otherwise SQLite would lock a mutex for every value of every row.
            mode |= apsw.SQLITE_OPEN_NOMUTEX
        return ApswConnection(_open(path, mode, self.vfs))


def _close_quietly(connection: SqliteConnection) -> None:
    try:
        connection.raw.close()
    except Exception:
        return  # the caller raises the earlier error


def _switch_to_wal(connection: SqliteConnection) -> None:
    """Switch to WAL mode. Other processes may be opening the same new file, and SQLite's busy timeout does not apply here."""
    deadline_s = monotonic_s() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except Busy:
            if monotonic_s() > deadline_s:
                raise
            pause(0.002)


def _open(path: str, mode: int, vfs: str | None) -> apsw.Connection:
    try:
        raw = apsw.Connection(path, flags=mode, vfs=vfs, statementcachesize=STATEMENTS)
        # Otherwise SQLite plans every range query again for its arguments, which takes longer than running it.
        raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return raw
    except apsw.Error as error:
        raise translate(getattr(error, "extendedresult", 0), f"cannot open {path}: {error}") from error
