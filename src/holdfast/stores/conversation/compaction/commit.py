"""Carrying out a plan: one transaction that archives, removes, rewrites and puts the summary in its place.

Where nobody else shows what is covered, messages really leave the log and are rewritten where they stand. Where another branch
shows any of it, or a compaction on another branch would need it to be undone, nothing is touched: the summary and rewritten
copies go into a block of their own, and only what this branch shows is changed (``views`` says how). The originals are in the
archive either way.
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
from ..search.index import forget, reconsider
from ..tokens import counter_of, tokens_of
from ..tool_pairs import Pairs, results_in
from .events import CompactionEvent, events_of, queries
from .plan import (
    Plan,
    Snapshot,
    created_at_of,
    entry_of,
    given_tokens,
    id_of,
    kind_of,
    messages_of,
    place_of,
    take_snapshot,
)

SUMMARY_ROLE = "user"
"""The role of a summary: a conversation may begin with a user's message, and with no other."""


class Order(Struct, frozen=True, kw_only=True):
    """A plan to carry out, and what belongs to it. The ids are chosen beforehand, so that it can be tried again.

    ``model`` is in the form that is stored.
    """

    plan: Plan
    event_id: str
    summary: str | None
    summary_id: str
    copy_ids: Sequence[str]
    model: str | None
    started_us: int


class _Accounts(Struct, frozen=True):
    """The numbers before and after."""

    tokens_before: int
    tokens_after: int
    message_count: int
    stored_tokens: int


