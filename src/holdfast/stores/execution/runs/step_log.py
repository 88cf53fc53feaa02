"""Commits steps: state, messages, outcomes of tool calls and usage together, or nothing.

Steps are a group (see ``engines.protocol.Group``): the queued steps of one tenant are written together. On PostgreSQL
that is one statement; on SQLite it is one statement per table, inside the writer's shared commit. This path handles only the
plain case: the next step of a run that the caller holds. Every other step raises ``NeedsTransaction`` and is repeated in a
transaction.
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
from ....errors import InvalidInput
from ....ids import Id
from ....limits import Limits
from ...conversation import message_log
from ...conversation.message_log import Append, LogEntry, Message, append_at, append_result, message_arrays
from ...conversation.new_entries import NewMessage, new_entry
from ...conversation.views import LAST
from . import ledger
from .ledger import NeedsTransaction, Outcome, ToolOutcome, call_id
from .states import run_not_found


class Step(Struct, frozen=True):
    """One committed iteration of a run.

    ``first_seq`` and ``last_seq`` are the positions of its messages in the session's log; ``None`` if it has no messages.
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
    """The model tokens that a step has used."""

    input_tokens: int = 0
    output_tokens: int = 0


class CommittedStep(Struct, frozen=True):
    """The result of a step: the step, its messages, and whether the session's policy makes a compaction due."""

    step: Step
    messages: list[Message]
    compaction_due: bool = False


queries = Queries(__package__, "steps.sql", Step, Message, parts=message_log.queries)


class StoredOutcome(Struct, frozen=True, gc=False):
    """The outcome of a tool call, validated and in its stored form."""

    id: str
    status: str
    result: str | None
    error: str | None


class NewStep(Struct, frozen=True, gc=False):
    """A step that is validated and in its stored form."""

    tenant: str
    run_id: str
    epoch: int
    iteration: int
    state: str
    entries: Sequence[LogEntry]
    outcomes: Sequence[StoredOutcome]
    usage: Usage
    last_tool_result: str | None
    snapshot: str | None
    fingerprint: str
    now_us: int

    def params(self) -> dict[str, Any]:
        """Return the step as the parameters of the statements that write it."""
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

    def to_committed(self, session_id: str, first_seq: int | None, is_due: bool) -> CommittedStep:
        """Return the step as stored, with its first message at position ``first_seq``."""
        messages: list[Message] = []
        if first_seq is not None and self.entries:
            append = Append(self.tenant, session_id, self.entries, self.now_us)
            messages = append_result(append, (first_seq, is_due)).messages
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
        return CommittedStep(step, messages, bool(is_due))


class StepGroup:
    """Steps of one tenant that are written together."""

    mixes_keys = False

    def key(self, item: NewStep) -> object:
        return item.tenant

    def id_of(self, item: NewStep) -> str:
        return item.run_id

    async def run(
        self, connection: Connection, items: Sequence[NewStep], *, careful: bool
    ) -> Sequence[CommittedStep | Exception]:
        if careful:  # a message, or the step itself, exists already
            return [NeedsTransaction() for _ in items]
        is_bare = in_one_statement(connection) and not any(item.entries or item.outcomes for item in items)
        write = _write_bare if is_bare else write_steps
        async with in_one_commit(connection):
            return [NeedsTransaction() if step is None else step for step in await write(connection, items)]


step_group = StepGroup()


