"""The two SQL dialects and the properties in which they differ.

PostgreSQL stores the native types uuid, timestamptz, jsonb and boolean, so that SQL typed into psql works as expected.
SQLite has STRICT tables with ids and JSON as text and times in microseconds. ``core/queries.py`` and ``core/rows.py``
convert.
"""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    """The SQL dialect of a connection."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"

    # Each query looks up its statement by dialect; Enum's own __hash__ is implemented in Python and slower.
    __hash__ = object.__hash__

    def __init__(self, name: str) -> None:
        postgres = name == "postgres"
        self.placeholder = "$" if postgres else "?"
        """Prefix of a numbered placeholder."""
        self.native_time = postgres
        """Whether times have a column type of their own; otherwise they are integers in microseconds."""
        self.changes_in_ctes = postgres
        """Whether a CTE may contain an UPDATE whose rows an INSERT uses, so that both are one statement."""
