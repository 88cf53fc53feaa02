"""``Loop``: a model, its tools and its stop conditions, and the methods that drive a run with them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import AsyncTenantHandle, Summarizer, TenantHandle
from holdfast.errors import InvalidInput
from holdfast.types import Run

from . import executor, executor_async
from .commands import CommandGenerator
from .config import CHILD_POLL_S, CONTEXT_TOKENS, MAX_ITERATIONS, LoopConfig, StepProgress, Workspace
from .core import claim_and_drive, drive
from .events import Ending, Event
from .replies import ToolRequest
from .tools import Tool, tool

TTL_MS = 60_000
"""Milliseconds that a run stays claimed after the last renewal of its lease."""


class Loop:
    """An agent's loop: ask the model, call its tools, commit the step, and repeat; it survives a crash at any point.

    Args:
        model: a function from a ``ModelTurn`` to a ``Reply`` or text, synchronous or asynchronous.
        tools: the tools that the model may call; functions, or ``Tool`` objects made by ``tool``.
        first_state: the state of a run that has no step yet. State is any JSON value; the model's replies change it.
        max_iterations: maximum steps of one run; after them it ends with the reason ``max_iterations``.
        budget_tokens: tokens of one run after which it ends, at the next step, with the reason ``budget``.
        context_tokens: maximum tokens of the conversation that are sent to the model.
        stop: called before each step; if it returns text, the run ends with that text as its reason.
        hold: called for each call; true means that a person must allow the call first. It must be quick and free of side effects.
        retry: called when the model raises, with the error and the number of failures: seconds to wait, or ``None`` to fail.
        on_event: called with each event, possibly in another thread; it must return quickly.
        summarize: summarizes sessions that have a compaction policy attached and have become due.
        child_poll_s: seconds after which a run checks its child run, in case the child could not resume it.
        workspace: the directory that the tools work in, or a function from a run to it. It is captured before the first step
            and whenever tools were called, so that ``tenant.workspaces.rewind`` can rewind files and conversation together.

    Raises:
        InvalidInput: an argument is invalid.
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
        stop: Callable[[StepProgress], str | None] | None = None,
        hold: Callable[[ToolRequest], bool] | None = None,
        retry: Callable[[Exception, int], float | None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        summarize: Summarizer | None = None,
        child_poll_s: float = CHILD_POLL_S,
        workspace: Workspace = None,
    ) -> None:
        callbacks = {"model": model, "stop": stop, "hold": hold, "retry": retry, "on_event": on_event}
        for name, callback in callbacks.items():
            if callback is not None and not callable(callback):
                raise InvalidInput(f"{name} must be a function, not {callback!r}", field=name)
        for name, maximum in (("max_iterations", max_iterations), ("budget_tokens", budget_tokens)):
            if maximum is not None and (not isinstance(maximum, int) or isinstance(maximum, bool) or maximum < 1):
                raise InvalidInput(f"{name} must be a whole number of at least 1, not {maximum!r}", field=name)
        self.config = LoopConfig(
            model=model,
            tools=_tools_by_name(tools),
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
        tenant: TenantHandle,
        run: str | Run,
        *,
        holder: str | None = None,
        ttl_ms: int = TTL_MS,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> Ending:
        """Claim a run, by its id, and drive it from its last step until it ends, pauses, waits or is taken over.

        A ``Run`` that the caller has already claimed is driven without another claim. After each step ``should_continue`` is
        called; if it returns false, the run is released for another worker. An error of the model fails the run, an error of a
        tool is reported to the model; neither is raised here.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Unavailable: the database cannot be reached. The run continues when it is claimed again.
        """
        claimed = run if isinstance(run, Run) else None
        return executor.run_loop(self.config, tenant, self._generator(run, holder, ttl_ms), claimed, should_continue)

    async def adrive(
        self,
        tenant: AsyncTenantHandle,
        run: str | Run,
        *,
        holder: str | None = None,
        ttl_ms: int = TTL_MS,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> Ending:
        """Drive a run like ``drive``, in an event loop. If cancelled, stop at once and release the run.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Unavailable: the database cannot be reached. The run continues when it is claimed again.
        """
        claimed = run if isinstance(run, Run) else None
        return await executor_async.run_loop(
            self.config, tenant, self._generator(run, holder, ttl_ms), claimed, should_continue
        )

    def _generator(self, run: str | Run, holder: str | None, ttl_ms: int) -> CommandGenerator[Ending]:
        if isinstance(run, Run):
            return drive(self.config, run)
        return claim_and_drive(self.config, run, holder=holder or process_name(), ttl_ms=ttl_ms)


def process_name() -> str:
    """Return the default holder of a lease: host name and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _tools_by_name(functions: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for function in functions:
        new = function if isinstance(function, Tool) else tool(function)
        if new.name in tools:
            raise InvalidInput(f"two tools have the same name: {new.name!r}", field="tools")
        tools[new.name] = new
    return tools
