"""Moving the write-ahead log into the database file, in the background, so that no commit has to wait for it."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import apsw

from ...errors import HoldfastError
from .file import CHECKPOINT_PAGES, SqliteConnection, SqliteFile

BACKSTOP_PAGES = 16 * CHECKPOINT_PAGES
"""Pages at which a commit does it itself: under an unbroken stream of writes the background never gets to the end."""


class Checkpointer:
    """Watches one writing connection. It has a thread and a connection of its own, made when first needed."""

    def __init__(self, file: SqliteFile, writing: SqliteConnection) -> None:
        self._file = file
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asked_at = 0
        # Python's own SQLite tells nobody about commits; its connections move the log themselves.
        if file.library == "apsw" and not (file.in_memory or file.read_only):
            writing.raw.set_wal_hook(self._committed)

    def close(self) -> None:
        """Stop the thread."""
        if self._thread is not None:
            self._wanted.put(False)
            self._thread.join()

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        if pages < self._asked_at:
            self._asked_at = 0  # the log has begun again
        if pages >= BACKSTOP_PAGES:
            _checkpoint(connection)
        elif pages >= self._asked_at + CHECKPOINT_PAGES:
            self._asked_at = pages
            self._wanted.put(True)
            self._start()
        return apsw.SQLITE_OK

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="holdfast-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # as at the end of a program; the commit is done all the same, and must say so
            self._thread = thread

    def _work(self) -> None:
        connection: SqliteConnection | None = None
        while self._wanted.get():
            try:
                connection = connection or self._file.connect()
                _checkpoint(connection.raw)
            except HoldfastError:
                continue  # the disk is failing; the log keeps everything, and a later commit asks again
        if connection is not None:
            connection.raw.close()


def _checkpoint(connection: apsw.Connection) -> None:
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    except apsw.Error:
        return  # a busy file or a failing disk; the log keeps everything, and the next commit asks again