async def commit(connection: Connection, scope: Scope, order: Order) -> CompactionEvent:
    """Do what a plan says, in the transaction that is open.

    Raises:
        NotFound: there is no such live session.
        Conflict: what it covers is no longer as it was when the plan was made.
        NothingToCompact: the session would not have fewer tokens afterwards.
    """
    plan, now = order.plan, scope.clock.now_us()
    params = scope.params(session_id=plan.session_id, now_at=now, now_minute=now // MINUTE_US)
    head = await lock_head(connection, params)
    there = await queries.get.one(connection, {**params, "id": order.event_id})
    if there is not None:
        return _repeated(events_of(connection, [there])[0], plan)
    snapshot = await take_snapshot(connection, queries, params, head, scope.limits)
    covered = snapshot.rows_of([*plan.removed, *(each.message_id for each in plan.rewritten)])
    if snapshot.fingerprint(covered) != plan.fingerprint:
        raise Conflict(
            f"session {plan.session_id} was compacted, rolled back, switched or changed meanwhile where this compaction"
            " covers it; nothing was changed, plan it again"
        )
    _check_late_results(snapshot, plan, connection)
    accounts = _account(snapshot, covered, order, scope, connection)
    return await _Writing(connection, params, scope, order, head).run(snapshot, covered, accounts)


class _Writing:
    """The writing half of a commit."""

    def __init__(
        self, connection: Connection, params: dict[str, Any], scope: Scope, order: Order, head: BranchHead
    ) -> None:
        self._connection, self._params, self._scope = connection, params, scope
        self._order, self._plan, self._head = order, order.plan, head

    async def run(self, snapshot: Snapshot, covered: Sequence[Row], accounts: _Accounts) -> CompactionEvent:
        removed = [place_of(row) for row in snapshot.rows_of(self._plan.removed)]
        places = [place_of(row) for row in covered]
        rewrites = self._rewrites(covered)
        await queries.hold.one(self._connection, {**self._params, "places": self._listed(places)})
        shared = await needed_elsewhere(self._connection, self._params, self._head, places)
        block = await take_block(self._connection, self._params) if shared else None
        event = await self._event(snapshot, accounts, block)
        await self._archive(places, rewrites)
        view = self._head.view
        summary_place = removed[-1] if removed else 0
        if block is None:
            await self._in_place(removed, rewrites)
        else:
            start = views.first_of(block)
            summary_place = start + views.seq_of(summary_place)
            added = await self._beside(start, rewrites)
            added += [summary_place] if self._order.summary is not None else []
            view = views.including(views.without(view, places), added)
        await self._summarise(summary_place)
        await self._settle(view, accounts)
        await forget(self._connection, self._params)
        await reconsider(
            self._connection, self._params, [] if shared else [each.message_id for each in self._plan.rewritten]
        )
        return event

    def _rewrites(self, covered: Sequence[Row]) -> list[tuple[Row, LogEntry]]:
        """The rows of messages that get another content, and the entries with it."""
        by_id = {id_of(row): row for row in covered}
        found = []
        for each in self._plan.rewritten:
            row = by_id[each.message_id]
            # A plan may come from outside of this process, so its contents are checked like all others.
            content = stored_content(each.content, kind_of(row), self._scope.limits)
            # A message that came without a token count stays without one.
            found.append((row, entry_of(row, content=content, token_count=each.tokens if given_tokens(row) else 0)))
        return found

    async def _event(self, snapshot: Snapshot, accounts: _Accounts, block: int | None) -> CompactionEvent:
        order, plan = self._order, self._plan
        row = await queries.create.one(
            self._connection,
            {
                **self._params,
                "id": order.event_id,
                "number": snapshot.compactions[1] + 1,
                "branch": self._head.branch,
                "strategy": text.escape(plan.strategy),
                "original_tokens": accounts.tokens_before,
                "compacted_tokens": accounts.tokens_after,
                "messages_removed": len(plan.removed),
                "messages_rewritten": len(plan.rewritten),
                "summary_content": None if order.summary is None else text.escape(order.summary),
                "summary_message_id": None if order.summary is None else order.summary_id,
                "preserved_message_ids": text.dump([each.message_id for each in plan.protected]),
                "model_used": order.model,
                "duration_ms": max(0, self._params["now_at"] - order.started_us) // 1000,
                "block": block,
            },
        )
        assert row is not None
        return events_of(self._connection, [row])[0]

    async def _archive(self, places: Sequence[int], rewrites: Sequence[tuple[Row, LogEntry]]) -> None:
        rewritten = [place_of(row) for row, _ in rewrites]
        lists = {"places": self._listed(places), "rewritten": self._listed(rewritten)}
        await queries.archive.all(self._connection, {**self._params, "event_id": self._order.event_id, **lists})

    async def _in_place(self, removed: Sequence[int], rewrites: Sequence[tuple[Row, LogEntry]]) -> None:
        if removed:
            gone = {**self._params, "places": self._listed(removed)}
            await queries.remove_feedback.all(self._connection, gone)
            await queries.remove.all(self._connection, gone)
        now = self._params["now_at"]
        await overwrite(self._connection, self._params, [(place_of(row), entry, now) for row, entry in rewrites])

    async def _beside(self, start: int, rewrites: Sequence[tuple[Row, LogEntry]]) -> list[int]:
        """Insert rewritten copies into a block of their own, which begins at ``start``; their places."""
        now, native = self._params["now_at"], self._connection.dialect.native_time
        copies = [
            (
                start + views.seq_of(place_of(row)),
                structs.replace(entry, id=id),
                to_us(created_at_of(row)) if native else created_at_of(row),
                now,
            )
            for (row, entry), id in zip(rewrites, self._order.copy_ids, strict=False)
        ]
        await insert(self._connection, self._params["tenant_id"], self._params["session_id"], copies)
        return [place for place, *_ in copies]

    async def _summarise(self, place: int) -> None:
        order = self._order
        if order.summary is None:
            return
        await insert_summary(self._connection, self._scope, self._params, place, order.summary_id, order.summary)

    async def _settle(self, view: views.View, accounts: _Accounts) -> None:
        settled = {
            "view": views.dump(view),
            "message_count": accounts.message_count,
            "tokens": accounts.stored_tokens,
            "more_compactions": 1,
        }
        await queries.settle.all(self._connection, {**self._params, **settled})

    def _listed(self, places: Sequence[int]) -> Any:
        return number_list(places, self._connection.dialect)


async def insert_summary(
    connection: Connection, scope: Scope, params: Mapping[str, Any], place: int, id: str, summary: str
) -> None:
    """Insert the message that stands for what a compaction took out."""
    content, now = summary_content(summary), params["now_at"]
    entry = LogEntry(id, "message", SUMMARY_ROLE, text.dump(content), counter_of(scope)(content), "{}", False, True)
    await insert(connection, params["tenant_id"], params["session_id"], [(place, entry, now, now)])


async def overwrite(
    connection: Connection, params: Mapping[str, Any], messages: Sequence[tuple[int, LogEntry, int]]
) -> None:
    """Replace messages at their places. Each comes with the time in microseconds when it was updated."""
    if messages:
        rows = [{**params, "seq": place, **structs.asdict(entry), "updated_at": at} for place, entry, at in messages]
        await queries.overwrite.many(connection, rows)


def summary_content(summary: str) -> list[dict[str, str]]:
    """The content of the message that a summary becomes."""
    return [{"type": "text", "text": summary}]


def number_list(numbers: Sequence[int], dialect: Dialect) -> Any:
    """Numbers as the one argument that a query takes."""
    return _json(numbers) if dialect is Dialect.SQLITE else list(numbers)


async def needed_elsewhere(
    connection: Connection, params: dict[str, Any], head: BranchHead, places: Sequence[int]
) -> bool:
    """Whether another branch shows one of these places, or would need it to undo a compaction of its own."""
    if head.blocks == 1 or not places:
        return False
    for view in await other_views(connection, params, head.branch):
        if any(views.shows(view, place) for place in places):
            return True
    asked = {**params, "branch": head.branch, "places": number_list(places, connection.dialect)}
    return await queries.needed.one(connection, asked) is not None


def _repeated(there: CompactionEvent, plan: Plan) -> CompactionEvent:
    if there.session_id != plan.session_id:
        raise Conflict(f"there is a compaction of another session with the id {there.id}")
    return there


def _check_late_results(snapshot: Snapshot, plan: Plan, connection: Connection) -> None:
    """Refuse to remove a call for which something was appended since the plan was made."""
    late = messages_of([row for row in snapshot.rows if views.seq_of(place_of(row)) > plan.last_seq], connection)
    if not any(map(results_in, late)):
        return
    if Pairs(snapshot.messages(connection)).bound_to(each.id for each in late) & set(plan.removed):
        raise Conflict("a tool call that this compaction covers got another result meanwhile; plan it again")


def _account(
    snapshot: Snapshot, covered: Sequence[Row], order: Order, scope: Scope, connection: Connection
) -> _Accounts:
    """Everything counted anew, what was appended since the plan was made included.

    Raises:
        NothingToCompact: there would not be fewer tokens.
    """
    plan, count = order.plan, counter_of(scope)
    gone = {id_of(row) for row in covered}
    staying = [row for row in snapshot.rows if id_of(row) not in gone]
    uncounted = messages_of([row for row in staying if not given_tokens(row)], connection)
    stored = sum(map(given_tokens, staying))
    before = stored + sum(tokens_of(each, count) for each in uncounted) + plan.covered_tokens
    added = 0 if order.summary is None else count(summary_content(order.summary))
    if added >= plan.saved_tokens:
        raise NothingToCompact(
            f"the summary has {added:,} tokens, and what it would stand for has {plan.saved_tokens:,}: nothing was changed"
        )
    counted = {id_of(row) for row in covered if given_tokens(row)}
    rewritten = sum(each.tokens for each in plan.rewritten if each.message_id in counted)
    return _Accounts(
        tokens_before=before,
        tokens_after=before - plan.saved_tokens + added,
        message_count=len(snapshot.rows) - len(plan.removed) + (order.summary is not None),
        stored_tokens=stored + rewritten + added,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
