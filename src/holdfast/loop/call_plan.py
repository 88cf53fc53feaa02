"""Decides what to do with each call of a reply, from its record in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, cast

from msgspec import Struct, field

from holdfast import ToolOutcome
from holdfast.errors import Conflict
from holdfast.types import Run, ToolCall

from .config import LoopConfig
from .replies import RequestedCall

Outcome = Literal["finished", "failed", "cancelled", "discarded", "unknown"]

REPLY = "holdfast.reply"
"""The tool name under which the ledger records the model's reply, before the reply's calls."""
OPEN_STATUSES = frozenset({"held", "ready", "begun"})
"""Statuses of a call that has no outcome yet."""
UNKNOWN = (
    "the outcome of this call is unknown: the process died during it. It may have happened, so it is not made again"
)


class CallPlan(Struct):
    """The calls of a reply, grouped by what to do with them."""

    outcomes: dict[str, ToolOutcome] = field(default_factory=dict)
    """Outcomes by call id."""
    recorded_ids: set[str] = field(default_factory=set)
    """Ids of the calls whose outcome the ledger already contains."""
    to_make: list[RequestedCall] = field(default_factory=list)
    to_hold: list[RequestedCall] = field(default_factory=list)
    """Calls to record, and to make only after a person allows them."""
    awaiting_people: list[RequestedCall] = field(default_factory=list)
    """Calls that are recorded and wait for a person."""
    wake_times: list[datetime] = field(default_factory=list)
    """When the snoozed calls may be made."""
    open_children: list[str] = field(default_factory=list)
    """Ids of the child runs that have not ended and answer a call."""
    ended_children: list[tuple[str, Run]] = field(default_factory=list)
    """Call ids, each with the ended child run that answers it."""

    def take_outcome(self, run_id: str, call: ToolCall) -> None:
        """Take over the outcome of a call from the ledger."""
        if call.status in OPEN_STATUSES:
            raise Conflict(
                f"call {call.id!r} of run {run_id} is {call.status} and cannot be changed now", reason="status"
            )
        status = cast("Outcome", call.status)
        self.outcomes[call.id] = ToolOutcome(id=call.id, result=call.result, error=call.error, status=status)
        self.recorded_ids.add(call.id)

    def new_outcomes(self) -> list[ToolOutcome]:
        """Return the outcomes that a step must still record."""
        return [outcome for id, outcome in self.outcomes.items() if id not in self.recorded_ids]


def plan_calls(
    config: LoopConfig,
    requests: Sequence[RequestedCall],
    recorded: Mapping[str, ToolCall],
    children: Mapping[str, Run],
    *,
    now: datetime | None,
) -> CallPlan:
    """Group the calls of a reply by what to do with them; ``recorded`` and ``children`` are keyed by call id.

    While one call waits for a person, calls that are not in the ledger yet are not recorded: a recorded call counts as begun,
    and its outcome would be unknown when the run resumes.
    """
    plan = CallPlan()
    for request in requests:
        call = recorded.get(request.id)
        if call is not None:
            _add_recorded(plan, request, call, children.get(request.id), now)
        elif not recorded and config.must_hold(request):
            plan.to_hold.append(request)
        else:
            plan.to_make.append(request)
    return plan


def _add_recorded(
    plan: CallPlan, request: RequestedCall, call: ToolCall, child: Run | None, now: datetime | None
) -> None:
    """Add a call that is in the ledger. If it is begun, the process that began it has died."""
    if call.status not in OPEN_STATUSES:
        plan.take_outcome(call.run_id, call)
    elif child is not None and child.status in ("completed", "failed", "cancelled"):
        plan.ended_children.append((call.id, child))
    elif child is not None:
        plan.open_children.append(child.id)
    elif call.status == "held":
        plan.awaiting_people.append(request)
    elif call.status == "ready" and call.pause_until is not None and now is not None and call.pause_until > now:
        plan.wake_times.append(call.pause_until)
    elif call.status == "ready" or call.safety == "idempotent":
        plan.to_make.append(request)
    elif call.safety == "ask":
        plan.awaiting_people.append(request)
    else:
        plan.outcomes[call.id] = ToolOutcome(id=call.id, status="unknown", error=UNKNOWN)
