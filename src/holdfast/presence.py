"""Whether a database is still where it was opened.

A SQLite file that was deleted or replaced goes on working for whoever has it open, and everything written to it is lost when
they let go. Nothing in SQLite reports that, so whoever must tell the truth about being ready has to look.
"""

from __future__ import annotations

import os

from . import address
from .errors import Unavailable


class Presence:
    """The file of a SQLite database, as it was when this was made. Other databases answer for themselves.

    Raises:
        Unavailable: there is no file.
    """

    def __init__(self, url: str) -> None:
        where = address.parse(url)
        self._path = where.place if where.engine == "sqlite" and where.place != ":memory:" else None
        self._file = self._identity()

    def check(self) -> None:
        """Look again.

        Raises:
            Unavailable: the file is gone, or another one is in its place.
        """
        if self._identity() != self._file:
            raise Unavailable(f"{self._path} was replaced by another file; start again to use that one")

    def _identity(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise Unavailable(f"{self._path} is no longer there: {error.strerror}") from error
        return found.st_dev, found.st_ino
