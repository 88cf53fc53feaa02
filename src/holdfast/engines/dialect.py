"""The two dialects of SQL, and what differs between them as plain facts."""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    """Which SQL a connection speaks."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"

    # Every query looks its statement up by dialect, and Enum's own hash is a function in Python.
    __hash__ = object.__hash__

    def __init__(self, name: str) -> None:
        postgres = name == "postgres"
        self.placeholder = "$" if postgres else "?"
        """How the n-th argument is written."""
        self.native_time = postgres
        """Whether times are a type of their own; otherwise they are integers in microseconds."""
        self.changes_in_ctes = postgres
        """Whether WITH may hold an UPDATE whose rows an INSERT then uses, so that both are one statement."""
