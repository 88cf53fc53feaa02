"""Deleted messages that can be restored.

A deleted message is removed from the log, so that readers of the log never see it, and kept here unchanged, with its feedback.
The originals that compactions have of it are kept here too: no rollback restores a deleted message. A restored message returns
to its old position. If a compaction was rolled back in between, the message gets the content that the rollback would have given
it.
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
_SEQ, _ORIGINAL = 5, 6  # columns in rows of the query ``found``
_CHUNK_ROWS = 4
"""The number of rows to read at a time where rows may be large."""


class DeletedMessage(Struct, frozen=True):
    """A deleted message, unchanged, and the time of its deletion."""

    message: Message
    deleted_at: datetime


class _Deletion(Struct, frozen=True):
    deleted_at: datetime


async def keep(connection: Connection, params: dict[str, Any], *, compacted: bool) -> None:
    """Keep the messages ``ids`` of a locked session before they are removed; if the session was ``compacted``, also their
    originals."""
    await queries.hold.one(connection, params)
    await queries.keep.all(connection, params)
    if compacted:
        await queries.keep_originals.all(connection, params)


async def forget(connection: Connection, params: dict[str, Any]) -> set[str]:
    """Drop everything kept of the messages ``ids``; return the ids of those that were kept."""
    return {row[0] for row in await queries.forget.all(connection, params)}


async def restore(connection: Connection, params: dict[str, Any]) -> tuple[set[str], list[tuple[int, int]]]:
    """Restore the messages ``ids`` of a locked session. Returns the ids of the messages that were kept, and the tokens and
    positions of those that are in the log again.

    Raises:
        Conflict: one of them was appended again under its id, or its position or its feedback is taken.
    """
    rows = await queries.found.all(connection, params)
    log, archive = _split(rows)
    restored = [(int(row[_SEQ]), originals.load(row[_ORIGINAL], connection.dialect)) for row in log]
    await originals.restore(connection, params, restored)
    if archive:
        names = ("id", "source", "is_rewritten", "seq", "original_message")
        originals_to_restore = [dict(zip(names, (*row[:3], *row[_SEQ:]), strict=True)) for row in archive]
        try:
            await queries.restore_original.many(connection, [{**params, **row} for row in originals_to_restore])
        except AlreadyExists:
            raise Conflict(
                "a compaction already has another original of a message to restore", reason="original_archived"
            ) from None
        await _count_originals(connection, params, archive)
    ids = await forget(connection, params)
    return ids, [(original.entry.token_count, position) for position, original in restored]


async def page(
    connection: Connection, params: dict[str, Any], limit: int, max_bytes: int | None
) -> tuple[list[DeletedMessage], bool]:
    """Return deleted messages in the order of their ids, and whether there are more. With ``max_bytes``, read a few at a time,
    and stop once their contents have more bytes than that."""
    messages: list[DeletedMessage] = []
    size = 0
    while True:
        remaining = limit - len(messages) + 1
        rows_to_read = remaining if max_bytes is None else min(remaining, _CHUNK_ROWS)
        rows = await queries.list.all(connection, {**params, "limit": rows_to_read})
        deletions = mapper(_Deletion, connection.dialect)([row[-1:] for row in rows])
        for (_, session_id, seq, document, _), deletion in zip(rows, deletions, strict=True):
            original = originals.load(document, connection.dialect)
            size += len(original.entry.content)
            if len(messages) == limit or (max_bytes is not None and messages and size > max_bytes):
                return messages, True
            messages.append(DeletedMessage(original.message(session_id, seq), deletion.deleted_at))
        if len(rows) < rows_to_read:
            return messages, False
        params = {**params, "after": rows[-1][0]}


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Split the rows of ``found`` into those that return to the log and those that return to the archive.

    The log gets, for each message, the original of the first compaction that was rolled back; without one, the message as it was
    in the log when it was deleted.
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
