"""The ledger of tool calls: their data, the moves of an open call, and how intents are written.

Intents are a group (see ``engines.protocol.Group``): the queued intents of one tenant are written together, on PostgreSQL
with one statement. This path handles only the plain case: new calls of a run that the caller holds. Every other intent raises
``NeedsTransaction`` and is repeated in a transaction, which can read before it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from ....clock import from_us, to_us
from ....core import scope as scopes
from ....core import text
from ....core.queries import Queries
from ....core.rows import mapper
from ....engines.protocol import Connection, Row, in_one_commit, in_one_statement
from ....errors import Conflict, HoldfastError, InvalidInput
from ....ids import Id
from ....limits import Limits

Safety = Literal["idempotent", "at_most_once", "ask"]
CallStatus = Literal["held", "ready", "begun", "finished", "failed", "cancelled", "discarded", "unknown"]
Outcome = Literal["finished", "failed", "cancelled", "discarded", "unknown"]
Action = Literal["run", "report", "ask", "wait"]
CallVerb = Literal["begin", "snooze", "allow", "cancel", "discard"]

OPEN_STATUSES: frozenset[CallStatus] = frozenset({"held", "ready", "begun"})
"""Statuses of a call that has no outcome yet."""
CALL_MOVES: Mapping[CallVerb, Mapping[CallStatus, CallStatus]] = MappingProxyType(
    {
        "begin": {"ready": "begun", "begun": "begun"},
        "snooze": {"ready": "ready", "begun": "ready"},
        "allow": {"held": "ready", "begun": "ready"},
        "cancel": {"held": "cancelled", "ready": "cancelled", "begun": "cancelled"},
        "discard": {"held": "discarded", "ready": "discarded", "begun": "discarded"},
    }
)
"""All legal moves of a call. In addition, a step moves an open call to its outcome; a call with an outcome never moves again."""


class ToolCall(Struct, frozen=True):
    """One call of a tool.

    ``iteration`` is the step it was first intended for, ``step`` the one that contains its outcome. ``attempts`` counts how often
    it was begun.
    """

    id: str
    run_id: Id
    tool_name: str
    tool_input: Any
    safety: Safety
    status: CallStatus
    iteration: int
    epoch: int
    attempts: int
    pause_until: datetime | None
    result: Any | None
    error: str | None
    step: int | None
    started_at: datetime
    finished_at: datetime | None


class NewToolCall(Struct, frozen=True, kw_only=True):
    """A call to record before it is made. With ``hold``, a person must allow it first."""

    id: str
    tool_name: str
    tool_input: Any = None
    safety: Safety = "at_most_once"
    hold: bool = False


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a call. ``status`` defaults to ``failed`` if there is an ``error`` and to ``finished`` otherwise."""

    id: str
    result: Any = None
    error: str | None = None
    status: Outcome | None = None


class PendingCall(Struct, frozen=True):
    """A call without an outcome, and the action to take.

    ``run``: begin it, for the first time or again. ``report``: it may have happened and must not happen twice; tell the model.
    ``ask``: a person must decide. ``wait``: its holder is making it, or it is snoozed.
    """

    call: ToolCall
    action: Action


class NeedsTransaction(HoldfastError):
    """Raised for a write that the grouped path cannot do; it must be repeated in a transaction."""


queries = Queries(__package__, "tool_calls.sql", ToolCall)


class StoredCall(Struct, frozen=True, gc=False):
    """A new call that is validated and in its stored form."""

    id: str
    tool_name: str
    tool_input: str
    safety: str
    hold: bool

    @property
    def status(self) -> CallStatus:
        """The initial status."""
        return "held" if self.hold else "begun"

    def same_as(self, call: ToolCall) -> bool:
        """Whether a recorded call has the same tool, safety and input."""
        return (self.tool_name, self.safety) == (text.escape(call.tool_name), call.safety) and text.identical(
            text.load(self.tool_input), call.tool_input
        )


