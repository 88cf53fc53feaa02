"""Messages that were deleted and can be restored.

A deleted message leaves the log, so that readers of the log never meet it, and is kept here as it was, with its feedback. The
originals that compactions have of it are kept here too: no rollback brings a deleted message back. A restored message goes to
its old place. If a compaction was rolled back meanwhile, the message is what that rollback would have made it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...core.queries import Queries
from ...core.rows import mapper
from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, Conflict
from . import originals
from .compaction.events import queries as compaction_queries
from .message_log import Message

queries = Queries(__package__, "deleted_messages.sql", parts=originals.queries)
_SEQ, _ORIGINAL = 5, 6  # in rows of ``found``
_AT_ONCE = 4
"""Rows that are read at once where they may be large."""


class DeletedMessage(Struct, frozen=True):
    """A message that was deleted, as it was, and when that happened."""

    message: Message
    deleted_at: datetime


class _Deletion(Struct, frozen=True):
    deleted_at: datetime


async def keep(connection: Connection, params: dict[str, Any], *, compacted: bool) -> None:
    """Keep the messages ``ids`` of a session that is held, before they are removed; their originals too, if the session was
    ``compacted``."""
    await queries.hold.one(connection, params)
    await queries.keep.all(connection, params)
    if compacted:
        await queries.keep_originals.all(connection, params)


async def forget(connection: Connection, params: dict[str, Any]) -> set[str]:
    """Keep nothing of the messages ``ids`` any more, and say of which something was kept."""
    return {row[0] for row in await queries.forget.all(connection, params)}


async def bring_back(connection: Connection, params: dict[str, Any]) -> tuple[set[str], list[tuple[int, int]]]:
    """Restore the messages ``ids`` of a session that is held: the ids of those that were kept, and the tokens and places of
    those that are in the log again.

    Raises:
        Conflict: one of them was appended again under its id, or its place or its feedback is taken.
    """
    rows = await queries.found.all(connection, params)
    log, archive = _sorted(rows)
    restored = [(int(row[_SEQ]), originals.load(row[_ORIGINAL], connection.dialect)) for row in log]
    await originals.restore(connection, params, restored)
    if archive:
        names = ("id", "source", "is_rewritten", "seq", "original_message")
        picked = [dict(zip(names, (*row[:3], *row[_SEQ:]), strict=True)) for row in archive]
        try:
            await queries.restore_original.many(connection, [{**params, **row} for row in picked])
        except AlreadyExists:
            raise Conflict("a compaction has another original of a message to restore") from None
        await _count_originals(connection, params, archive)
    gone = await forget(connection, params)
    return gone, [(original.entry.token_count, place) for place, original in restored]


async def page(
    connection: Connection, params: dict[str, Any], limit: int, max_bytes: int | None
) -> tuple[list[DeletedMessage], bool]:
    """Deleted messages in the order of their ids, and whether there are more. With ``max_bytes``, few are read at a time, until
    their contents have so many."""
    found: list[DeletedMessage] = []
    size = 0
    while True:
        wanted = limit - len(found) + 1
        some = wanted if max_bytes is None else min(wanted, _AT_ONCE)
        rows = await queries.list.all(connection, {**params, "limit": some})
        deletions = mapper(_Deletion, connection.dialect)([row[-1:] for row in rows])
        for (_, session_id, seq, stored, _), deletion in zip(rows, deletions, strict=True):
            original = originals.load(stored, connection.dialect)
            size += len(original.entry.content)
            if len(found) == limit or (max_bytes is not None and found and size > max_bytes):
                return found, True
            found.append(DeletedMessage(original.message(session_id, seq), deletion.deleted_at))
        if len(rows) < some:
            return found, False
        params = {**params, "after": rows[-1][0]}


def _sorted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows of ``found`` that go back into the log, and those that go back into the archive.

    Of one message, the log gets the original of the first compaction that was rolled back; if there is none, what was in the log
    when the message was deleted.
    """
    archive: list[Row] = []
    log: dict[str, tuple[float, Row]] = {}
    for row in rows:
        id, _, _, number, is_rolled_back = row[:_SEQ]
        if number is not None and not is_rolled_back:
            archive.append(row)
            continue
        rank = float("inf") if number is None else number
        if id not in log or rank < log[id][0]:
            log[id] = (rank, row)
    return [row for _, row in log.values()], archive


async def _count_originals(connection: Connection, params: dict[str, Any], archive: Sequence[Row]) -> None:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _, source, is_rewritten, *_ in archive:
        counts[source][bool(is_rewritten)] -= 1
    more = [
        {**params, "event_id": source, "fewer_removed": removed, "fewer_rewritten": rewritten}
        for source, (removed, rewritten) in sorted(counts.items())
    ]
    await compaction_queries.discount.many(connection, more)
