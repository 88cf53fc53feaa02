"""WAL checkpoints outside the event loop.

A commit only records that a WAL checkpoint is due. The writing thread runs it between two commits: while no other write is in
progress, the whole log can be moved, so that the next commit starts the log from its beginning. Overwriting a log is flushed
in half the time of extending it, so the checkpoint is not left to a second connection that runs beside the writer.
"""

from __future__ import annotations

import apsw

from .file import CHECKPOINT_PAGES, SqliteConnection, SqliteFile

CHECKPOINT_COMMITS = 64
"""Minimum number of commits between two WAL checkpoints: commits that many calls share fill the log quickly."""
MAX_CHECKPOINT_PAGES = 4 * CHECKPOINT_PAGES
"""Pages after which a WAL checkpoint runs regardless of the number of commits."""


class WalCheckpointer:
    """Decides when the WAL of a writing connection needs a checkpoint, and runs it."""

    def __init__(self, file: SqliteFile, writing: SqliteConnection) -> None:
        self._writing = writing
        self._pages = self._commits = self._asked_at = 0
        # Python's own SQLite has no commit hook; its connections run WAL checkpoints themselves.
        if file.library == "apsw" and not (file.in_memory or file.read_only):
            writing.raw.set_wal_hook(self._committed)

    def due(self) -> bool:
        """Return whether a WAL checkpoint is due; true once, and again only after the log has grown by as much again."""
        if self._pages < self._asked_at:
            self._asked_at = 0  # the log was restarted
        more = self._pages - self._asked_at
        if more < CHECKPOINT_PAGES or (self._commits < CHECKPOINT_COMMITS and more < MAX_CHECKPOINT_PAGES):
            return False
        self._asked_at, self._commits = self._pages, 0
        return True

    def run(self) -> None:
        """Run a WAL checkpoint. The caller ensures that no write is in progress."""
        try:
            self._writing.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            return  # the file is busy or the disk fails; the log keeps all commits, and a later commit tries again

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        self._commits += 1
        return apsw.SQLITE_OK
