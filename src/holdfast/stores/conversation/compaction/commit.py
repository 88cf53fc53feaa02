"""Execution of a compaction plan: one transaction archives and removes messages, rewrites others and inserts the summary.

If no other branch uses the covered messages, they are deleted from the log and rewritten in place. If another branch shows one
of them, or a compaction on another branch would need one for its rollback, the log rows stay unchanged: the summary and the
rewritten copies go into a new block, and only this branch's view changes (see ``views``). The originals are archived in both
cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from ....clock import MINUTE_US, to_us
from ....core import text
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Row
from ....errors import Conflict, NothingToCompact
from .. import views
from ..branches import BranchHead, lock_head, other_views, take_block
from ..contents import stored_content
from ..message_log import LogEntry, insert
from ..search.index import remove_deleted, requeue
from ..tokens import counter_of, tokens_of
from ..tool_pairs import Pairs, results_in
from .events import CompactionEvent, events_of, queries
from .plan import (
    CompactionPlan,
    SessionRows,
    created_at_of,
    entry_of,
    id_of,
    kind_of,
    messages_of,
    position_of,
    read_session_rows,
    stored_tokens_of,
)

SUMMARY_ROLE = "user"
"""The role of a summary message: a conversation may only begin with a message of this role."""


class CommitRequest(Struct, frozen=True, kw_only=True):
    """A plan to execute with its summary. The ids are chosen beforehand, so that the commit can be retried.

    ``model`` is escaped for storage.
    """

    plan: CompactionPlan
    event_id: str
    summary: str | None
    summary_id: str
    copy_ids: Sequence[str]
    model: str | None
    started_us: int


class _TokenTotals(Struct, frozen=True):
    """Tokens before and after the compaction, and the counts that the session row gets."""

    tokens_before: int
    tokens_after: int
    message_count: int
    stored_tokens: int


async def commit(connection: Connection, scope: Scope, request: CommitRequest) -> CompactionEvent:
    """Execute a plan in the open transaction.

    If an event with this id exists already, return it and change nothing.

    Raises:
        NotFound: the session does not exist or is deleted.
        Conflict: a covered message, the branch or the compactions changed after the plan was made.
        NothingToCompact: the session would not have fewer tokens afterwards.
    """
    plan, now = request.plan, scope.clock.now_us()
    params = scope.params(session_id=plan.session_id, now_at=now, now_minute=now // MINUTE_US)
    head = await lock_head(connection, params)
    row = await queries.get.one(connection, {**params, "id": request.event_id})
    if row is not None:
        return _check_same_session(events_of(connection, [row])[0], plan)
    session_rows = await read_session_rows(connection, queries, params, head, scope.limits)
    covered = session_rows.rows_of([*plan.removed, *(rewritten.message_id for rewritten in plan.rewritten)])
    if session_rows.fingerprint(covered) != plan.fingerprint:
        raise Conflict(
            f"session {plan.session_id} was compacted, rolled back or switched, or a covered message was changed, after"
            " the plan was made; nothing was changed, make a new plan",
            reason="plan_outdated",
        )
    _check_late_results(session_rows, plan, connection)
    totals = _count_totals(session_rows, covered, request, scope, connection)
    return await _CommitWriter(connection, params, scope, request, head).run(session_rows, covered, totals)


class _CommitWriter:
    """Writes one compaction, under the session's lock."""

    def __init__(
        self, connection: Connection, params: dict[str, Any], scope: Scope, request: CommitRequest, head: BranchHead
    ) -> None:
        self._connection, self._params, self._scope = connection, params, scope
        self._request, self._plan, self._head = request, request.plan, head

    async def run(self, session_rows: SessionRows, covered: Sequence[Row], totals: _TokenTotals) -> CompactionEvent:
        removed = [position_of(row) for row in session_rows.rows_of(self._plan.removed)]
        positions = [position_of(row) for row in covered]
        rewrites = self._rewritten_entries(covered)
        await queries.hold.one(self._connection, {**self._params, "places": self._position_list(positions)})
        shared = await needed_elsewhere(self._connection, self._params, self._head, positions)
        block = await take_block(self._connection, self._params) if shared else None
        event = await self._create_event(session_rows, totals, block)
        await self._archive(positions, rewrites)
        view = self._head.view
        summary_position = removed[-1] if removed else 0
        if block is None:
            await self._change_in_place(removed, rewrites)
        else:
            start = views.first_of(block)
            summary_position = start + views.seq_of(summary_position)
            new_positions = await self._insert_copies(start, rewrites)
            new_positions += [summary_position] if self._request.summary is not None else []
            view = views.including(views.without(view, positions), new_positions)
        await self._insert_summary(summary_position)
        await self._update_session(view, totals)
        await remove_deleted(self._connection, self._params)
        await requeue(
            self._connection,
            self._params,
            [] if shared else [rewritten.message_id for rewritten in self._plan.rewritten],
        )
        return event

    def _rewritten_entries(self, covered: Sequence[Row]) -> list[tuple[Row, LogEntry]]:
        """Return the rows of rewritten messages, each with its new entry."""
        by_id = {id_of(row): row for row in covered}
        entries = []
        for rewritten in self._plan.rewritten:
            row = by_id[rewritten.message_id]
            # A plan may come from another process, so its contents are checked like those of an append.
            content = stored_content(rewritten.content, kind_of(row), self._scope.limits)
            # A message that was appended without a token count stays without one.
            entries.append(
                (row, entry_of(row, content=content, token_count=rewritten.tokens if stored_tokens_of(row) else 0))
            )
        return entries

    async def _create_event(
        self, session_rows: SessionRows, totals: _TokenTotals, block: int | None
    ) -> CompactionEvent:
        request, plan = self._request, self._plan
        row = await queries.create.one(
            self._connection,
            {
                **self._params,
                "id": request.event_id,
                "number": session_rows.compactions[1] + 1,
                "branch": self._head.branch,
                "strategy": text.escape(plan.strategy),
                "original_tokens": totals.tokens_before,
                "compacted_tokens": totals.tokens_after,
                "messages_removed": len(plan.removed),
                "messages_rewritten": len(plan.rewritten),
                "summary_content": None if request.summary is None else text.escape(request.summary),
                "summary_message_id": None if request.summary is None else request.summary_id,
                "preserved_message_ids": text.dump([message.message_id for message in plan.protected]),
                "model_used": request.model,
                "duration_ms": max(0, self._params["now_at"] - request.started_us) // 1000,
                "block": block,
            },
        )
        assert row is not None
        return events_of(self._connection, [row])[0]

    async def _archive(self, positions: Sequence[int], rewrites: Sequence[tuple[Row, LogEntry]]) -> None:
        rewritten = [position_of(row) for row, _ in rewrites]
        lists = {"places": self._position_list(positions), "rewritten": self._position_list(rewritten)}
        await queries.archive.all(self._connection, {**self._params, "event_id": self._request.event_id, **lists})

    async def _change_in_place(self, removed: Sequence[int], rewrites: Sequence[tuple[Row, LogEntry]]) -> None:
        if removed:
            removed_params = {**self._params, "places": self._position_list(removed)}
            await queries.remove_feedback.all(self._connection, removed_params)
            await queries.remove.all(self._connection, removed_params)
        now = self._params["now_at"]
        await overwrite(self._connection, self._params, [(position_of(row), entry, now) for row, entry in rewrites])

    async def _insert_copies(self, start: int, rewrites: Sequence[tuple[Row, LogEntry]]) -> list[int]:
        """Insert rewritten copies into the block that begins at ``start``, and return their positions."""
        now, native = self._params["now_at"], self._connection.dialect.native_time
        copies = [
            (
                start + views.seq_of(position_of(row)),
                structs.replace(entry, id=id),
                to_us(created_at_of(row)) if native else created_at_of(row),
                now,
            )
            for (row, entry), id in zip(rewrites, self._request.copy_ids, strict=False)
        ]
        await insert(self._connection, self._params["tenant_id"], self._params["session_id"], copies)
        return [position for position, *_ in copies]

    async def _insert_summary(self, position: int) -> None:
        request = self._request
        if request.summary is None:
            return
        await insert_summary(self._connection, self._scope, self._params, position, request.summary_id, request.summary)

    async def _update_session(self, view: views.View, totals: _TokenTotals) -> None:
        values = {
            "view": views.dump(view),
            "message_count": totals.message_count,
            "tokens": totals.stored_tokens,
            "more_compactions": 1,
        }
        await queries.settle.all(self._connection, {**self._params, **values})

    def _position_list(self, positions: Sequence[int]) -> Any:
        return number_list(positions, self._connection.dialect)


