"""The intent of an iteration: the model's reply and its calls, recorded in the ledger before the calls are made."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast import NewToolCall, ToolOutcome
from holdfast.errors import NotFound
from holdfast.types import Run, ToolCall

from . import commands as do
from .call_plan import OPEN_STATUSES, REPLY
from .commands import CommandGenerator
from .config import LoopConfig
from .replies import NormalizedReply, RequestedCall, decode_reply


class PendingReply(Struct, frozen=True):
    """A reply to carry out, and its records in the ledger."""

    reply: NormalizedReply
    record: ToolCall | None = None
    """The ledger row that contains the reply, if it was recorded."""
    calls: dict[str, ToolCall] = {}
    """The recorded calls, by id."""
    children: dict[str, Run] = {}
    """The child runs, by the id of the call they answer."""


def load_pending(run_id: str, iteration: int, open_calls: Sequence[ToolCall]) -> CommandGenerator[PendingReply | None]:
    """Load the reply that an earlier process has not finished, if there is one.

    Args:
        iteration: the last committed step of the run.
    """
    record = next((call for call in open_calls if call.tool_name == REPLY and call.status in OPEN_STATUSES), None)
    if record is None:
        return None
    reply = decode_reply(record.tool_input)
    calls = {call.id: call for call in open_calls}
    if record.iteration <= iteration:  # a step contains the outcomes of some of its calls
        for request in reply.requests:
            if request.id not in calls:
                try:
                    calls[request.id] = yield do.GetCall(run_id, request.id)
                except NotFound:
                    pass
    children = yield do.ListChildren(run_id)
    return PendingReply(reply, record, calls, {run.parent_call_id: run for run in children if run.parent_call_id})


def record_intents(
    config: LoopConfig,
    run: Run,
    iteration: int,
    pending: PendingReply,
    requests: Sequence[RequestedCall],
    *,
    hold: bool = False,
) -> CommandGenerator[list[ToolCall]]:
    """Make the first commit: the reply, if it is not recorded yet, and the calls that are about to be made."""
    calls = [_new_call(config, request, pending.calls.get(request.id), hold) for request in requests]
    if pending.record is None:
        calls.insert(0, _reply_record(pending.reply, iteration))
    recorded: Sequence[ToolCall] = yield do.RecordIntents(run.id, run.epoch, calls)
    return [call for call in recorded if call.tool_name != REPLY]


def unrecorded_outcomes(pending: PendingReply, outcomes: Sequence[ToolOutcome], iteration: int) -> list[ToolOutcome]:
    """Return the outcomes that the ledger does not contain yet, and the outcome of the reply's own row."""
    if not outcomes:
        return []
    reply_id = _reply_id(iteration) if pending.record is None else pending.record.id
    calls = pending.calls
    unrecorded = [
        outcome for outcome in outcomes if outcome.id not in calls or calls[outcome.id].status in OPEN_STATUSES
    ]
    return [ToolOutcome(id=reply_id, status="finished"), *unrecorded]


def _reply_id(iteration: int) -> str:
    """Return the id of the ledger row that contains the reply of an iteration."""
    return f"{REPLY}:{iteration}"


def _reply_record(reply: NormalizedReply, iteration: int) -> NewToolCall:
    id = _reply_id(iteration)
    return NewToolCall(id=id, tool_name=REPLY, tool_input=reply.to_json(), safety="idempotent")


def _new_call(config: LoopConfig, request: RequestedCall, call: ToolCall | None, hold: bool) -> NewToolCall:
    if call is not None:  # the recorded fields apply, even if the tool has changed since
        return NewToolCall(id=call.id, tool_name=call.tool_name, tool_input=call.tool_input, safety=call.safety)
    tool = config.tools.get(request.name)
    safety = "idempotent" if tool is None else tool.safety
    return NewToolCall(id=request.id, tool_name=request.name, tool_input=request.input, safety=safety, hold=hold)
