"""The ledger of tool calls: what a call is, what may be done with one that is not finished, and how intents are written.

Intents are a group (see ``engines.protocol.Group``): whatever has queued up for one tenant is written together, on PostgreSQL
with one statement. That way goes only what is plain: calls that nobody has seen before, of a run that the caller holds.
Everything else is ``Unusual`` and is done again in a transaction, where there is time to look.
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

OPEN: frozenset[CallStatus] = frozenset({"held", "ready", "begun"})
CALL_MOVES: Mapping[CallVerb, Mapping[CallStatus, CallStatus]] = MappingProxyType(
    {
        "begin": {"ready": "begun", "begun": "begun"},
        "snooze": {"ready": "ready", "begun": "ready"},
        "allow": {"held": "ready", "begun": "ready"},
        "cancel": {"held": "cancelled", "ready": "cancelled", "begun": "cancelled"},
        "discard": {"held": "discarded", "ready": "discarded", "begun": "discarded"},
    }
)
"""Every legal move of a call. Besides, a step moves what is open to what it came to; what is not open never moves again."""


class ToolCall(Struct, frozen=True):
    """One call of a tool.

    ``iteration`` is the step it was first intended for, ``step`` the one that took its outcome in. ``attempts`` counts how often
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
    """A call to be recorded before it runs. With ``hold`` it is not to be run before a person allows it."""

    id: str
    tool_name: str
    tool_input: Any = None
    safety: Safety = "at_most_once"
    hold: bool = False


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """What a call came to. Without a ``status`` it is ``failed`` if there is an ``error`` and ``finished`` otherwise."""

    id: str
    result: Any = None
    error: str | None = None
    status: Outcome | None = None


class PendingCall(Struct, frozen=True):
    """A call that is not finished, and what is to be done about it.

    ``run``: begin it, again or for the first time. ``report``: it may have happened and must not happen twice; tell the model.
    ``ask``: only a person can say. ``wait``: somebody is at it, or it is snoozed.
    """

    call: ToolCall
    action: Action


class Unusual(HoldfastError):
    """Not what the straight path is for: to be looked at in a transaction."""


queries = Queries(__package__, "tool_calls.sql", ToolCall)


class StoredCall(Struct, frozen=True, gc=False):
    """A new call that was checked and is ready to be stored."""

    id: str
    tool_name: str
    tool_input: str
    safety: str
    hold: bool

    @property
    def status(self) -> CallStatus:
        """What it is at first."""
        return "held" if self.hold else "begun"

    def same_as(self, there: ToolCall) -> bool:
        """Whether recording this again means that call."""
        return (self.tool_name, self.safety) == (text.escape(there.tool_name), there.safety) and text.identical(
            text.load(self.tool_input), there.tool_input
        )


class Intent(Struct, frozen=True, gc=False):
    """Calls, at least one, that the holder of a run is about to make: all of them are recorded or none."""

    tenant: str
    run_id: str
    epoch: int
    calls: Sequence[StoredCall]
    now_us: int
    most: int

    def params(self, call: StoredCall, place: int, iteration: int = 0) -> dict[str, Any]:
        """One call as the parameters of everything that writes it."""
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
            "place": place,
            "iteration": iteration,
            "now_at": self.now_us,
        }

    def made(self, iteration: int) -> list[ToolCall]:
        """The calls as they are once they are recorded."""
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
    """Intents of one tenant, done together."""

    mixes_keys = False

    def key(self, item: Intent) -> object:
        return item.tenant, item.most

    def id_of(self, item: Intent) -> str:
        return item.run_id

    async def run(
        self, connection: Connection, items: Sequence[Intent], *, careful: bool
    ) -> Sequence[list[ToolCall] | Exception]:
        if careful:  # there are calls with these ids already
            return [Unusual() for _ in items]
        async with in_one_commit(connection):
            if in_one_statement(connection):
                iterations = await _in_one_statement(connection, items)
            else:
                iterations = [await _one(connection, item) for item in items]
        return [
            Unusual() if iteration is None else item.made(iteration)
            for item, iteration in zip(items, iterations, strict=True)
        ]


intent_group = IntentGroup()


async def hold_run(connection: Connection, intent: Intent, more_calls: int) -> tuple[int, int] | None:
    """The step that a run's holder is at and how many calls are open, if it is the holder and has room for so many more; its
    lease is renewed."""
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
    connection: Connection, intent: Intent, calls: Sequence[StoredCall], at: tuple[int, int]
) -> None:
    """Record new calls for a step, after those that are open."""
    if calls:
        rows = [intent.params(call, place, at[0]) for place, call in enumerate(calls, at[1])]
        await queries.insert.many(connection, rows)


