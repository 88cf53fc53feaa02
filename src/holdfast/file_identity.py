"""Detects that the files of an open SQLite database were removed or replaced, for readiness checks."""

from __future__ import annotations

from . import address
from .engines.sqlite.file_location import FileLocation


class FileIdentity:
    """The identity of a SQLite database's files when this object was created. Other databases are not checked.

    Raises:
        Unavailable: the file does not exist.
    """

    def __init__(self, url: str) -> None:
        database = address.parse(url)
        is_file = database.engine == "sqlite" and database.place != ":memory:"
        self._location = FileLocation(database.place) if is_file else None

    def check(self) -> None:
        """Check that the same files still exist at the same path.

        Raises:
            Unavailable: a file was removed or replaced.
        """
        if self._location is not None:
            self._location.verify()
