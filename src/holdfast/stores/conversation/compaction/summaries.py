"""Get the summary of a plan from the caller."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable

from ....core import text
from ....core.scope import Scope
from ....engines.protocol import Engine
from ....errors import InvalidInput, LimitExceeded
from ..tokens import counter_of
from .commit import summary_content
from .plan import CompactionPlan
from .strategies import Summarizer

_NO_LOOP = (
    "a synchronous Holdfast cannot run an asynchronous summarize function: use AsyncHoldfast, or a plain function"
)


def check_function(engine: Engine, summarize: Summarizer) -> None:
    """Check that the engine can call the caller's function.

    Raises:
        InvalidInput: it is not a function, or it is asynchronous and the engine is not.
    """
    if not callable(summarize):
        raise InvalidInput(f"summarize must be a function, not {type(summarize).__name__}", field="summarize")
    if engine.blocking and inspect.iscoroutinefunction(summarize):
        raise InvalidInput(_NO_LOOP, field="summarize")


async def summary_of(
    engine: Engine, scope: Scope, plan: CompactionPlan, summarize: Summarizer | None, summary: str | None
) -> str | None:
    """Return the summary of a plan: the caller's text, or the result of the caller's function; ``None`` if it needs none.

    Raises:
        InvalidInput: the summary is missing or empty.
        LimitExceeded: the summary is too long.
    """
    if not plan.needs_summary:
        return None
    if summarize is not None:
        answer = summarize(plan.to_summarize)
        summary = await _await_answer(engine, answer) if inspect.isawaitable(answer) else answer
    elif summary is None:
        raise InvalidInput(
            f"{len(plan.removed)} messages would be removed without a summary: give summarize= or summary=",
            field="summary",
        )
    if not isinstance(summary, str) or not summary.strip():
        raise InvalidInput("summary must be a non-empty string; nothing was changed", field="summary")
    content = summary_content(summary)
    tokens = counter_of(scope)(content)
    scope.limits.check("content_bytes", text.size(text.dump(content)), "summary")
    if tokens > plan.policy.summary_tokens:
        raise LimitExceeded(
            f"the summary has {tokens:,} tokens, over summary_tokens = {plan.policy.summary_tokens:,}",
            field="summary",
            limit="summary_tokens",
            maximum=plan.policy.summary_tokens,
        )
    return summary


async def _await_answer(engine: Engine, answer: Awaitable[str]) -> str:
    if engine.blocking:
        if inspect.iscoroutine(answer):
            answer.close()  # avoids the warning that it was never awaited
        raise InvalidInput(_NO_LOOP, field="summarize")
    return await answer
