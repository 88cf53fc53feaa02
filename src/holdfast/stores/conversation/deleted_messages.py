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

import msgspec
from msgspec import Struct

from ...core.filters import id_list
from ...core.queries import Queries
from ...core.rows import mapper
from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, Conflict
from .compaction.events import queries as compaction_queries
from .message_log import Message

queries = Queries(__package__, "deleted_messages.sql")
_FIELDS = len(Message.__struct_fields__)
_CONTENT = Message.__struct_fields__.index("content")
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
    """Restore the messages ``ids`` of a session that is held: which of them were here, and of those that are in the log again
    the tokens and the places.

    Raises:
        Conflict: one of them was appended again under its id, or its place or its feedback is taken.
    """
    rows = await queries.found.all(connection, params)
    log, originals = _sorted(rows)
    for chosen, names in ((log, ("restore", "restore_feedback")), (originals, ("restore_originals",))):
        for name in names if chosen else ():
            await _put_back(connection, queries.by_name[name], {**params, "chosen": _json(chosen)})
    await _count_originals(connection, params, rows, originals)
    in_log = {**params, "ids": id_list([id for id, _ in log], connection.dialect)}
    there = await queries.restored.all(connection, in_log) if log else []
    gone = await forget(connection, params)
    return gone, [(int(tokens), int(place)) for tokens, place in there]


async def page(
    connection: Connection, params: dict[str, Any], limit: int, max_bytes: int | None
) -> tuple[list[Row], bool]:
    """Rows of ``list``, and whether there are more. With ``max_bytes``, few are read at a time, until they have so many."""
    found: list[Row] = []
    size = 0
    while True:
        wanted = limit - len(found) + 1
        some = wanted if max_bytes is None else min(wanted, _AT_ONCE)
        rows = await queries.list.all(connection, {**params, "limit": some})
        for row in rows:
            if len(found) == limit or (max_bytes is not None and found and size + len(row[_CONTENT]) > max_bytes):
                return found, True
            found.append(row)
            size += len(row[_CONTENT])
        if len(rows) < some:
            return found, False
        params = {**params, "after": rows[-1][0]}


def listed(connection: Connection, rows: Sequence[Row]) -> list[DeletedMessage]:
    """Rows of ``list`` as messages."""
    messages = mapper(Message, connection.dialect)([row[:_FIELDS] for row in rows])
    deletions = mapper(_Deletion, connection.dialect)([row[_FIELDS:] for row in rows])
    return [DeletedMessage(message, deletion.deleted_at) for message, deletion in zip(messages, deletions, strict=True)]


def _sorted(rows: Sequence[Row]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What goes into the log, and what goes back into the archive.

    Of what belongs into the log, the original of the first compaction that was rolled back goes before those of later ones, and
    those before what was in the log when the message was deleted.
    """
    originals: list[tuple[str, str]] = []
    candidates: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for id, source, _, number, is_rolled_back in rows:
        if number is not None and not is_rolled_back:
            originals.append((id, source))
        else:
            candidates[id].append((float("inf") if number is None else number, source))
    return [(id, min(each)[1]) for id, each in candidates.items()], originals


async def _put_back(connection: Connection, query: Any, params: dict[str, Any]) -> None:
    try:
        await query.all(connection, params)
    except AlreadyExists:
        raise Conflict(
            "a message that would come back, or its feedback, was made again since, or its place is taken; delete that first"
        ) from None


async def _count_originals(
    connection: Connection, params: dict[str, Any], rows: Sequence[Row], originals: Sequence[tuple[str, str]]
) -> None:
    back = set(originals)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for id, source, is_rewritten, _, _ in rows:
        if (id, source) in back:
            counts[source][bool(is_rewritten)] -= 1
    more = [
        {**params, "event_id": source, "fewer_removed": removed, "fewer_rewritten": rewritten}
        for source, (removed, rewritten) in sorted(counts.items())
    ]
    if more:
        await compaction_queries.discount.many(connection, more)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