async def insert_summary(
    connection: Connection, scope: Scope, params: Mapping[str, Any], position: int, id: str, summary: str
) -> None:
    """Insert the summary message of a compaction."""
    content, now = summary_content(summary), params["now_at"]
    entry = LogEntry(id, "message", SUMMARY_ROLE, text.dump(content), counter_of(scope)(content), "{}", False, True)
    await insert(connection, params["tenant_id"], params["session_id"], [(position, entry, now, now)])


async def overwrite(
    connection: Connection, params: Mapping[str, Any], messages: Sequence[tuple[int, LogEntry, int]]
) -> None:
    """Overwrite messages at their positions. Each entry comes with its ``updated_at`` in microseconds."""
    if messages:
        rows = [
            {**params, "seq": position, **structs.asdict(entry), "updated_at": updated_us}
            for position, entry, updated_us in messages
        ]
        await queries.overwrite.many(connection, rows)


def summary_content(summary: str) -> list[dict[str, str]]:
    """Return the content of the summary message."""
    return [{"type": "text", "text": summary}]


def number_list(numbers: Sequence[int], dialect: Dialect) -> Any:
    """Return numbers as one query parameter."""
    return _json(numbers) if dialect is Dialect.SQLITE else list(numbers)


async def needed_elsewhere(
    connection: Connection, params: dict[str, Any], head: BranchHead, positions: Sequence[int]
) -> bool:
    """Return whether another branch shows one of these positions, or would need it to roll back a compaction."""
    if head.blocks == 1 or not positions:
        return False
    for view in await other_views(connection, params, head.branch):
        if any(views.shows(view, position) for position in positions):
            return True
    needed_params = {**params, "branch": head.branch, "places": number_list(positions, connection.dialect)}
    return await queries.needed.one(connection, needed_params) is not None


