"""Check the arguments of compactions that depend on each other."""

from __future__ import annotations

from ....core import scope as scopes
from ....engines.protocol import Engine
from ....errors import InvalidInput
from ....ids import parse as parse_id
from .attachments import Target
from .plan import CompactionPlan, check_plan
from .policy import CompactionPolicy
from .strategies import Strategy, Summarizer
from .summaries import check_function


def check_choice(
    engine: Engine,
    policy: CompactionPolicy | None,
    strategy: Strategy | None,
    plan: CompactionPlan | None,
    summarize: Summarizer | None,
    summary: str | None,
) -> None:
    """Check that the arguments of ``compact`` do not exclude each other, and that its plan and its function can be used.

    Raises:
        InvalidInput: they cannot.
    """
    if plan is not None:
        check_plan(plan)
    if plan is not None and (policy is not None or strategy is not None):
        raise InvalidInput(
            "plan= includes a policy and a strategy: give either plan=, or policy= and strategy=", field="plan"
        )
    if summarize is not None and summary is not None:
        raise InvalidInput("give summarize= or summary=, not both", field="summary")
    if summarize is not None:
        check_function(engine, summarize)
        if engine.joined:
            raise InvalidInput(
                "summarize= cannot be used inside your own transaction, which would stay open while it runs:"
                " call plan(), summarise, then call compact(plan=..., summary=...)",
                field="summarize",
            )


def target_of(scope: scopes.Scope, session_id: str | None, agent: str | None) -> tuple[Target, str]:
    """Return the session or the agent whose compaction is automatic, as its kind and its id or name.

    Raises:
        InvalidInput: neither or both were given, or the one given is invalid.
    """
    if (session_id is None) == (agent is None):
        raise InvalidInput("give either session_id= or agent=", field="session_id")
    if session_id is not None:
        return "session", parse_id(session_id, "session id")
    return "agent", scopes.name(agent, "agent", scope.limits)
