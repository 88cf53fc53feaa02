"""Rollback of a compaction: restore all removed and rewritten messages; messages appended since then stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from ....core.scope import Scope
from ....engines.protocol import Connection, Row
from ....errors import Conflict, NotFound
from .. import originals, views
from ..branches import BranchHead, lock_head, take_block
from ..log_reading import count_view
from ..originals import Original
from ..search.index import remove_deleted, requeue
from ..views import View
from .commit import needed_elsewhere, number_list, overwrite
from .events import CompactionEvent, events_of, queries


async def roll_back(connection: Connection, scope: Scope, event_id: str) -> CompactionEvent:
    """Roll back a compaction in the open transaction.

    Raises:
        NotFound: the event does not exist, or its session is deleted.
        Conflict: the compaction was rolled back before, a newer one must be rolled back first, the session is on another
            branch, or originals are missing from the archive.
    """
    event = await find_event(connection, scope, event_id)
    params = scope.params_now(session_id=event.session_id, id=event.id, event_id=event.id)
    head = await lock_head(connection, params)
    event = await find_event(connection, scope, event_id)  # read again under the lock
    block = await _check_can_roll_back(connection, params, event, head)
    archived = await queries.archived_places.all(connection, params)
    rewritten = [id for _, id, is_rewritten in archived if is_rewritten and block is None]
    view = await _RollbackWriter(connection, params, scope, event, head, archived).run(block)
    await queries.empty_archive.all(connection, params)
    row = await queries.mark_rolled_back.one(connection, params)
    assert row is not None
    count, tokens = await count_view(connection, params, view)
    values = {"view": views.dump(view), "message_count": count, "tokens": tokens, "more_compactions": -1}
    await queries.settle.all(connection, {**params, **values})
    await remove_deleted(connection, params)
    await requeue(connection, params, rewritten)
    return events_of(connection, [row])[0]


async def forget_originals(connection: Connection, params: dict[str, Any]) -> set[str]:
    """Delete the originals of permanently deleted messages (``ids``) from the archive of a locked session; return their ids.

    The counts of their events are lowered, so that a rollback still restores all others.
    """
    rows = await queries.forget_originals.all(connection, params)
    counts = Counter((event_id, bool(is_rewritten)) for _, event_id, is_rewritten in rows)
    events = sorted({event_id for event_id, _ in counts})
    fewer = [
        {
            **params,
            "event_id": event_id,
            "fewer_removed": counts[event_id, False],
            "fewer_rewritten": counts[event_id, True],
        }
        for event_id in events
    ]
    if fewer:
        await queries.discount.many(connection, fewer)
    return {row[0] for row in rows}


async def find_event(connection: Connection, scope: Scope, event_id: str) -> CompactionEvent:
    """Return one event of a live session.

    Raises:
        NotFound: the event does not exist, or its session is deleted.
    """
    row = await queries.get.one(connection, scope.params(id=event_id))
    if row is None:
        raise NotFound(f"compaction {event_id} does not exist", noun="compaction", key=event_id)
    return events_of(connection, [row])[0]


async def check_newest(
    connection: Connection, params: dict[str, Any], event: CompactionEvent, head: BranchHead
) -> None:
    """Check that an event is the newest of the session's current branch.

    Raises:
        Conflict: it is not the newest, it is of another branch, or it was rolled back.
    """
    if event.rolled_back_at is not None:
        raise Conflict(f"compaction {event.id} was rolled back already", reason="rolled_back")
    if event.branch != head.branch:
        raise Conflict(
            f"compaction {event.id} is of branch {event.branch}, but the session is on branch {head.branch}: switch to"
            f" branch {event.branch} first",
            reason="other_branch",
        )
    row = await queries.newest.one(connection, {**params, "branch": head.branch})
    assert row is not None
    newest = events_of(connection, [row])[0]
    if newest.id != event.id:
        raise Conflict(
            f"compaction {newest.id} is newer than {event.id}: roll back {newest.id} first", reason="newer_compaction"
        )


async def _check_can_roll_back(
    connection: Connection, params: dict[str, Any], event: CompactionEvent, head: BranchHead
) -> int | None:
    """Check that an event can be rolled back now; return the block of its new messages, if it has one."""
    await check_newest(connection, params, event, head)
    internals = await queries.internals.one(connection, params)
    assert internals is not None
    block, archived = internals
    if archived != event.messages_removed + event.messages_rewritten:
        raise Conflict(
            f"compaction {event.id} cannot be rolled back: the archive has {archived} of its"
            f" {event.messages_removed + event.messages_rewritten} originals",
            reason="originals_missing",
        )
    return None if block is None else int(block)


class _RollbackWriter:
    """Writes one rollback, under the session's lock."""

    def __init__(
        self,
        connection: Connection,
        params: dict[str, Any],
        scope: Scope,
        event: CompactionEvent,
        head: BranchHead,
        archived: Sequence[Row],
    ) -> None:
        self._connection, self._params, self._scope = connection, params, scope
        self._event, self._head, self._archived = event, head, archived

    async def run(self, block: int | None) -> View:
        """Restore the originals; return the session's new view."""
        if block is None and self._head.blocks == 1:
            return await self._restore_in_place()
        positions = [int(row[0]) for row in self._archived]
        if block is not None:
            return await self._restore_by_view(block, positions)
        # The summary is usually at one of these positions, but the original there may have been deleted.
        summary = await self._summary_position()
        positions_used = {*positions, *summary}
        all_shown = all(views.shows(self._head.view, position) for position in positions_used)
        if all_shown and not await self._needed_elsewhere([*positions_used]):
            return await self._restore_in_place()
        return await self._restore_into_new_block(positions, summary)

    async def _restore_in_place(self) -> View:
        """Restore at the old positions: no other branch uses the compacted messages."""
        await self._drop_summary()
        removed, rewritten = await self._originals()
        await originals.restore(self._connection, self._params, removed)
        overwrites = [(position, original.entry, original.updated_us) for position, original in rewritten]
        await overwrite(self._connection, self._params, overwrites)
        return self._head.view

    async def _restore_by_view(self, block: int, positions: Sequence[int]) -> View:
        """Show the originals again: they never left the log. A rewritten message whose copy was deleted stays deleted."""
        start = views.first_of(block)
        block_range = {"first_place": start, "last_place": start + views.LAST}
        block_positions = {
            int(row[0]) for row in await queries.block.all(self._connection, {**self._params, **block_range})
        }
        deleted = {
            position
            for position, _, is_rewritten in self._archived
            if is_rewritten and start + views.seq_of(position) not in block_positions
        }
        view, current = self._view_with(positions, block_positions)
        view = views.without(view, deleted)
        current_in_block = [position for position in current if position in block_positions]
        if current_in_block and not await self._needed_elsewhere(current_in_block):
            removed_params = {**self._params, "places": number_list(current_in_block, self._connection.dialect)}
            await queries.remove_feedback.all(self._connection, removed_params)
            await queries.remove.all(self._connection, removed_params)
        return view

    async def _restore_into_new_block(self, positions: Sequence[int], summary: Sequence[int]) -> View:
        """Restore into a new block: another branch shows the summary or a rewritten message, or would show a restored one."""
        block_start = views.first_of(await take_block(self._connection, self._params))
        if summary and not await self._needed_elsewhere(summary):
            await self._drop_summary()
        removed, rewritten = await self._originals()
        still_rewritten = {row[0] for row in await queries.still_rewritten.all(self._connection, self._params)}
        copies = [
            (
                position,
                structs.replace(original, entry=structs.replace(original.entry, id=self._scope.ids.new()), feedback=[]),
            )
            for position, original in rewritten
            if position in still_rewritten
        ]
        moved = [(block_start + views.seq_of(position), original) for position, original in (*removed, *copies)]
        await originals.restore(self._connection, self._params, moved)
        return self._view_with([block_start + views.seq_of(position) for position in positions], summary)[0]

    async def _originals(self) -> tuple[list[tuple[int, Original]], list[tuple[int, Original]]]:
        """Return the removed and the rewritten originals, each with its position."""
        removed: list[tuple[int, Original]] = []
        rewritten: list[tuple[int, Original]] = []
        for position, is_rewritten, original in await queries.originals.all(self._connection, self._params):
            (rewritten if is_rewritten else removed).append(
                (position, originals.load(original, self._connection.dialect))
            )
        return removed, rewritten

    def _view_with(self, positions: Sequence[int], created: Iterable[int]) -> tuple[View, set[int]]:
        """Return the view that shows ``positions``, and the positions that it replaces.

        Replaced are those with the same seq, and the shown ones of ``created``.
        """
        shown_positions = [views.position_of(self._head.view, views.seq_of(position)) for position in positions]
        current = {position for position in shown_positions if position is not None}
        current |= {position for position in created if views.shows(self._head.view, position)}
        return views.including(views.without(self._head.view, current), positions), current

    async def _summary_position(self) -> list[int]:
        """Return the position of the summary message, or an empty list."""
        row = await queries.place.one(self._connection, self._summary_params())
        return [] if row is None else [int(row[0])]

    async def _drop_summary(self) -> None:
        if self._event.summary_message_id is not None:
            await queries.drop_feedback.all(self._connection, self._summary_params())
            await queries.drop.all(self._connection, self._summary_params())

    def _summary_params(self) -> dict[str, Any]:
        return {**self._params, "message_id": self._event.summary_message_id}

    async def _needed_elsewhere(self, positions: Sequence[int]) -> bool:
        return await needed_elsewhere(self._connection, self._params, self._head, positions)
