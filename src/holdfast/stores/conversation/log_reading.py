"""Reading a session's log through its view.

Most sessions have none: they are read with one query, which finds nothing where there is a view. Only then is the view looked
up, and its ranges read with another query, from the end that was asked for and no further than needed. An answer always
comes from one statement that has also seen that the session still shows that view, so nobody finds a log half
switched or half compacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct

from ...core.queries import Queries
from ...core.rows import mapper
from ...engines.dialect import Dialect
from ...engines.heavy_calls import compute
from ...engines.protocol import Connection, Engine, Row
from ...errors import NotFound, Unavailable
from ...offload import INLINE_CHARS
from . import views
from .message_log import Message
from .views import Range, View

TRIES = 16
"""How often a view is looked up anew because the session was switched while it was read."""
WIDER = 4
"""How many times as many places are read when there were too few messages in the first."""

queries = Queries(__package__, "log_reading.sql", Message)
_CONTENT = Message.__struct_fields__.index("content")
_seq = itemgetter(Message.__struct_fields__.index("seq"))


class Shown(Struct, frozen=True):
    """What a live session shows of its log, also as it is stored."""

    view: View
    stored: str | None
    next_place: int
    message_count: int


async def read_log(
    connection: Connection,
    params: Mapping[str, Any],
    clause: str = "",
    *,
    newest_first: bool = False,
    engine: Engine | None = None,
) -> list[Message]:
    """What a live session shows between the messages ``after`` and ``before``, ``limit`` of them at most. With the ``engine``
    that makes the call, large contents are decoded outside of its event loop.

    Raises:
        NotFound: there is no such live session.
    """
    query = queries.list_newest if newest_first else queries.list
    rows = await query.all(connection, params, clause)
    if rows:
        return await _decoded(connection, rows, engine)
    for _ in range(TRIES):
        shown = await _shown(connection, params)
        if not shown.message_count:
            return []
        found = await _read_view(connection, params, clause, shown, newest_first)
        if found is not None:
            return await _decoded(connection, found, engine)
    raise _restless(params)


async def view_of(connection: Connection, params: Mapping[str, Any]) -> View:
    """What a live session shows of its log.

    Raises:
        NotFound: there is no such live session.
    """
    return (await _shown(connection, params)).view


async def count_log(connection: Connection, params: Mapping[str, Any], clause: str = "") -> int:
    """How many messages a live session shows.

    Raises:
        NotFound: there is no such live session.
    """
    view = await view_of(connection, params)
    for _ in range(TRIES):
        count, _tokens = await count_view(connection, params, view, clause)
        used, view = view, await view_of(connection, params)
        if used == view:
            return count
    raise _restless(params)


async def count_view(
    connection: Connection, params: Mapping[str, Any], view: View, clause: str = ""
) -> tuple[int, int]:
    """How many messages a view shows, and their tokens."""
    row = await queries.count.one(connection, {**params, "ranges": _json(view)}, clause)
    assert row is not None
    return int(row[0]), int(row[1])


async def fitting(
    connection: Connection, params: Mapping[str, Any], clause: str, max_bytes: int, *, newest_first: bool
) -> int:
    """How many of the messages that ``read_log`` would find have at most ``max_bytes`` of content together; one at least.

    Raises:
        NotFound: there is no such live session.
    """
    shown = await _shown(connection, params)
    limit, ranges = params["limit"], tuple(views.within(shown.view, params["after"], params["before"]))
    places = limit
    while True:
        near = _nearest(ranges, places, shown, newest_first)
        rows = await queries.sizes.all(connection, {**params, "ranges": _json(near)}, clause)
        if len(rows) >= limit or near == ranges:
            break
        places *= WIDER
    total = 0
    for number, (_, size) in enumerate(sorted(rows, reverse=newest_first)[:limit]):
        total += size
        if total > max_bytes:
            return max(number, 1)
    return int(limit)


async def _shown(connection: Connection, params: Mapping[str, Any]) -> Shown:
    row = await queries.shown.one(connection, params)
    if row is None:
        raise NotFound(f"there is no session {params['session_id']} here")
    return Shown(views.load(row[0]), *row)


async def _read_view(
    connection: Connection, params: Mapping[str, Any], clause: str, shown: Shown, newest_first: bool
) -> Sequence[Row] | None:
    """What was asked for, through a view; ``None`` if the session shows another by now."""
    limit, ranges = params["limit"], tuple(views.within(shown.view, params["after"], params["before"]))
    places = limit
    while True:
        # As many places as messages are wanted; where messages were deleted or do not match, that may be too few.
        near = _nearest(ranges, places, shown, newest_first)
        asked = {**params, "view": shown.stored, "ranges": _json(near)}
        rows = await queries.ranges.all(connection, asked, clause)
        if not rows:
            return None
        found = sorted((row for row in rows if row[0] is not None), key=_seq, reverse=newest_first)
        if len(found) >= limit or near == ranges:
            return found[:limit]
        places *= WIDER


async def _decoded(connection: Connection, rows: Sequence[Row], engine: Engine | None) -> list[Message]:
    """Rows as messages. Large contents from PostgreSQL are decoded in a thread; SQLite's engine runs the whole call in one."""
    decode = mapper(Message, connection.dialect)
    if engine is None or connection.dialect is Dialect.SQLITE:
        return decode(rows)
    chars = sum([len(row[_CONTENT]) for row in rows])
    return decode(rows) if chars < INLINE_CHARS else await compute(engine, lambda _: decode(rows), chars=chars)


def _nearest(ranges: View, places: int, shown: Shown, newest_first: bool) -> View:
    nearest = views.last_places if newest_first else views.first_places
    return nearest(ranges, places, shown.next_place)


def _json(ranges: Sequence[Range]) -> str:
    return msgspec.json.encode(ranges).decode()


def _restless(params: Mapping[str, Any]) -> Unavailable:
    return Unavailable(f"session {params['session_id']} is being switched all the time; nothing was read, try again")
