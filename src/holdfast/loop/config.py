"""The configuration of a loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast import Summarizer, ToolOutcome, Usage
from holdfast.types import Run

from .events import Event
from .replies import NormalizedReply, RequestedCall, ToolRequest
from .tools import Tool

log = logging.getLogger("holdfast.loop")

CONTEXT_TOKENS = 100_000
"""Default of the maximum tokens of the conversation that are sent to the model."""
MAX_ITERATIONS = 100
"""Default of the maximum steps of one run."""
CHILD_POLL_S = 10.0
"""Default seconds after which a run checks its child run. A child normally resumes its parent; this is for when it could not."""


Workspace = str | os.PathLike[str] | Callable[[Run], str | os.PathLike[str] | None] | None
"""The directory that runs work in, or a function that returns it for a run."""


class StepProgress(Struct, frozen=True):
    """The progress of a run just before a step is committed: the argument of a stop condition."""

    iteration: int
    state: Any
    reply: NormalizedReply
    outcomes: Sequence[ToolOutcome]
    usage: Usage
    """Usage of the whole run, including this step."""


class LoopConfig(Struct, frozen=True, kw_only=True):
    """The arguments of a ``Loop``."""

    model: Callable[..., Any]
    tools: Mapping[str, Tool] = {}
    first_state: Any = None
    max_iterations: int = MAX_ITERATIONS
    budget_tokens: int | None = None
    context_tokens: int = CONTEXT_TOKENS
    stop: Callable[[StepProgress], str | None] | None = None
    hold: Callable[[ToolRequest], bool] | None = None
    retry: Callable[[Exception, int], float | None] | None = None
    on_event: Callable[[Event], None] | None = None
    summarize: Summarizer | None = None
    child_poll_s: float = CHILD_POLL_S
    workspace: Workspace = None

    def workspace_of(self, run: Run) -> str | os.PathLike[str] | None:
        """Return the directory that a run works in, if it is captured."""
        return self.workspace(run) if callable(self.workspace) else self.workspace

    def tell(self, event: Event) -> None:
        """Pass an event to the listener, if there is one. An error of the listener is logged and has no other effect."""
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                log.exception("on_event raised for %s of run %s", event.kind, event.run_id)

    def must_hold(self, request: RequestedCall) -> bool:
        """Whether a call must wait for a person."""
        tool = self.tools.get(request.name)
        if tool is None:
            return False
        is_held = self.hold is not None and self.hold(ToolRequest(request.name, request.input, request.id))
        return tool.hold or bool(is_held)

    def stop_reason(self, progress: StepProgress) -> str | None:
        """Return the reason for which a step ends its run, or ``None`` if the run continues."""
        reply = progress.reply
        if reply.stop is not None:
            return reply.stop
        reason = None if self.stop is None else self.stop(progress)
        if reason is None and not reply.requests and not reply.continue_run and reply.pause_s is None:
            reason = "end_turn"
        return reason or self.exhausted_limit(progress.iteration, progress.usage)

    def exhausted_limit(self, iteration: int, usage: Usage) -> str | None:
        """Return the limit that a run has reached, if any."""
        if iteration >= self.max_iterations:
            return "max_iterations"
        budget = self.budget_tokens
        return "budget" if budget is not None and usage.input_tokens + usage.output_tokens >= budget else None
