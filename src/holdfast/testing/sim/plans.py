"""What the agents of the built-in scenario are to do, drawn from a seed, and what it must have come to in the end."""

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
    """One iteration: how long the model thinks, which tools are called, and whether the run is paused afterwards."""

    model_s: float
    calls: tuple[NewToolCall, ...]
    pause_s: float | None


class PlannedRun(Struct, frozen=True):
    """A run from its beginning to its end."""

    tenant: str
    key: str
    run_id: str
    message_id: str
    steps: tuple[PlannedStep, ...]
    cancelled: bool
    """Whether somebody may cancel it on the way."""


def plan_runs(seed: int, count: int) -> dict[str, PlannedRun]:
    """The runs of one seed, by their ids. Some of them share a session."""
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
            id=f"{number}-{place}",
            tool_name="mail",
            tool_input={"to": place},
            safety=random.choice(SAFETIES),
            hold=hold,
        )
        for place in range(count)
    )
    pause_s = random.uniform(1, 40) if random.random() < 0.2 else None
    return PlannedStep(random.uniform(0.1, 4), calls, pause_s)


def check_end(plan: PlannedRun, run: RunRow, rows: Rows) -> None:
    """Refuse a completed run that is not what it would have been had nothing ever gone wrong.

    Each reply of the model stands in the session once, in their order, and each call has been taken in by a step.

    Raises:
        Violation: it is not.
    """
    log = rows.messages[(run.tenant, run.session)]
    said = [words[1] for words in map(_words, log) if words[0] == run.id]
    wanted = [str(number) for number in range(1, len(plan.steps) + 1)]
    if said != wanted:
        raise Violation(f"run {run.id} is completed and has said {said} instead of {wanted}")
    calls = rows.calls.get((run.tenant, run.id), {})
    for planned in plan.steps:
        for call in planned.calls:
            found = calls.get(call.id)
            if found is None or found.step is None:
                raise Violation(f"run {run.id} is completed, and of its call {call.id} there is {found}")


def _words(message: MessageRow) -> list[str]:
    """The first words of what the model has said: the run and the number of the reply."""
    content = text.load(message.content) if message.role == "assistant" else []
    return next((block["text"].split() for block in content if block.get("type") == "text"), ["", ""])
