"""Whether a SQLite file and its write-ahead log are still where they were opened.

A file that is deleted or replaced goes on working for the process that has it open, and everything written to it is lost when
the process ends. SQLite does not report that, so the path is compared with what was opened: before commits, and whenever
somebody asks whether the database is ready. The log counts as well: what was committed last is nowhere else.
"""

from __future__ import annotations

import os

from ...clock import monotonic_s
from ...errors import Unavailable

LOOK_EVERY_S = 0.02
"""How long a look is trusted by ``look_if_due``. Looking takes a few microseconds, which many small commits would feel."""


class Place:
    """The files of a database as they were when this was made.

    Raises:
        Unavailable: there is no file.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)  # the working directory may change later
        self._log = f"{os.path.realpath(path)}-wal"  # SQLite follows links, and puts the log beside the file itself
        self._file = self._identity(self._path)
        self._log_file = self._identity(self._log, may_be_missing=True)
        self._looked_s = monotonic_s()

    def look_if_due(self) -> None:
        """``look``, unless that was done a moment ago."""
        now = monotonic_s()
        if now - self._looked_s >= LOOK_EVERY_S:
            self.look()
            self._looked_s = now

    def look(self) -> None:
        """Compare what is there with what was opened.

        Raises:
            Unavailable: the file or its log is gone, or another one is in its place.
        """
        if self._identity(self._path) != self._file:
            raise self._replaced(self._path)
        if self._log_file is None:
            self._log_file = self._identity(self._log, may_be_missing=True)  # it is made by the first transaction
        elif self._identity(self._log) != self._log_file:
            raise self._replaced(self._log)

    def _identity(self, path: str, *, may_be_missing: bool = False) -> tuple[int, int] | None:
        try:
            found = os.stat(path)
        except OSError as error:
            if may_be_missing:
                return None
            raise Unavailable(
                f"{path} is no longer there: {error.strerror}; it was moved or deleted while it was open, so nothing more "
                "is written to the database: put it back, or start again"
            ) from error
        return found.st_dev, found.st_ino

    def _replaced(self, path: str) -> Unavailable:
        return Unavailable(
            f"{path} was replaced by another file; start again to use that one. Nothing more is written to the database"
        )
