"""Undoing a compaction: everything it removed or rewrote is in the log again, as it was, and what came since stays."""

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
from ..search.index import forget, reconsider
from ..views import View
from .commit import needed_elsewhere, number_list, overwrite
from .events import CompactionEvent, events_of, queries


async def roll_back(connection: Connection, scope: Scope, event_id: str) -> CompactionEvent:
    """Undo a compaction, in the transaction that is open.

    Raises:
        NotFound: there is no such event of a live session.
        Conflict: it was undone before, a newer one must be undone first, the session shows another branch, or its
            originals are no longer there.
    """
    event = await find_event(connection, scope, event_id)
    params = scope.params_now(session_id=event.session_id, id=event.id, event_id=event.id)
    head = await lock_head(connection, params)
    event = await find_event(connection, scope, event_id)  # as it is now that nobody else can change it
    block = await _check(connection, params, event, head)
    archived = await queries.archived_places.all(connection, params)
    rewritten = [id for _, id, is_rewritten in archived if is_rewritten and block is None]
    view = await _Undoing(connection, params, scope, event, head, archived).run(block)
    await queries.empty_archive.all(connection, params)
    row = await queries.mark_rolled_back.one(connection, params)
    assert row is not None
    count, tokens = await count_view(connection, params, view)
    settled = {"view": views.dump(view), "message_count": count, "tokens": tokens, "more_compactions": -1}
    await queries.settle.all(connection, {**params, **settled})
    await forget(connection, params)
    await reconsider(connection, params, rewritten)
    return events_of(connection, [row])[0]


async def forget_originals(connection: Connection, params: dict[str, Any]) -> set[str]:
    """Take messages that are deleted on purpose, the ``ids``, out of the archive of a session that is held, and say which were
    there. Their events count them no longer, so that a rollback brings back all others."""
    rows = await queries.forget_originals.all(connection, params)
    counts = Counter((event_id, bool(is_rewritten)) for _, event_id, is_rewritten in rows)
    events = sorted({event_id for event_id, _ in counts})
    fewer = [
        {**params, "event_id": each, "fewer_removed": counts[each, False], "fewer_rewritten": counts[each, True]}
        for each in events
    ]
    if fewer:
        await queries.discount.many(connection, fewer)
    return {row[0] for row in rows}


async def find_event(connection: Connection, scope: Scope, event_id: str) -> CompactionEvent:
    """One event of a live session.

    Raises:
        NotFound: there is none.
    """
    row = await queries.get.one(connection, scope.params(id=event_id))
    if row is None:
        raise NotFound(f"there is no compaction {event_id} here")
    return events_of(connection, [row])[0]


async def check_newest(
    connection: Connection, params: dict[str, Any], event: CompactionEvent, head: BranchHead
) -> None:
    """Refuse to touch an event that is not the newest of the branch that a session shows; for other modules too.

    Raises:
        Conflict: it is not, or it was rolled back.
    """
    if event.rolled_back_at is not None:
        raise Conflict(f"compaction {event.id} was rolled back before")
    if event.branch != head.branch:
        raise Conflict(
            f"compaction {event.id} is of branch {event.branch}, and the session shows {head.branch}: switch to it first"
        )
    row = await queries.newest.one(connection, {**params, "branch": head.branch})
    assert row is not None
    newest = events_of(connection, [row])[0]
    if newest.id != event.id:
        raise Conflict(f"compaction {newest.id} came after {event.id}: roll that back first")


async def _check(
    connection: Connection, params: dict[str, Any], event: CompactionEvent, head: BranchHead
) -> int | None:
    """Whether an event can be undone now; the block that its messages are in, if they are in one of their own."""
    await check_newest(connection, params, event, head)
    internals = await queries.internals.one(connection, params)
    assert internals is not None
    block, archived = internals
    if archived != event.messages_removed + event.messages_rewritten:
        raise Conflict(f"the originals of compaction {event.id} are no longer all in the archive")
    return None if block is None else int(block)