def _check_same_session(event: CompactionEvent, plan: CompactionPlan) -> CompactionEvent:
    if event.session_id != plan.session_id:
        raise Conflict(f"a compaction of another session has the id {event.id} already", reason="id_taken")
    return event


def _check_late_results(session_rows: SessionRows, plan: CompactionPlan, connection: Connection) -> None:
    """Raise if the plan removes a tool call whose result was appended after the plan was made."""
    late_messages = messages_of(
        [row for row in session_rows.rows if views.seq_of(position_of(row)) > plan.last_seq], connection
    )
    if not any(map(results_in, late_messages)):
        return
    if Pairs(session_rows.messages(connection)).bound_to(message.id for message in late_messages) & set(plan.removed):
        raise Conflict(
            f"a tool call that this compaction of session {plan.session_id} removes got a result after the plan was made;"
            " make a new plan",
            reason="plan_outdated",
        )


def _count_totals(
    session_rows: SessionRows, covered: Sequence[Row], request: CommitRequest, scope: Scope, connection: Connection
) -> _TokenTotals:
    """Count tokens and messages before and after, including messages appended after the plan was made.

    Raises:
        NothingToCompact: the session would not have fewer tokens.
    """
    plan, count = request.plan, counter_of(scope)
    covered_ids = {id_of(row) for row in covered}
    staying = [row for row in session_rows.rows if id_of(row) not in covered_ids]
    uncounted = messages_of([row for row in staying if not stored_tokens_of(row)], connection)
    stored_tokens = sum(map(stored_tokens_of, staying))
    before = stored_tokens + sum(tokens_of(message, count) for message in uncounted) + plan.covered_tokens
    summary_tokens = 0 if request.summary is None else count(summary_content(request.summary))
    if summary_tokens >= plan.saved_tokens:
        raise NothingToCompact(
            f"the summary has {summary_tokens:,} tokens and would only save {plan.saved_tokens:,}; nothing was changed",
            reason="summary_too_large",
        )
    counted_ids = {id_of(row) for row in covered if stored_tokens_of(row)}
    rewritten = sum(message.tokens for message in plan.rewritten if message.message_id in counted_ids)
    return _TokenTotals(
        tokens_before=before,
        tokens_after=before - plan.saved_tokens + summary_tokens,
        message_count=len(session_rows.rows) - len(plan.removed) + (request.summary is not None),
        stored_tokens=stored_tokens + rewritten + summary_tokens,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
