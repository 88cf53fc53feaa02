"""How a step is committed: state, messages, outcomes of tool calls and usage together, or nothing of it.

Steps are a group (see ``engines.protocol.Group``): whatever has queued up for one tenant is written together. On PostgreSQL
that is one statement; on SQLite it is one statement for each table, inside the writer's shared commit. That way goes only what
is plain: the next step of a run that the caller holds. Everything else is ``Unusual`` and is looked at in a transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from ....clock import MINUTE_US, from_us
from ....core import scope as scopes
from ....core import text
from ....core.checks import MAX_NUMBER, list_of, whole_number
from ....core.queries import Queries, omit_default
from ....core.rows import Column, mapper
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Row, in_one_commit, in_one_statement
from ....errors import InvalidInput, NotFound
from ....ids import Id
from ....limits import Limits
from ...conversation import message_log
from ...conversation.message_log import Append, LogEntry, Message, append_at, append_result, message_arrays
from ...conversation.messages import NewMessage
from ...conversation.new_entries import new_entry
from ...conversation.views import LAST
from . import ledger
from .ledger import Outcome, ToolOutcome, Unusual, call_id


class Step(Struct, frozen=True):
    """One committed iteration of a run.

    ``first_seq`` and ``last_seq`` are the places of its messages in the session's log; ``None`` where it has none.
    """

    run_id: Id
    iteration: int
    epoch: int
    state: Any
    last_tool_result: str | None
    first_seq: Annotated[int | None, Column(f"first_seq & {LAST}")]
    last_seq: Annotated[int | None, Column(f"last_seq & {LAST}")]
    input_tokens: int
    output_tokens: int
    snapshot: str | None
    created_at: datetime


class Usage(Struct, frozen=True, kw_only=True):
    """What a step has used up of the model."""

    input_tokens: int = 0
    output_tokens: int = 0


class CommittedStep(Struct, frozen=True):
    """What a step made, and whether it brought the session to the point where its policy wants it compacted."""

    step: Step
    messages: list[Message]
    compaction_due: bool = False


queries = Queries(__package__, "steps.sql", Step, Message, parts=message_log.queries)


class Settled(Struct, frozen=True, gc=False):
    """What a tool call came to, checked and ready to be stored."""

    id: str
    status: str
    result: str | None
    error: str | None


class NewStep(Struct, frozen=True, gc=False):
    """A step that was checked and is ready to be stored."""

    tenant: str
    run_id: str
    epoch: int
    iteration: int
    state: str
    entries: Sequence[LogEntry]
    outcomes: Sequence[Settled]
    usage: Usage
    last_tool_result: str | None
    snapshot: str | None
    fingerprint: str
    now_us: int

    def params(self) -> dict[str, Any]:
        """It as the parameters of everything that writes it."""
        return {
            "tenant_id": self.tenant,
            "run_id": self.run_id,
            "epoch": self.epoch,
            "iteration": self.iteration,
            "state": self.state,
            "last_tool_result": self.last_tool_result,
            "snapshot": self.snapshot,
            "fingerprint": self.fingerprint,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "calls": len(self.outcomes),
            "now_at": self.now_us,
        }

    def made(self, session_id: str, place: int | None, due: bool) -> CommittedStep:
        """It as it is once it is stored, its first message at this place."""
        messages: list[Message] = []
        if place is not None and self.entries:
            append = Append(self.tenant, session_id, self.entries, self.now_us)
            messages = append_result(append, (place, due)).messages
        step = Step(
            self.run_id,
            self.iteration,
            self.epoch,
            text.load(self.state),
            None if self.last_tool_result is None else text.unescape(self.last_tool_result),
            messages[0].seq if messages else None,
            messages[-1].seq if messages else None,
            self.usage.input_tokens,
            self.usage.output_tokens,
            None if self.snapshot is None else text.unescape(self.snapshot),
            from_us(self.now_us),
        )
        return CommittedStep(step, messages, bool(due))


class StepGroup:
    """Steps of one tenant, done together."""

    mixes_keys = False

    def key(self, item: NewStep) -> object:
        return item.tenant

    def id_of(self, item: NewStep) -> str:
        return item.run_id

    async def run(
        self, connection: Connection, items: Sequence[NewStep], *, careful: bool
    ) -> Sequence[CommittedStep | Exception]:
        if careful:  # a message, or the step itself, is there already
            return [Unusual() for _ in items]
        is_bare = in_one_statement(connection) and not any(item.entries or item.outcomes for item in items)
        write = _bare if is_bare else write_steps
        async with in_one_commit(connection):
            return [Unusual() if done is None else done for done in await write(connection, items)]


step_group = StepGroup()


async def write_steps(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    """Commit the steps that fit; ``None`` where one does not.

    Raises:
        AlreadyExists: a message with one of the ids is there.
        NotFound: the session of one was deleted meanwhile.
    """
    if in_one_statement(connection):
        return await _in_one_statement(connection, steps)
    return [await _statement_by_statement(connection, step) for step in steps]


async def _statement_by_statement(connection: Connection, step: NewStep) -> CommittedStep | None:
    params = step.params()
    # They are in the form that is stored already, and must not be escaped twice.
    calls = [outcome.id for outcome in step.outcomes]
    params["call_ids"] = calls if connection.dialect is Dialect.POSTGRES else msgspec.json.encode(calls).decode()
    row = await queries.advance_run.one(connection, params)
    if row is None:
        return None
    session_id, found = row[0], None
    if step.entries:
        found = await append_at(connection, Append(step.tenant, session_id, step.entries, step.now_us))
        if found is None:  # deleted since the guard has seen it; what was written is undone
            raise NotFound(f"there is no run {step.run_id} here")
    params["first_seq"] = None if found is None else found[0]
    params["last_seq"] = None if found is None else found[0] + len(step.entries) - 1
    await queries.insert_step.one(connection, params)
    if step.outcomes:
        settled = [{**params, **_outcome_params(outcome)} for outcome in step.outcomes]
        await ledger.queries.settle_call.many(connection, settled)
    if row[1]:
        await ledger.queries.take_in_calls.all(connection, params)
    return step.made(session_id, *((None, False) if found is None else found[:2]))


def _outcome_params(outcome: Settled) -> dict[str, Any]:
    return {"id": outcome.id, "status": outcome.status, "result": outcome.result, "error": outcome.error}


async def _in_one_statement(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    rows = [step.params() for step in steps]
    together: dict[str, Any] = {name: [row[name] for row in rows] for name in _STEP_COLUMNS}
    together.update(
        tenant_id=steps[0].tenant,
        number=[*range(len(steps))],
        rows=[len(step.entries) for step in steps],
        tokens=[sum(entry.token_count for entry in step.entries) for step in steps],
        minute=[step.now_us // MINUTE_US for step in steps],
        step_at=[step.now_us for step in steps],
    )
    messages = [
        (of, place, entry, step.now_us, step.now_us)
        for of, step in enumerate(steps)
        for place, entry in enumerate(step.entries)
    ]
    together.update(message_arrays(messages))
    outcomes = [(of, outcome) for of, step in enumerate(steps) for outcome in step.outcomes]
    together.update(
        {f"call_{name}": [getattr(each, name) for _, each in outcomes] for name in Settled.__struct_fields__}
    )
    together["call_of"] = [of for of, _ in outcomes]
    found: dict[int, Row] = {row[0]: row for row in await queries.commit_all.all(connection, together)}
    return [step.made(*found[of][1:]) if of in found else None for of, step in enumerate(steps)]


async def _bare(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    """Commit steps without messages and outcomes; ``None`` where one does not fit, or something else is to be looked at."""
    if len(steps) == 1:
        only = await queries.commit_one_bare.one(connection, steps[0].params())
        return [None if only is None else steps[0].made(only[0], None, False)]
    rows = [step.params() for step in steps]
    together: dict[str, Any] = {name: [row[name] for row in rows] for name in _BARE_COLUMNS}
    together |= {name: omit_default([row[name] for row in rows], usual) for name, usual in _SELDOM.items()}
    together.update(tenant_id=steps[0].tenant, number=[*range(len(steps))], created_at=[step.now_us for step in steps])
    found: dict[int, Row] = {row[0]: row for row in await queries.commit_bare.all(connection, together)}
    return [step.made(found[of][1], None, False) if of in found else None for of, step in enumerate(steps)]


_BARE_COLUMNS = ("run_id", "epoch", "iteration", "state", "fingerprint")
_SELDOM: Mapping[str, Any] = {"last_tool_result": None, "snapshot": None, "input_tokens": 0, "output_tokens": 0}
"""What few steps have, and what the others have in its place."""
_STEP_COLUMNS = (*_BARE_COLUMNS, *_SELDOM, "calls")


def new_step(
    scope: scopes.Scope,
    run_id: str,
    *,
    epoch: int,
    iteration: int,
    state: Any,
    messages: Sequence[NewMessage],
    tool_calls: Sequence[ToolOutcome],
    usage: Usage | None,
    last_tool_result: str | None,
    snapshot: str | None,
    ends: Sequence[Any],
) -> NewStep:
    """A step, checked as a whole before anything is queued. ``ends`` is what else tells it from another.

    Raises:
        InvalidInput: something about it is not acceptable.
        LimitExceeded: something about it is too large.
    """
    limits = scope.limits
    whole_number(iteration, "iteration", minimum=1, maximum=MAX_NUMBER - 1)
    stored = text.dump(state, depth=limits.json_depth)
    limits.check("state_bytes", text.size(stored), "state")
    entries = _entries(scope, messages)
    outcomes = _settled(tool_calls, limits)
    usage = _checked_usage(usage)
    last = None if last_tool_result is None else _result_text(last_tool_result, limits)
    kept = None if snapshot is None else scopes.name(snapshot, "snapshot", limits)
    given = [
        stored,
        # With the token counts that were given: one that was estimated may come out otherwise when the step is repeated.
        [
            [message.id, *astuple(replace(entry, token_count=message.token_count or 0))[1:]]
            for message, entry in zip(messages, entries, strict=True)
        ],
        [astuple(outcome) for outcome in outcomes],
        astuple(usage),
        last,
        kept,
        ends,
    ]
    return NewStep(
        scope.stored_tenant,
        run_id,
        epoch,
        iteration,
        stored,
        entries,
        outcomes,
        usage,
        last,
        kept,
        _fingerprint(given),
        scope.clock.now_us(),
    )


def _fingerprint(given: Any) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(given), digest_size=16).hexdigest()


def _entries(scope: scopes.Scope, messages: object) -> list[LogEntry]:
    new = list_of(NewMessage, messages, "messages")
    scope.limits.check("batch_rows", len(new), "messages")
    entries = [new_entry(scope, *astuple(each)) for each in new]
    if len({entry.id for entry in entries}) < len(entries):
        raise InvalidInput("two messages of one step have the same id")
    return entries


def _settled(outcomes: object, limits: Limits) -> list[Settled]:
    given = list_of(ToolOutcome, outcomes, "tool_calls")
    limits.check("open_tool_calls", len(given), "tool_calls")
    settled = [_stored_outcome(outcome, limits) for outcome in given]
    if len({each.id for each in settled}) < len(settled):
        raise InvalidInput("a step finishes a tool call once")
    return settled


def _stored_outcome(outcome: ToolOutcome, limits: Limits) -> Settled:
    status = outcome.status or ("finished" if outcome.error is None else "failed")
    if status not in get_args(Outcome):
        raise InvalidInput(f"the status of an outcome is one of {', '.join(get_args(Outcome))}, not {status!r}")
    result = None if outcome.result is None else text.dump(outcome.result, depth=limits.json_depth)
    limits.check("tool_result_bytes", 0 if result is None else text.size(result), "result")
    error = None if outcome.error is None else scopes.free_text(outcome.error, "error", limits)
    return Settled(call_id(outcome.id, limits), status, result, error)


def _result_text(value: object, limits: Limits) -> str:
    return scopes.free_text(value, "last_tool_result", limits, limit="tool_result_bytes")


def _checked_usage(usage: object) -> Usage:
    if usage is None:
        return Usage()
    if not isinstance(usage, Usage):
        raise InvalidInput("usage must be a Usage")
    for count in astuple(usage):
        whole_number(count, "a number of tokens", maximum=2**53 - 1)
    return usage


async def find_committed(connection: Connection, step: NewStep, session_id: str) -> tuple[bool, CommittedStep] | None:
    """The step that is there under this run and iteration, and whether it is the same; or ``None``."""
    params = step.params()
    row = await queries.fingerprint.one(connection, params)
    if row is None:
        return None
    fingerprint, epoch, first, last = row
    messages: list[Message] = []
    if first is not None:
        where = {**params, "session_id": session_id, "first_seq": first, "last_seq": last}
        messages = mapper(Message, connection.dialect)(await queries.messages.all(connection, where))
    there = await find_step(connection, params)
    assert there is not None
    return (fingerprint, epoch) == (step.fingerprint, step.epoch), CommittedStep(there, messages)


async def find_step(connection: Connection, params: Mapping[str, Any]) -> Step | None:
    """One step of a run, or ``None``."""
    row = await queries.get.one(connection, params)
    return None if row is None else mapper(Step, connection.dialect)([row])[0]
