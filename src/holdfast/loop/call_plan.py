"""What is to be done about each call of a reply, by what the ledger says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, cast

from msgspec import Struct, field

from holdfast import ToolOutcome
from holdfast.errors import Conflict
from holdfast.types import Run, ToolCall

from .plan import Plan
from .replies import Requested

Outcome = Literal["finished", "failed", "cancelled", "discarded", "unknown"]

REPLY = "holdfast.reply"
"""The name under which the model's reply is recorded in the ledger, before its calls."""
OPEN = frozenset({"held", "ready", "begun"})
"""What a call is that nobody has finished."""
UNKNOWN = (
    "the outcome of this call is unknown: it was begun and never came back. It may have happened. It is not made again"
)


class Sorted(Struct):
    """The calls of a reply, by what is to be done about them."""

    settled: dict[str, ToolOutcome] = field(default_factory=dict)
    """It is known what they came to."""
    before: set[str] = field(default_factory=set)
    """Those of them that were finished in the ledger already."""
    to_make: list[Requested] = field(default_factory=list)
    held: list[Requested] = field(default_factory=list)
    """To be recorded, and not to be made before a person allows them."""
    asked: list[Requested] = field(default_factory=list)
    """Recorded already, and waiting for a person."""
    waits: list[datetime] = field(default_factory=list)
    """Snoozed until then."""
    below: list[str] = field(default_factory=list)
    """Done by these runs, which have not ended."""
    ended: list[tuple[str, Run]] = field(default_factory=list)
    """Done by runs that have ended."""

    def settle(self, run_id: str, call: ToolCall) -> None:
        """Take what the ledger says a call came to."""
        if call.status in OPEN:
            raise Conflict(f"call {call.id!r} of run {run_id} is {call.status}, and nobody may change it")
        outcome = cast("Outcome", call.status)
        self.settled[call.id] = ToolOutcome(id=call.id, result=call.result, error=call.error, status=outcome)
        self.before.add(call.id)

    def fresh(self) -> list[ToolOutcome]:
        """What a step has to settle."""
        return [outcome for id, outcome in self.settled.items() if id not in self.before]


def sort_calls(
    plan: Plan,
    requests: Sequence[Requested],
    known: Mapping[str, ToolCall],
    children: Mapping[str, Run],
    *,
    now: datetime | None,
) -> Sorted:
    """What is to be done about each call.

    As long as one call waits for a person, none of the others that the ledger does not know yet is recorded: what is recorded
    counts as begun, and would be of unknown outcome when the run comes back.
    """
    found = Sorted()
    for request in requests:
        call = known.get(request.id)
        if call is not None:
            _sort_known(found, request, call, children.get(request.id), now)
        elif not known and plan.must_hold(request):
            found.held.append(request)
        else:
            found.to_make.append(request)
    return found


def _sort_known(found: Sorted, request: Requested, call: ToolCall, child: Run | None, now: datetime | None) -> None:
    """One that the ledger knows. If it is begun, then by somebody who never came back."""
    if call.status not in OPEN:
        found.settle(call.run_id, call)
    elif child is not None and child.status in ("completed", "failed", "cancelled"):
        found.ended.append((call.id, child))
    elif child is not None:
        found.below.append(child.id)
    elif call.status == "held":
        found.asked.append(request)
    elif call.status == "ready" and call.pause_until is not None and now is not None and call.pause_until > now:
        found.waits.append(call.pause_until)
    elif call.status == "ready" or call.safety == "idempotent":
        found.to_make.append(request)
    elif call.safety == "ask":
        found.asked.append(request)
    else:
        found.settled[call.id] = ToolOutcome(id=call.id, status="unknown", error=UNKNOWN)
