"""Getting the summary of a plan from the caller."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable

from ....core import text
from ....core.scope import Scope
from ....engines.protocol import Engine
from ....errors import InvalidInput, LimitExceeded
from ..tokens import counter_of
from .commit import summary_content
from .plan import Plan
from .strategies import Summarizer

_NO_LOOP = "a synchronous Holdfast has no event loop to run an asynchronous summarize in: use AsyncHoldfast, or a plain function"


def check_function(engine: Engine, summarize: Summarizer) -> None:
    """Check that the engine can call a function of the caller's.

    Raises:
        InvalidInput: it is not a function, or an asynchronous one on a synchronous engine.
    """
    if not callable(summarize):
        raise InvalidInput(f"summarize must be a function, not {type(summarize).__name__}")
    if engine.blocking and inspect.iscoroutinefunction(summarize):
        raise InvalidInput(_NO_LOOP)


async def summary_of(
    engine: Engine, scope: Scope, plan: Plan, summarize: Summarizer | None, summary: str | None
) -> str | None:
    """The summary a plan needs: the caller's text, or what the caller's function returns; ``None`` if it needs none.

    Raises:
        InvalidInput: there is no summary, or it is empty.
        LimitExceeded: it is too long.
    """
    if not plan.needs_summary:
        return None
    if summarize is not None:
        answer = summarize(plan.to_summarize)
        summary = await _awaited(engine, answer) if inspect.isawaitable(answer) else answer
    elif summary is None:
        raise InvalidInput(
            f"{len(plan.removed)} messages would be removed, and nothing says what they said: give summarize= or summary="
        )
    if not isinstance(summary, str) or not summary.strip():
        raise InvalidInput("the summary is empty or no text; nothing was changed")
    content = summary_content(summary)
    tokens = counter_of(scope)(content)
    scope.limits.check("content_bytes", text.size(text.dump(content)), "the summary")
    if tokens > plan.policy.summary_tokens:
        raise LimitExceeded(f"the summary has {tokens:,} tokens, over summary_tokens = {plan.policy.summary_tokens:,}")
    return summary


async def _awaited(engine: Engine, answer: Awaitable[str]) -> str:
    if engine.blocking:
        if inspect.iscoroutine(answer):
            answer.close()  # it will not run, and must not warn about that
        raise InvalidInput(_NO_LOOP)
    return await answer