async def _one(connection: Connection, intent: Intent) -> int | None:
    at = await hold_run(connection, intent, len(intent.calls))
    if at is None:
        return None
    await insert_calls(connection, intent, intent.calls, at)
    return at[0]


async def _in_one_statement(connection: Connection, intents: Sequence[Intent]) -> list[int | None]:
    rows = [
        {**intent.params(call, place), "of": number}
        for number, intent in enumerate(intents)
        for place, call in enumerate(intent.calls)
    ]
    together: dict[str, Any] = {name: [row[name] for row in rows] for name in _COLUMNS}
    together.update(
        tenant_id=intents[0].tenant,
        most=intents[0].most,
        number=[*range(len(intents))],
        run_id=[intent.run_id for intent in intents],
        epoch=[intent.epoch for intent in intents],
        calls=[len(intent.calls) for intent in intents],
        created_at=[intent.now_us for intent in intents],
    )
    found = dict(tuple(row) for row in await queries.intend_all.all(connection, together))
    return [found.get(number) for number in range(len(intents))]


_COLUMNS = ("of", "id", "tool_name", "tool_input", "safety", "status", "place", "attempts")


def stored_calls(calls: object, limits: Limits) -> list[StoredCall]:
    """New calls, checked and in the form that is stored.

    Raises:
        InvalidInput: one of them is not acceptable, or two have the same id.
        LimitExceeded: there are too many, or one is too large.
    """
    if not isinstance(calls, Sequence) or not calls or not all(isinstance(each, NewToolCall) for each in calls):
        raise InvalidInput("calls must be a list of NewToolCall, with at least one in it")
    limits.check("open_tool_calls", len(calls), "calls")
    stored = [_stored(call, limits) for call in calls]
    if len({call.id for call in stored}) < len(stored):
        raise InvalidInput("two calls have the same id")
    return stored


def _stored(call: NewToolCall, limits: Limits) -> StoredCall:
    if call.safety not in get_args(Safety):
        raise InvalidInput(f"safety is one of {', '.join(get_args(Safety))}, not {call.safety!r}")
    if not isinstance(call.hold, bool):
        raise InvalidInput(f"hold must be true or false, not {call.hold!r}")
    tool_input = text.dump(call.tool_input, depth=limits.json_depth)
    limits.check("tool_input_bytes", text.size(tool_input), "tool_input")
    return StoredCall(
        call_id(call.id, limits), scopes.name(call.tool_name, "tool_name", limits), tool_input, call.safety, call.hold
    )


def call_id(value: object, limits: Limits) -> str:
    """The id of a call, which is whatever the model's provider gave, in the form that is stored.

    Raises:
        InvalidInput: it is empty or not text.
    """
    return scopes.name(value, "call id", limits)


def begins(there: ToolCall, new: StoredCall, *, epoch: int, now_us: int) -> bool:
    """Whether recording a call that is there already begins it once more; ``False`` means that it is the same intent again.

    Raises:
        Conflict: it may not be begun.
    """
    what = f"call {there.id!r} of run {there.run_id}"
    if not new.same_as(there):
        raise Conflict(f"{what} is there with another tool, input or safety")
    if there.status not in OPEN:
        raise Conflict(f"{what} is {there.status}; what is done is not done again")
    if there.status == "held":
        if new.hold:
            return False
        raise Conflict(f"{what} waits for a person to allow it")
    if there.status == "ready":
        if there.pause_until is not None and to_us(there.pause_until) > now_us:
            raise Conflict(f"{what} is not to be begun before {there.pause_until.isoformat()}")
        return True
    if there.epoch >= epoch:
        return False
    if there.safety != "idempotent":
        raise Conflict(f"{what} was begun and never came back, and is {there.safety}: it must not be begun again")
    return True


def action_of(call: ToolCall, *, run_status: str, run_epoch: int, now_us: int) -> Action:
    """What is to be done about a call that is not finished."""
    if call.status == "held":
        return "ask"
    if call.status == "ready":
        return "wait" if call.pause_until is not None and to_us(call.pause_until) > now_us else "run"
    if run_status == "running" and call.epoch == run_epoch:
        return "wait"
    return _AFTER_A_CRASH[call.safety]


_AFTER_A_CRASH: Mapping[Safety, Action] = {"idempotent": "run", "at_most_once": "report", "ask": "ask"}


def call_of(connection: Connection, row: Row) -> ToolCall:
    """A call from its row."""
    return mapper(ToolCall, connection.dialect)([row])[0]
