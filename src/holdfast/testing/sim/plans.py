"""Plans of the built-in scenario, drawn from a seed, and the check of a completed run against its plan."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from ...core import text
from ...ids import SeededIds
from ...stores.execution.runs.ledger import NewToolCall, Safety
from .observer import MessageRow, Rows, RunRow
from .violation import Violation

SAFETIES: tuple[Safety, ...] = ("idempotent", "at_most_once", "at_most_once", "ask")
TENANTS = ("acme", "zenith")


class PlannedStep(Struct, frozen=True):
    """One iteration: the duration of the model call, the tool calls, and the pause after it."""

    model_s: float
    calls: tuple[NewToolCall, ...]
    pause_s: float | None


class PlannedRun(Struct, frozen=True):
    """All iterations of a run."""

    tenant: str
    key: str
    run_id: str
    message_id: str
    steps: tuple[PlannedStep, ...]
    cancelled: bool
    """Whether the person may cancel the run."""


def plan_runs(seed: int, count: int) -> dict[str, PlannedRun]:
    """Return the runs of a seed by id. Some of them share a session."""
    random = Random(f"{seed} plan")
    ids = SeededIds(random.getrandbits(64))
    planned = [
        PlannedRun(
            tenant=random.choice(TENANTS),
            key=f"session-{random.randrange(count)}",
            run_id=ids.new(),
            message_id=ids.new(),
            steps=tuple(_step(random, number) for number in range(1, random.randint(1, 5) + 1)),
            cancelled=random.random() < 0.1,
        )
        for _ in range(count)
    ]
    return {run.run_id: run for run in planned}


def _step(random: Random, number: int) -> PlannedStep:
    hold = random.random() < 0.1
    count = 1 if hold else random.choice((0, 1, 1, 2, 3))
    calls = tuple(
        NewToolCall(
            id=f"{number}-{index}",
            tool_name="mail",
            tool_input={"to": index},
            safety=random.choice(SAFETIES),
            hold=hold,
        )
        for index in range(count)
    )
    pause_s = random.uniform(1, 40) if random.random() < 0.2 else None
    return PlannedStep(random.uniform(0.1, 4), calls, pause_s)


def check_end(plan: PlannedRun, run: RunRow, rows: Rows) -> None:
    """Check that a completed run has the same result as a run without faults.

    Each reply of the model is in the session once, in order, and each tool call belongs to a step.

    Raises:
        Violation: the run differs from its plan.
    """
    log = rows.messages[(run.tenant, run.session)]
    replies = [words[1] for words in map(_words, log) if words[0] == run.id]
    expected = [str(number) for number in range(1, len(plan.steps) + 1)]
    if replies != expected:
        raise Violation(
            f"run {run.id} is completed with the replies {replies} instead of {expected}",
            kind="wrong_replies",
            subject=run.id,
        )
    calls = rows.calls.get((run.tenant, run.id), {})
    for planned in plan.steps:
        for call in planned.calls:
            row = calls.get(call.id)
            if row is None or row.step is None:
                raise Violation(
                    f"run {run.id} is completed, but the row of its call {call.id} is {row}",
                    kind="call_without_step",
                    subject=call.id,
                )


def _words(message: MessageRow) -> list[str]:
    """Return the first words of a model's reply: the run and the number of the reply."""
    content = text.load(message.content) if message.role == "assistant" else []
    return next((block["text"].split() for block in content if block.get("type") == "text"), ["", ""])