class Intent(Struct, frozen=True, gc=False):
    """One or more calls that the holder of a run is about to make; all of them are recorded or none."""

    tenant: str
    run_id: str
    epoch: int
    calls: Sequence[StoredCall]
    now_us: int
    most: int

    def params(self, call: StoredCall, position: int, iteration: int = 0) -> dict[str, Any]:
        """Return one call as the parameters of the statements that write it."""
        return {
            "tenant_id": self.tenant,
            "run_id": self.run_id,
            "epoch": self.epoch,
            "id": call.id,
            "tool_name": call.tool_name,
            "tool_input": call.tool_input,
            "safety": call.safety,
            "status": call.status,
            "attempts": int(not call.hold),
            "place": position,
            "iteration": iteration,
            "now_at": self.now_us,
        }

    def to_calls(self, iteration: int) -> list[ToolCall]:
        """Return the calls as recorded."""
        at = from_us(self.now_us)
        return [
            ToolCall(
                text.unescape(call.id),
                self.run_id,
                text.unescape(call.tool_name),
                text.load(call.tool_input),
                cast("Safety", call.safety),
                call.status,
                iteration,
                self.epoch,
                int(not call.hold),
                None,
                None,
                None,
                None,
                at,
                None,
            )
            for call in self.calls
        ]


class IntentGroup:
    """Intents of one tenant that are written together."""

    mixes_keys = False

    def key(self, item: Intent) -> object:
        return item.tenant, item.most

    def id_of(self, item: Intent) -> str:
        return item.run_id

    async def run(
        self, connection: Connection, items: Sequence[Intent], *, careful: bool
    ) -> Sequence[list[ToolCall] | Exception]:
        if careful:  # calls with these ids exist already
            return [NeedsTransaction() for _ in items]
        async with in_one_commit(connection):
            if in_one_statement(connection):
                iterations = await _record_in_one_statement(connection, items)
            else:
                iterations = [await _record_one(connection, item) for item in items]
        return [
            NeedsTransaction() if iteration is None else item.to_calls(iteration)
            for item, iteration in zip(items, iterations, strict=True)
        ]


intent_group = IntentGroup()


async def hold_run(connection: Connection, intent: Intent, more_calls: int) -> tuple[int, int] | None:
    """Renew the run's lease, and return its iteration and its number of open calls.

    Return ``None`` if the caller does not hold the run or the run has no room for ``more_calls``.
    """
    params = {
        "tenant_id": intent.tenant,
        "run_id": intent.run_id,
        "epoch": intent.epoch,
        "calls": more_calls,
        "most": intent.most,
        "now_at": intent.now_us,
    }
    row = await queries.hold_run.one(connection, params)
    return None if row is None else (int(row[0]), int(row[1]))


async def insert_calls(
    connection: Connection, intent: Intent, calls: Sequence[StoredCall], counts: tuple[int, int]
) -> None:
    """Record new calls for a step, after the open ones; ``counts`` is the result of ``hold_run``."""
    if calls:
        rows = [intent.params(call, position, counts[0]) for position, call in enumerate(calls, counts[1])]
        await queries.insert.many(connection, rows)


async def _record_one(connection: Connection, intent: Intent) -> int | None:
    counts = await hold_run(connection, intent, len(intent.calls))
    if counts is None:
        return None
    await insert_calls(connection, intent, intent.calls, counts)
    return counts[0]


async def _record_in_one_statement(connection: Connection, intents: Sequence[Intent]) -> list[int | None]:
    """Record the intents that fit; return the iteration of each, or ``None`` where it does not fit."""
    rows = [
        {**intent.params(call, position), "of": number}
        for number, intent in enumerate(intents)
        for position, call in enumerate(intent.calls)
    ]
    arrays: dict[str, Any] = {name: [row[name] for row in rows] for name in _COLUMNS}
    arrays.update(
        tenant_id=intents[0].tenant,
        most=intents[0].most,
        number=[*range(len(intents))],
        run_id=[intent.run_id for intent in intents],
        epoch=[intent.epoch for intent in intents],
        calls=[len(intent.calls) for intent in intents],
        created_at=[intent.now_us for intent in intents],
    )
    iterations = dict(tuple(row) for row in await queries.intend_all.all(connection, arrays))
    return [iterations.get(number) for number in range(len(intents))]


