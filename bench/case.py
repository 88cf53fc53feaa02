"""A benchmark case: one contender with fixed parameters, measured in a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Environment = Literal["main", "openai", "adk", "dbos", "kagent", "langgraph"]
Engine = Literal["sqlite", "postgres", "none"]
Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A contender of a group, with its parameters, environment and engine."""

    group: str
    contender: str
    environment: Environment = "main"
    engine: Engine = "sqlite"
    params: dict[str, int] = field(default_factory=dict)
    kept: bool = False
    """Whether the data is created once and reused by every repeat."""
    flush_delay_us: int = 0
    """Microseconds added to every flush, to simulate a slower disk."""

    @property
    def name(self) -> str:
        """Return the name of the case for progress output."""
        params = ", ".join(f"{name} {value:,}" for name, value in self.params.items())
        return f"{self.group} · {self.contender}" + (f" · {params}" if params else "")


@dataclass(frozen=True)
class Job:
    """A case as it is passed to the process that runs it."""

    group: str
    contender: str
    place: str
    """The path of the case's own directory, or the URL of its own database."""
    params: dict[str, int]
    seconds: float
    fresh: bool
    """Whether the directory or database is empty; otherwise an earlier repeat has filled it."""


Family = Callable[[Job], Result]
