"""Moving the write-ahead log into the database file, away from the event loop.

A commit only notes that it is time. The writing thread then does it between two commits: with nobody writing, all of the log
can be moved, so that the next commit begins it again. A log that is written over is flushed in half the time of one that
grows, which is why this is not left to a connection that works beside the writer.
"""

from __future__ import annotations

import apsw

from .file import CHECKPOINT_PAGES, SqliteConnection, SqliteFile

CHECKPOINT_COMMITS = 64
"""Commits that pass at least before the log is moved: when many calls share each, they fill it quickly."""
MAX_CHECKPOINT_PAGES = 4 * CHECKPOINT_PAGES
"""Pages after which it is moved however few the commits were."""


class Checkpoints:
    """Watches one writing connection."""

    def __init__(self, file: SqliteFile, writing: SqliteConnection) -> None:
        self._writing = writing
        self._pages = self._commits = self._asked_at = 0
        # Python's own SQLite tells nobody about commits; its connections move the log themselves.
        if file.library == "apsw" and not (file.in_memory or file.read_only):
            writing.raw.set_wal_hook(self._committed)

    def due(self) -> bool:
        """Whether it is time; said once, and again only when the log has grown by as much once more."""
        if self._pages < self._asked_at:
            self._asked_at = 0  # the log has begun again
        more = self._pages - self._asked_at
        if more < CHECKPOINT_PAGES or (self._commits < CHECKPOINT_COMMITS and more < MAX_CHECKPOINT_PAGES):
            return False
        self._asked_at, self._commits = self._pages, 0
        return True

    def run(self) -> None:
        """Move what can be moved; the caller sees to it that nobody writes meanwhile."""
        try:
            self._writing.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            return  # a busy file or a failing disk; the log keeps everything, and a later commit asks again

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        self._commits += 1
        return apsw.SQLITE_OK
