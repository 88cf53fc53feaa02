"""Whether a database is still where it was opened, for whoever must tell the truth about being ready."""

from __future__ import annotations

from . import address
from .engines.sqlite.file_location import FileLocation


class Presence:
    """The files of a SQLite database, as they were when this was made. Other databases answer for themselves.

    Raises:
        Unavailable: there is no file.
    """

    def __init__(self, url: str) -> None:
        where = address.parse(url)
        is_file = where.engine == "sqlite" and where.place != ":memory:"
        self._location = FileLocation(where.place) if is_file else None

    def check(self) -> None:
        """Look again.

        Raises:
            Unavailable: a file is gone, or another one is in its place.
        """
        if self._location is not None:
            self._location.verify()
