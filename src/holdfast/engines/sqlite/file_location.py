"""Check that a SQLite file and its write-ahead log still exist at their paths.

A deleted or replaced file keeps working for the process that has it open, and everything written to it is lost when the
process ends. SQLite does not report that, so the identity of the file at the path is compared with that of the opened file:
before commits and in readiness checks. The log is checked too, because the latest commits are stored only there.
"""

from __future__ import annotations

import os

from ...clock import monotonic_s
from ...errors import Unavailable

MIN_VERIFY_INTERVAL_S = 0.02
"""Time for which ``verify_if_due`` trusts the last check. A check takes microseconds, which would slow many small commits."""


class FileLocation:
    """The identities of a database file and its log, as they were when this object was created.

    Raises:
        Unavailable: the file does not exist.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)  # the working directory may change later
        self._log = f"{os.path.realpath(path)}-wal"  # SQLite follows links and creates the log next to the real file
        self._file = self._identity(self._path)
        self._log_file = self._identity(self._log, may_be_missing=True)
        self._verified_s = monotonic_s()

    def verify_if_due(self) -> None:
        """Run ``verify``, unless the last check was less than ``MIN_VERIFY_INTERVAL_S`` ago."""
        now = monotonic_s()
        if now - self._verified_s >= MIN_VERIFY_INTERVAL_S:
            self.verify()
            self._verified_s = now

    def verify(self) -> None:
        """Check that the paths still name the files that were opened.

        Raises:
            Unavailable: the file or its log was deleted or replaced.
        """
        if self._identity(self._path) != self._file:
            raise self._replaced(self._path)
        if self._log_file is None:
            self._log_file = self._identity(self._log, may_be_missing=True)  # the first transaction creates it
        elif self._identity(self._log) != self._log_file:
            raise self._replaced(self._log)

    def _identity(self, path: str, *, may_be_missing: bool = False) -> tuple[int, int] | None:
        try:
            status = os.stat(path)
        except OSError as error:
            if may_be_missing:
                return None
            raise Unavailable(
                f"{path} was moved or deleted while it was open ({error.strerror}), so nothing more is written to the "
                "database: put the file back, or restart the process"
            ) from error
        return status.st_dev, status.st_ino

    def _replaced(self, path: str) -> Unavailable:
        return Unavailable(
            f"{path} was replaced by another file, so nothing more is written to the database: restart the process to use "
            "the new file"
        )
