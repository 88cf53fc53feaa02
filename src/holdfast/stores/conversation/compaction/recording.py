"""Compactions that a program did by itself: the event is kept, and the messages it took out go into the archive.

What goes is the caller's decision. What is kept of it, and how it is rolled back, is the same as for every other compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ....core import text
from ....core.scope import Scope
from ....engines.protocol import Connection
from ....errors import Conflict, NotFound
from .. import views
from ..branches import BranchHead, lock_head, take_block
from ..log_reading import count_view
from ..search.index import forget, reconsider
from .commit import insert_summary, needed_elsewhere, number_list
from .events import CompactionEvent, events_of, queries
from .plan import place_of, take_snapshot
from .rollback import check_newest, find_event


class Record(Struct, frozen=True, kw_only=True):
    """What a program says about its compaction; texts are in the form that is stored."""

    session_id: str
    event_id: str
    strategy: str
    removed: Sequence[str]
    summary: str | None
    summary_id: str
    preserved: Sequence[str]
    model: str | None
    duration_ms: int
    original_tokens: int | None
    compacted_tokens: int | None


async def record(connection: Connection, scope: Scope, given: Record) -> CompactionEvent:
    """Keep the event of a compaction, and take out what it removed, in the transaction that is open.

    Raises:
        NotFound: there is no such live session, or it does not show a message that was removed.
        Conflict: there is a compaction of another session with this id.
    """
    params = _params(scope, given.session_id, given.event_id)
    head = await lock_head(connection, params)
    there = await queries.get.one(connection, params)
    if there is not None:
        event = events_of(connection, [there])[0]
        if event.session_id != given.session_id:
            raise Conflict(f"there is a compaction of another session with the id {event.id}")
        return event
    counts = await queries.counts.one(connection, params)
    assert counts is not None
    messages, tokens = await count_view(connection, params, head.view)
    new = {
        "number": int(counts[1]) + 1,
        "branch": head.branch,
        "strategy": given.strategy,
        "original_tokens": tokens if given.original_tokens is None else given.original_tokens,
        "compacted_tokens": tokens if given.compacted_tokens is None else given.compacted_tokens,
        "messages_removed": 0,
        "messages_rewritten": 0,
        "summary_content": None if given.summary is None else text.escape(given.summary),
        "summary_message_id": None,
        "preserved_message_ids": text.dump([*given.preserved]),
        "model_used": given.model,
        "duration_ms": given.duration_ms,
        "block": None,
    }
    row = await queries.create.one(connection, {**params, **new})
    assert row is not None
    event = events_of(connection, [row])[0]
    await _settle(connection, params, head.view, (messages, tokens), more_compactions=1)
    if not given.removed:
        return event
    taking = _Taking(connection, scope, params, head, event)
    return await taking.run(given.removed, given.summary_id, recount=given.compacted_tokens is None)


async def archive(
    connection: Connection, scope: Scope, event_id: str, ids: Sequence[str], summary_id: str
) -> CompactionEvent:
    """Take messages out of a session, into the archive of a compaction that was recorded before.

    Raises:
        NotFound: there is no such event of a live session, or the session does not show one of the messages.
        Conflict: the event was rolled back or is not the newest of the branch that is shown, or another branch shows the
            messages.
    """
    event = await find_event(connection, scope, event_id)
    params = _params(scope, event.session_id, event.id)
    head = await lock_head(connection, params)
    event = await find_event(connection, scope, event_id)  # as it is now that nobody else can change it
    await check_newest(connection, params, event, head)
    if not ids:
        return event
    return await _Taking(connection, scope, params, head, event).run(ids, summary_id, recount=False)


class _Taking:
    """Taking messages out for a compaction that is recorded, under the session's lock."""

    def __init__(
        self, connection: Connection, scope: Scope, params: dict[str, Any], head: BranchHead, event: CompactionEvent
    ) -> None:
        self._connection, self._scope, self._params = connection, scope, params
        self._head, self._event = head, event

    async def run(self, ids: Sequence[str], summary_id: str, *, recount: bool) -> CompactionEvent:
        places = await self._places(ids)
        listed = {**self._params, "places": number_list(places, self._connection.dialect)}
        await queries.hold.one(self._connection, listed)
        block = await self._block(places)
        none = number_list([], self._connection.dialect)
        await queries.archive.all(self._connection, {**listed, "rewritten": none})
        view = self._head.view
        if block is None:
            await queries.remove_feedback.all(self._connection, listed)
            await queries.remove.all(self._connection, listed)
        else:
            view = views.without(view, places)
        has_summary = self._event.summary_content is not None and self._event.summary_message_id is None
        if has_summary:
            place = places[-1] if block is None else views.first_of(block) + views.seq_of(places[-1])
            view = view if block is None else views.including(view, [place])
            await self._summarise(place, summary_id)
        counted = await count_view(self._connection, self._params, view)
        await _settle(self._connection, self._params, view, counted, more_compactions=0)
        await forget(self._connection, self._params)
        await reconsider(self._connection, self._params, [])
        filed = {
            "more_removed": len(places),
            "summary_message_id": summary_id if has_summary else self._event.summary_message_id,
            "block": block,
            "compacted_tokens": counted[1] if recount else self._event.compacted_tokens,
        }
        row = await queries.file.one(self._connection, {**self._params, **filed})
        assert row is not None
        return events_of(self._connection, [row])[0]

    async def _places(self, ids: Sequence[str]) -> list[int]:
        """Where the messages stand, in the order of the log."""
        limits = self._scope.limits
        snapshot = await take_snapshot(self._connection, queries, self._params, self._head, limits)
        rows = snapshot.rows_of(ids)
        missing = set(ids) - {row[0] for row in rows}
        if missing:
            raise NotFound(f"session {self._event.session_id} shows no message {min(missing)}; nothing was changed")
        return [place_of(row) for row in rows]

    async def _block(self, places: Sequence[int]) -> int | None:
        """The block of the event: one of its own where another branch shows any of the messages, so that they stay in the log."""
        internals = await queries.internals.one(self._connection, self._params)
        assert internals is not None
        block, archived = internals
        if block is not None:
            return int(block)
        if not await needed_elsewhere(self._connection, self._params, self._head, places):
            return None
        if archived:
            raise Conflict(
                f"another branch shows some of these messages, and what compaction {self._event.id} took out so far is in no"
                " other branch: record another compaction for them"
            )
        return await take_block(self._connection, self._params)

    async def _summarise(self, place: int, summary_id: str) -> None:
        summary = str(self._event.summary_content)
        await insert_summary(self._connection, self._scope, self._params, place, summary_id, summary)


async def _settle(
    connection: Connection, params: dict[str, Any], view: views.View, counted: tuple[int, int], *, more_compactions: int
) -> None:
    settled = {
        "view": views.dump(view),
        "message_count": counted[0],
        "tokens": counted[1],
        "more_compactions": more_compactions,
    }
    await queries.settle.all(connection, {**params, **settled})


def _params(scope: Scope, session_id: str, event_id: str) -> dict[str, Any]:
    return scope.params_now(session_id=session_id, id=event_id, event_id=event_id)