_COLUMNS = ("of", "id", "tool_name", "tool_input", "safety", "status", "place", "attempts")


def stored_calls(calls: object, limits: Limits) -> list[StoredCall]:
    """Validate new calls and return them in their stored form.

    Raises:
        InvalidInput: one of them is invalid, or two have the same id.
        LimitExceeded: there are too many, or one is too large.
    """
    if not isinstance(calls, Sequence) or not calls or not all(isinstance(call, NewToolCall) for call in calls):
        raise InvalidInput("calls must be a non-empty list of NewToolCall", field="calls")
    limits.check("open_tool_calls", len(calls), "calls")
    validated = [_stored_call(call, limits) for call in calls]
    if len({call.id for call in validated}) < len(validated):
        raise InvalidInput("two calls have the same id", field="calls")
    return validated


def _stored_call(call: NewToolCall, limits: Limits) -> StoredCall:
    if call.safety not in get_args(Safety):
        raise InvalidInput(f"safety must be one of {', '.join(get_args(Safety))}, not {call.safety!r}", field="safety")
    if not isinstance(call.hold, bool):
        raise InvalidInput(f"hold must be true or false, not {call.hold!r}", field="hold")
    tool_input = text.dump(call.tool_input, depth=limits.json_depth)
    limits.check("tool_input_bytes", text.size(tool_input), "tool_input")
    return StoredCall(
        call_id(call.id, limits), scopes.name(call.tool_name, "tool_name", limits), tool_input, call.safety, call.hold
    )


def call_id(value: object, limits: Limits) -> str:
    """Return the id of a call, which the model's provider chose, in its stored form.

    Raises:
        InvalidInput: it is empty or not text.
    """
    return scopes.name(value, "call id", limits)


def must_begin(recorded: ToolCall, new: StoredCall, *, epoch: int, now_us: int) -> bool:
    """Whether an intent begins a recorded call again; ``False`` if it is a repetition of the recorded intent.

    Raises:
        Conflict: the call may not be begun.
    """
    label = f"call {recorded.id!r} of run {recorded.run_id}"
    if not new.same_as(recorded):
        raise Conflict(f"{label} is recorded with another tool, input or safety", reason="other_content")
    if recorded.status not in OPEN_STATUSES:
        raise Conflict(f"{label} is {recorded.status} and cannot be begun again", reason="status")
    if recorded.status == "held":
        if new.hold:
            return False
        raise Conflict(f"{label} waits for a person to allow it", reason="not_allowed")
    if recorded.status == "ready":
        if recorded.pause_until is not None and to_us(recorded.pause_until) > now_us:
            raise Conflict(f"{label} cannot be begun before {recorded.pause_until.isoformat()}", reason="not_due")
        return True
    if recorded.epoch >= epoch:
        return False
    if recorded.safety != "idempotent":
        raise Conflict(
            f"{label} was begun by an earlier holder and is {recorded.safety}: it may have happened, and must not be begun again",
            reason="may_have_happened",
        )
    return True


def action_of(call: ToolCall, *, run_status: str, run_epoch: int, now_us: int) -> Action:
    """Return the action to take for a call without an outcome."""
    if call.status == "held":
        return "ask"
    if call.status == "ready":
        return "wait" if call.pause_until is not None and to_us(call.pause_until) > now_us else "run"
    if run_status == "running" and call.epoch == run_epoch:
        return "wait"
    return _AFTER_A_CRASH[call.safety]


_AFTER_A_CRASH: Mapping[Safety, Action] = {"idempotent": "run", "at_most_once": "report", "ask": "ask"}


def call_of(connection: Connection, row: Row) -> ToolCall:
    """Return a call from its row."""
    return mapper(ToolCall, connection.dialect)([row])[0]
