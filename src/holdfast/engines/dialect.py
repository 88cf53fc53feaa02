"""The two dialects of SQL, and what differs between them as plain facts."""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    """Which SQL a connection speaks."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"

    @property
    def placeholder(self) -> str:
        """How the n-th argument is written."""
        return "?" if self is Dialect.SQLITE else "$"

    @property
    def native_time(self) -> bool:
        """Whether times are a type of their own; otherwise they are integers in microseconds."""
        return self is Dialect.POSTGRES

    @property
    def changes_in_ctes(self) -> bool:
        """Whether WITH may hold an UPDATE whose rows an INSERT then uses, so that both are one statement."""
        return self is Dialect.POSTGRES
