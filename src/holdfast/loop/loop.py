"""``Loop``: a model, its tools and when to stop; and how to drive a run with it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import AsyncTenantHandle, Summarizer, TenantHandle
from holdfast.errors import InvalidInput
from holdfast.types import Run

from . import executor, executor_async
from .core import Driving, claim_and_drive, drive
from .events import Ending, Event
from .plan import CHILD_POLL_S, CONTEXT_TOKENS, MAX_ITERATIONS, Plan, Progress, Workspace
from .replies import ToolRequest
from .tools import Tool, tool

TTL_MS = 60_000
"""Milliseconds that a run stays claimed after the last sign of life of whoever drives it."""


class Loop:
    """An agent's loop: ask the model, call its tools, commit the step, and so on, through any crash.

    Args:
        model: a function from a ``Turn`` to a ``Reply`` or text, synchronous or asynchronous.
        tools: what the model may have called; functions, or what ``tool`` made of them.
        first_state: the state of a run that has no step yet. State is any JSON value; the model's replies change it.
        max_iterations: steps of one run at most; then it ends with the reason ``max_iterations``.
        budget_tokens: tokens of one run after which it ends, at the next step, with the reason ``budget``.
        context_tokens: tokens of the conversation that the model is shown at most.
        stop: asked before each step; whatever text it returns ends the run with that reason.
        hold: asked about each call; true means that a person must allow it first. It decides quickly and does nothing else.
        retry: asked when the model raises, with the error and how often it has by now: seconds to wait, or ``None`` to fail.
        on_event: told what happens. It is called where it happens, also in other threads, and must return quickly.
        summarize: makes sessions smaller that have a compaction policy attached and have become due.
        child_poll_s: seconds after which a run looks for the one below it, should that not have woken it.
        workspace: the directory that the tools work in, or a function from a run to it. It is captured before the first step
            and whenever tools were called, so that ``acme.workspaces.rewind`` can take files and conversation back together.

    Raises:
        InvalidInput: an argument cannot be used.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        first_state: Any = None,
        max_iterations: int = MAX_ITERATIONS,
        budget_tokens: int | None = None,
        context_tokens: int = CONTEXT_TOKENS,
        stop: Callable[[Progress], str | None] | None = None,
        hold: Callable[[ToolRequest], bool] | None = None,
        retry: Callable[[Exception, int], float | None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        summarize: Summarizer | None = None,
        child_poll_s: float = CHILD_POLL_S,
        workspace: Workspace = None,
    ) -> None:
        for name, given in (("model", model), ("stop", stop), ("hold", hold), ("retry", retry), ("on_event", on_event)):
            if given is not None and not callable(given):
                raise InvalidInput(f"{name} must be a function, not {given!r}")
        for name, most in (("max_iterations", max_iterations), ("budget_tokens", budget_tokens)):
            if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
                raise InvalidInput(f"{name} must be a whole number from 1 on, not {most!r}")
        self.plan = Plan(
            model=model,
            tools=_named(tools),
            first_state=first_state,
            max_iterations=max_iterations,
            budget_tokens=budget_tokens,
            context_tokens=context_tokens,
            stop=stop,
            hold=hold,
            retry=retry,
            on_event=on_event,
            summarize=summarize,
            child_poll_s=child_poll_s,
            workspace=workspace,
        )

    def drive(
        self,
        acme: TenantHandle,
        run: str | Run,
        *,
        holder: str | None = None,
        ttl_ms: int = TTL_MS,
        go_on: Callable[[], bool] = lambda: True,
    ) -> Ending:
        """Claim a run, by its id, and drive it from its last step on until it ends, pauses, waits or is taken away.

        A ``Run`` that the caller has claimed is driven as it is. After each step ``go_on`` is asked; if it says no, the run is
        released for somebody else. An error of the model's fails the run, one of a tool's is told to the model; neither is
        raised here.

        Raises:
            NotFound: there is no such run in a live session.
            Unavailable: the database cannot be reached. The run goes on when somebody claims it again.
        """
        claimed = run if isinstance(run, Run) else None
        return executor.carry_on(self.plan, acme, self._driving(run, holder, ttl_ms), claimed, go_on)

    async def adrive(
        self,
        acme: AsyncTenantHandle,
        run: str | Run,
        *,
        holder: str | None = None,
        ttl_ms: int = TTL_MS,
        go_on: Callable[[], bool] = lambda: True,
    ) -> Ending:
        """The same in an event loop. Cancelled, it stops at once and releases the run.

        Raises:
            NotFound: there is no such run in a live session.
            Unavailable: the database cannot be reached. The run goes on when somebody claims it again.
        """
        claimed = run if isinstance(run, Run) else None
        return await executor_async.carry_on(self.plan, acme, self._driving(run, holder, ttl_ms), claimed, go_on)

    def _driving(self, run: str | Run, holder: str | None, ttl_ms: int) -> Driving[Ending]:
        if isinstance(run, Run):
            return drive(self.plan, run)
        return claim_and_drive(self.plan, run, holder=holder or this_process(), ttl_ms=ttl_ms)


def this_process() -> str:
    """A name for whoever drives, as it is shown in a run: the machine and the process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _named(tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    made = [each if isinstance(each, Tool) else tool(each) for each in tools]
    named = {each.name: each for each in made}
    if len(named) < len(made):
        raise InvalidInput("two tools have the same name")
    return named
