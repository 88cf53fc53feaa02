"""What a loop goes by: everything about it that is decided beforehand."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast import Summarizer, ToolOutcome, Usage
from holdfast.types import Run

from .events import Event
from .replies import Requested, Said, ToolRequest
from .tools import Tool

log = logging.getLogger("holdfast.loop")

CONTEXT_TOKENS = 100_000
"""Tokens of the conversation that the model is shown at most, unless the loop says otherwise."""
MAX_ITERATIONS = 100
"""Steps of one run at most, unless the loop says otherwise."""
CHILD_POLL_S = 10.0
"""Seconds after which a run looks again for the one below it. Mostly that wakes it itself; this is for when it could not."""


Workspace = str | os.PathLike[str] | Callable[[Run], str | os.PathLike[str] | None] | None
"""The directory that runs work in, or a function that says which it is for a run."""


class Progress(Struct, frozen=True):
    """How far a run has come, just before a step is committed: what a stop condition decides by."""

    iteration: int
    state: Any
    reply: Said
    outcomes: Sequence[ToolOutcome]
    usage: Usage
    """Of the whole run, this step included."""


class Plan(Struct, frozen=True, kw_only=True):
    """What ``Loop`` was given. The fields are its arguments."""

    model: Callable[..., Any]
    tools: Mapping[str, Tool] = {}
    first_state: Any = None
    max_iterations: int = MAX_ITERATIONS
    budget_tokens: int | None = None
    context_tokens: int = CONTEXT_TOKENS
    stop: Callable[[Progress], str | None] | None = None
    hold: Callable[[ToolRequest], bool] | None = None
    retry: Callable[[Exception, int], float | None] | None = None
    on_event: Callable[[Event], None] | None = None
    summarize: Summarizer | None = None
    child_poll_s: float = CHILD_POLL_S
    workspace: Workspace = None

    def workspace_of(self, run: Run) -> str | os.PathLike[str] | None:
        """The directory that a run works in, if it is captured."""
        return self.workspace(run) if callable(self.workspace) else self.workspace

    def tell(self, event: Event) -> None:
        """Tell whoever listens. Who listens does not decide: what it raises is logged and nothing else."""
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                log.exception("on_event raised for %s of run %s", event.kind, event.run_id)

    def must_hold(self, request: Requested) -> bool:
        """Whether a call has to wait for a person."""
        tool = self.tools.get(request.name)
        if tool is None:
            return False
        asked = self.hold is not None and self.hold(ToolRequest(request.name, request.input, request.id))
        return tool.hold or bool(asked)