async def write_steps(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    """Commit the steps that fit; ``None`` where one does not fit.

    Raises:
        AlreadyExists: a message with one of the ids exists.
        NotFound: the session of one was deleted concurrently.
    """
    if in_one_statement(connection):
        return await _write_in_one_statement(connection, steps)
    return [await _write_statement_by_statement(connection, step) for step in steps]


async def _write_statement_by_statement(connection: Connection, step: NewStep) -> CommittedStep | None:
    params = step.params()
    # The ids are already in their stored form, and must not be escaped twice.
    calls = [outcome.id for outcome in step.outcomes]
    params["call_ids"] = calls if connection.dialect is Dialect.POSTGRES else msgspec.json.encode(calls).decode()
    row = await queries.advance_run.one(connection, params)
    if row is None:
        return None
    session_id, appended_at = row[0], None
    if step.entries:
        appended_at = await append_at(connection, Append(step.tenant, session_id, step.entries, step.now_us))
        if appended_at is None:  # the session was deleted after the guard; the transaction is rolled back
            raise run_not_found(step.run_id)
    params["first_seq"] = None if appended_at is None else appended_at[0]
    params["last_seq"] = None if appended_at is None else appended_at[0] + len(step.entries) - 1
    await queries.insert_step.one(connection, params)
    if step.outcomes:
        rows = [{**params, **_outcome_params(outcome)} for outcome in step.outcomes]
        await ledger.queries.settle_call.many(connection, rows)
    if row[1]:
        await ledger.queries.take_in_calls.all(connection, params)
    return step.to_committed(session_id, *((None, False) if appended_at is None else appended_at[:2]))


def _outcome_params(outcome: StoredOutcome) -> dict[str, Any]:
    return {"id": outcome.id, "status": outcome.status, "result": outcome.result, "error": outcome.error}


async def _write_in_one_statement(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    rows = [step.params() for step in steps]
    arrays: dict[str, Any] = {name: [row[name] for row in rows] for name in _STEP_COLUMNS}
    arrays.update(
        tenant_id=steps[0].tenant,
        number=[*range(len(steps))],
        rows=[len(step.entries) for step in steps],
        tokens=[sum(entry.token_count for entry in step.entries) for step in steps],
        minute=[step.now_us // MINUTE_US for step in steps],
        step_at=[step.now_us for step in steps],
    )
    messages = [
        (number, offset, entry, step.now_us, step.now_us)
        for number, step in enumerate(steps)
        for offset, entry in enumerate(step.entries)
    ]
    arrays.update(message_arrays(messages))
    outcomes = [(number, outcome) for number, step in enumerate(steps) for outcome in step.outcomes]
    arrays.update(
        {
            f"call_{name}": [getattr(outcome, name) for _, outcome in outcomes]
            for name in StoredOutcome.__struct_fields__
        }
    )
    arrays["call_of"] = [number for number, _ in outcomes]
    committed: dict[int, Row] = {row[0]: row for row in await queries.commit_all.all(connection, arrays)}
    return [
        step.to_committed(*committed[number][1:]) if number in committed else None for number, step in enumerate(steps)
    ]


async def _write_bare(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    """Commit steps without messages and outcomes; ``None`` where one does not fit or needs the full statement."""
    if len(steps) == 1:
        session = await queries.commit_one_bare.one(connection, steps[0].params())
        return [None if session is None else steps[0].to_committed(session[0], None, False)]
    rows = [step.params() for step in steps]
    arrays: dict[str, Any] = {name: [row[name] for row in rows] for name in _BARE_COLUMNS}
    arrays |= {name: omit_default([row[name] for row in rows], default) for name, default in _RARE_COLUMNS.items()}
    arrays.update(tenant_id=steps[0].tenant, number=[*range(len(steps))], created_at=[step.now_us for step in steps])
    committed: dict[int, Row] = {row[0]: row for row in await queries.commit_bare.all(connection, arrays)}
    return [
        step.to_committed(committed[number][1], None, False) if number in committed else None
        for number, step in enumerate(steps)
    ]


_BARE_COLUMNS = ("run_id", "epoch", "iteration", "state", "fingerprint")
_RARE_COLUMNS: Mapping[str, Any] = {"last_tool_result": None, "snapshot": None, "input_tokens": 0, "output_tokens": 0}
"""Columns that most steps leave at their default, and these defaults."""
_STEP_COLUMNS = (*_BARE_COLUMNS, *_RARE_COLUMNS, "calls")


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
    exit: Sequence[Any],
) -> NewStep:
    """Validate a whole step before it is queued. ``exit`` contains further values that identify the step.

    Raises:
        InvalidInput: an argument is invalid.
        LimitExceeded: an argument is too large.
    """
    limits = scope.limits
    whole_number(iteration, "iteration", minimum=1, maximum=MAX_NUMBER - 1)
    encoded_state = text.dump(state, depth=limits.json_depth)
    limits.check("state_bytes", text.size(encoded_state), "state")
    entries = _entries(scope, messages)
    outcomes = _stored_outcomes(tool_calls, limits)
    usage = _validate_usage(usage)
    last_result = None if last_tool_result is None else _result_text(last_tool_result, limits)
    snapshot_id = None if snapshot is None else scopes.name(snapshot, "snapshot", limits)
    content = [
        encoded_state,
        # With the caller's token counts: an estimated count may differ when the step is repeated.
        [
            [message.id, *astuple(replace(entry, token_count=message.token_count or 0))[1:]]
            for message, entry in zip(messages, entries, strict=True)
        ],
        [astuple(outcome) for outcome in outcomes],
        astuple(usage),
        last_result,
        snapshot_id,
        exit,
    ]
    return NewStep(
        scope.stored_tenant,
        run_id,
        epoch,
        iteration,
        encoded_state,
        entries,
        outcomes,
        usage,
        last_result,
        snapshot_id,
        _fingerprint(content),
        scope.clock.now_us(),
    )


def _fingerprint(content: Any) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).hexdigest()


def _entries(scope: scopes.Scope, messages: object) -> list[LogEntry]:
    new = list_of(NewMessage, messages, "messages")
    scope.limits.check("batch_rows", len(new), "messages")
    entries = [new_entry(scope, *astuple(message)) for message in new]
    if len({entry.id for entry in entries}) < len(entries):
        raise InvalidInput("two messages of one step have the same id", field="messages")
    return entries


def _stored_outcomes(tool_calls: object, limits: Limits) -> list[StoredOutcome]:
    outcomes = list_of(ToolOutcome, tool_calls, "tool_calls")
    limits.check("open_tool_calls", len(outcomes), "tool_calls")
    validated = [_stored_outcome(outcome, limits) for outcome in outcomes]
    if len({outcome.id for outcome in validated}) < len(validated):
        raise InvalidInput("a step has two outcomes of one tool call", field="tool_calls")
    return validated


def _stored_outcome(outcome: ToolOutcome, limits: Limits) -> StoredOutcome:
    status = outcome.status or ("finished" if outcome.error is None else "failed")
    if status not in get_args(Outcome):
        message = f"the status of an outcome must be one of {', '.join(get_args(Outcome))}, not {status!r}"
        raise InvalidInput(message, field="status")
    result = None if outcome.result is None else text.dump(outcome.result, depth=limits.json_depth)
    limits.check("tool_result_bytes", 0 if result is None else text.size(result), "result")
    error = None if outcome.error is None else scopes.free_text(outcome.error, "error", limits)
    return StoredOutcome(call_id(outcome.id, limits), status, result, error)


def _result_text(value: object, limits: Limits) -> str:
    return scopes.free_text(value, "last_tool_result", limits, limit="tool_result_bytes")


def _validate_usage(usage: object) -> Usage:
    if usage is None:
        return Usage()
    if not isinstance(usage, Usage):
        raise InvalidInput(f"usage must be a Usage, not {usage!r}", field="usage")
    for count in astuple(usage):
        whole_number(count, "a number of tokens", maximum=2**53 - 1)
    return usage


async def find_committed(connection: Connection, step: NewStep, session_id: str) -> tuple[bool, CommittedStep] | None:
    """Return the step committed for this run and iteration, and whether it is the same step; or ``None``."""
    params = step.params()
    row = await queries.fingerprint.one(connection, params)
    if row is None:
        return None
    fingerprint, epoch, first, last = row
    messages: list[Message] = []
    if first is not None:
        where = {**params, "session_id": session_id, "first_seq": first, "last_seq": last}
        messages = mapper(Message, connection.dialect)(await queries.messages.all(connection, where))
    committed = await find_step(connection, params)
    assert committed is not None
    return (fingerprint, epoch) == (step.fingerprint, step.epoch), CommittedStep(committed, messages)


async def find_step(connection: Connection, params: Mapping[str, Any]) -> Step | None:
    """Return one step of a run, or ``None``."""
    row = await queries.get.one(connection, params)
    return None if row is None else mapper(Step, connection.dialect)([row])[0]