class _Undoing:
    """The writing half of a rollback."""

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
        """Bring everything back; what the session shows then."""
        if block is None and self._head.blocks == 1:
            return await self._in_place()
        places = [int(row[0]) for row in self._archived]
        if block is not None:
            return await self._by_view(block, places)
        # The summary is mostly at one of these places, but its original may have been deleted.
        summary = await self._summary_place()
        touched = {*places, *summary}
        at_home = all(views.shows(self._head.view, place) for place in touched)
        if at_home and not await self._needed([*touched]):
            return await self._in_place()
        return await self._into_new_block(places, summary)

    async def _in_place(self) -> View:
        """Nobody else sees what was compacted: everything goes back to where it was."""
        await self._drop_summary()
        removed, rewritten = await self._originals()
        await originals.restore(self._connection, self._params, removed)
        changed = [(place, original.entry, original.updated_us) for place, original in rewritten]
        await overwrite(self._connection, self._params, changed)
        return self._head.view

    async def _by_view(self, block: int, places: Sequence[int]) -> View:
        """Nothing ever left the log: the branch shows it again. A rewritten message whose copy was deleted stays deleted."""
        start = views.first_of(block)
        ends = {"first_place": start, "last_place": start + views.LAST}
        there = {int(row[0]) for row in await queries.block.all(self._connection, {**self._params, **ends})}
        deleted = {
            place
            for place, _, is_rewritten in self._archived
            if is_rewritten and start + views.seq_of(place) not in there
        }
        view, current = self._back_to(places, there)
        view = views.without(view, deleted)
        made = [place for place in current if place in there]
        if made and not await self._needed(made):
            gone = {**self._params, "places": number_list(made, self._connection.dialect)}
            await queries.remove_feedback.all(self._connection, gone)
            await queries.remove.all(self._connection, gone)
        return view

    async def _into_new_block(self, places: Sequence[int], summary: Sequence[int]) -> View:
        """Others see the summary, or what was rewritten, or would see what comes back: it goes beside that."""
        block = views.first_of(await take_block(self._connection, self._params))
        if summary and not await self._needed(summary):
            await self._drop_summary()
        removed, rewritten = await self._originals()
        here = {row[0] for row in await queries.still_rewritten.all(self._connection, self._params)}
        copies = [
            (place, structs.replace(each, entry=structs.replace(each.entry, id=self._scope.ids.new()), feedback=[]))
            for place, each in rewritten
            if place in here
        ]
        moved = [(block + views.seq_of(place), each) for place, each in (*removed, *copies)]
        await originals.restore(self._connection, self._params, moved)
        return self._back_to([block + views.seq_of(place) for place in places], summary)[0]

    async def _originals(self) -> tuple[list[tuple[int, Original]], list[tuple[int, Original]]]:
        """What was removed and what was rewritten, each with its place."""
        removed: list[tuple[int, Original]] = []
        rewritten: list[tuple[int, Original]] = []
        for place, is_rewritten, stored in await queries.originals.all(self._connection, self._params):
            (rewritten if is_rewritten else removed).append((place, originals.load(stored, self._connection.dialect)))
        return removed, rewritten

    def _back_to(self, places: Sequence[int], made: Iterable[int]) -> tuple[View, set[int]]:
        """A view with these places instead of what it shows under the same numbers and of what was made, and what that was."""
        numbers = [views.position_of(self._head.view, views.seq_of(place)) for place in places]
        current = {place for place in numbers if place is not None}
        current |= {place for place in made if views.shows(self._head.view, place)}
        return views.including(views.without(self._head.view, current), places), current

    async def _summary_place(self) -> list[int]:
        """Where the summary is, if there is one."""
        row = await queries.place.one(self._connection, self._of_summary())
        return [] if row is None else [int(row[0])]

    async def _drop_summary(self) -> None:
        if self._event.summary_message_id is not None:
            await queries.drop_feedback.all(self._connection, self._of_summary())
            await queries.drop.all(self._connection, self._of_summary())

    def _of_summary(self) -> dict[str, Any]:
        return {**self._params, "message_id": self._event.summary_message_id}

    async def _needed(self, places: Sequence[int]) -> bool:
        return await needed_elsewhere(self._connection, self._params, self._head, places)
