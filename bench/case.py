"""One thing to measure: a contender doing a family's work with given parameters, in one fresh process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Environment = Literal["main", "openai", "adk", "dbos", "kagent", "langgraph"]
Engine = Literal["sqlite", "postgres", "none"]
Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A benchmark case: what to run, with which contender and parameters."""

    group: str
    contender: str
    environment: Environment = "main"
    engine: Engine = "sqlite"
    params: dict[str, int] = field(default_factory=dict)
    kept: bool = False
    """Whether its data is made once and read again by every repeat."""
    flush_delay_us: int = 0
    """Added to every flush, to imitate a disk that is slower than this one."""

    @property
    def name(self) -> str:
        """How progress is reported."""
        params = ", ".join(f"{name} {value:,}" for name, value in self.params.items())
        return f"{self.group} · {self.contender}" + (f" · {params}" if params else "")


@dataclass(frozen=True)
class Job:
    """A case as the process that runs it sees it."""

    group: str
    contender: str
    place: str
    """A directory of its own, or the address of a database of its own."""
    params: dict[str, int]
    seconds: float
    fresh: bool
    """Whether the place is empty; otherwise an earlier repeat has filled it."""


Family = Callable[[Job], Result]
