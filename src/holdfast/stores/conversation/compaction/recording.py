"""Compactions computed by the caller: record the event, and move the removed messages into the archive.

The caller decides which messages are removed. The event, the archive and the rollback are those of every other compaction.
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
from ..search.index import remove_deleted, requeue
from .commit import insert_summary, needed_elsewhere, number_list
from .events import CompactionEvent, events_of, queries
from .plan import position_of, read_session_rows
from .rollback import check_newest, find_event


class RecordedCompaction(Struct, frozen=True, kw_only=True):
    """A compaction computed by the caller; texts are escaped for storage."""

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


async def record(connection: Connection, scope: Scope, compaction: RecordedCompaction) -> CompactionEvent:
    """Record the event of a compaction and remove its messages, in the open transaction.

    If the session has an event with this id already, return it and change nothing.

    Raises:
        NotFound: the session does not exist or is deleted, or it does not show one of the removed messages.
        Conflict: a compaction of another session has this id.
    """
    params = _params(scope, compaction.session_id, compaction.event_id)
    head = await lock_head(connection, params)
    row = await queries.get.one(connection, params)
    if row is not None:
        event = events_of(connection, [row])[0]
        if event.session_id != compaction.session_id:
            raise Conflict(f"a compaction of another session has the id {event.id} already", reason="id_taken")
        return event
    counts = await queries.counts.one(connection, params)
    assert counts is not None
    messages, tokens = await count_view(connection, params, head.view)
    values = {
        "number": int(counts[1]) + 1,
        "branch": head.branch,
        "strategy": compaction.strategy,
        "original_tokens": tokens if compaction.original_tokens is None else compaction.original_tokens,
        "compacted_tokens": tokens if compaction.compacted_tokens is None else compaction.compacted_tokens,
        "messages_removed": 0,
        "messages_rewritten": 0,
        "summary_content": None if compaction.summary is None else text.escape(compaction.summary),
        "summary_message_id": None,
        "preserved_message_ids": text.dump([*compaction.preserved]),
        "model_used": compaction.model,
        "duration_ms": compaction.duration_ms,
        "block": None,
    }
    row = await queries.create.one(connection, {**params, **values})
    assert row is not None
    event = events_of(connection, [row])[0]
    await _update_session(connection, params, head.view, (messages, tokens), more_compactions=1)
    if not compaction.removed:
        return event
    removal = _MessageRemoval(connection, scope, params, head, event)
    return await removal.run(compaction.removed, compaction.summary_id, recount=compaction.compacted_tokens is None)


async def archive(
    connection: Connection, scope: Scope, event_id: str, ids: Sequence[str], summary_id: str
) -> CompactionEvent:
    """Move messages of a session into the archive of a compaction that was recorded before.

    Raises:
        NotFound: the event does not exist, its session is deleted, or the session does not show one of the messages.
        Conflict: the event was rolled back or is not the newest of the session's current branch, or another branch shows
            the messages.
    """
    event = await find_event(connection, scope, event_id)
    params = _params(scope, event.session_id, event.id)
    head = await lock_head(connection, params)
    event = await find_event(connection, scope, event_id)  # read again under the lock
    await check_newest(connection, params, event, head)
    if not ids:
        return event
    return await _MessageRemoval(connection, scope, params, head, event).run(ids, summary_id, recount=False)


class _MessageRemoval:
    """Removes messages for a recorded compaction, under the session's lock."""

    def __init__(
        self, connection: Connection, scope: Scope, params: dict[str, Any], head: BranchHead, event: CompactionEvent
    ) -> None:
        self._connection, self._scope, self._params = connection, scope, params
        self._head, self._event = head, event

    async def run(self, ids: Sequence[str], summary_id: str, *, recount: bool) -> CompactionEvent:
        positions = await self._positions(ids)
        position_params = {**self._params, "places": number_list(positions, self._connection.dialect)}
        await queries.hold.one(self._connection, position_params)
        block = await self._block(positions)
        no_positions = number_list([], self._connection.dialect)
        await queries.archive.all(self._connection, {**position_params, "rewritten": no_positions})
        view = self._head.view
        if block is None:
            await queries.remove_feedback.all(self._connection, position_params)
            await queries.remove.all(self._connection, position_params)
        else:
            view = views.without(view, positions)
        has_summary = self._event.summary_content is not None and self._event.summary_message_id is None
        if has_summary:
            summary_position = positions[-1] if block is None else views.first_of(block) + views.seq_of(positions[-1])
            view = view if block is None else views.including(view, [summary_position])
            await self._insert_summary(summary_position, summary_id)
        totals = await count_view(self._connection, self._params, view)
        await _update_session(self._connection, self._params, view, totals, more_compactions=0)
        await remove_deleted(self._connection, self._params)
        await requeue(self._connection, self._params, [])
        values = {
            "more_removed": len(positions),
            "summary_message_id": summary_id if has_summary else self._event.summary_message_id,
            "block": block,
            "compacted_tokens": totals[1] if recount else self._event.compacted_tokens,
        }
        row = await queries.file.one(self._connection, {**self._params, **values})
        assert row is not None
        return events_of(self._connection, [row])[0]

    async def _positions(self, ids: Sequence[str]) -> list[int]:
        """Return the positions of the messages, in the order of the log."""
        limits = self._scope.limits
        session_rows = await read_session_rows(self._connection, queries, self._params, self._head, limits)
        rows = session_rows.rows_of(ids)
        missing = set(ids) - {row[0] for row in rows}
        if missing:
            raise NotFound(
                f"session {self._event.session_id} does not show message {min(missing)}; nothing was changed",
                noun="message",
                key=min(missing),
            )
        return [position_of(row) for row in rows]

    async def _block(self, positions: Sequence[int]) -> int | None:
        """Return the block of the event; a new one if another branch uses the messages, so that they must stay in the log.

        Raises:
            Conflict: another branch uses the messages, and the event has removed others from the log already.
        """
        internals = await queries.internals.one(self._connection, self._params)
        assert internals is not None
        block, archived = internals
        if block is not None:
            return int(block)
        if not await needed_elsewhere(self._connection, self._params, self._head, positions):
            return None
        if archived:
            raise Conflict(
                f"another branch shows some of these messages, but not those that compaction {self._event.id} has removed so"
                " far: record another compaction for them",
                reason="other_branch",
            )
        return await take_block(self._connection, self._params)

    async def _insert_summary(self, position: int, summary_id: str) -> None:
        summary = str(self._event.summary_content)
        await insert_summary(self._connection, self._scope, self._params, position, summary_id, summary)


async def _update_session(
    connection: Connection, params: dict[str, Any], view: views.View, totals: tuple[int, int], *, more_compactions: int
) -> None:
    values = {
        "view": views.dump(view),
        "message_count": totals[0],
        "tokens": totals[1],
        "more_compactions": more_compactions,
    }
    await queries.settle.all(connection, {**params, **values})


def _params(scope: Scope, session_id: str, event_id: str) -> dict[str, Any]:
    return scope.params_now(session_id=session_id, id=event_id, event_id=event_id)
