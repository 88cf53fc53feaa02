"""Reading a session's log through its view.

Most sessions have no view: one query reads their log, and returns nothing if there is a view. Only then is the view read,
and its ranges with another query, from the requested end and no further than needed. A result always
comes from one statement that also checked that the session still shows that view, so no caller sees a log that is half
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
"""How often a view is read again because the session was switched in between."""
WIDER = 4
"""The factor for the number of positions to read when the first ones had too few messages."""

queries = Queries(__package__, "log_reading.sql", Message)
_CONTENT = Message.__struct_fields__.index("content")
_seq = itemgetter(Message.__struct_fields__.index("seq"))


class _SessionView(Struct, frozen=True):
    """The part of its log that a live session shows; ``stored`` is the stored form of the view."""

    view: View
    stored: str | None
    next_position: int
    message_count: int


async def read_log(
    connection: Connection,
    params: Mapping[str, Any],
    clause: str = "",
    *,
    newest_first: bool = False,
    engine: Engine | None = None,
) -> list[Message]:
    """Return at most ``limit`` messages that a live session shows between ``after`` and ``before``. With the ``engine``
    that makes the call, large contents are decoded outside of its event loop.

    Raises:
        NotFound: no live session has this id.
    """
    query = queries.list_newest if newest_first else queries.list
    rows = await query.all(connection, params, clause)
    if rows:
        return await decoded(connection, rows, engine)
    for _ in range(TRIES):
        session = await _read_session_view(connection, params)
        if not session.message_count:
            return []
        view_rows = await _read_ranges(connection, params, clause, session, newest_first)
        if view_rows is not None:
            return await decoded(connection, view_rows, engine)
    raise _unstable(params)


async def view_of(connection: Connection, params: Mapping[str, Any]) -> View:
    """Return the view of a live session.

    Raises:
        NotFound: no live session has this id.
    """
    return (await _read_session_view(connection, params)).view


async def count_log(connection: Connection, params: Mapping[str, Any], clause: str = "") -> int:
    """Return the number of messages that a live session shows.

    Raises:
        NotFound: no live session has this id.
    """
    view = await view_of(connection, params)
    for _ in range(TRIES):
        count, _tokens = await count_view(connection, params, view, clause)
        used, view = view, await view_of(connection, params)
        if used == view:
            return count
    raise _unstable(params)


async def count_view(
    connection: Connection, params: Mapping[str, Any], view: View, clause: str = ""
) -> tuple[int, int]:
    """Return the number of messages that a view shows, and their tokens."""
    row = await queries.count.one(connection, {**params, "ranges": _json(view)}, clause)
    assert row is not None
    return int(row[0]), int(row[1])


async def count_fitting(
    connection: Connection, params: Mapping[str, Any], clause: str, max_bytes: int, *, newest_first: bool
) -> int:
    """Return how many of the messages that ``read_log`` would return have at most ``max_bytes`` of content together; at least 1.

    Raises:
        NotFound: no live session has this id.
    """
    session = await _read_session_view(connection, params)
    limit, ranges = params["limit"], tuple(views.within(session.view, params["after"], params["before"]))
    positions = limit
    while True:
        near = _nearest(ranges, positions, session, newest_first)
        rows = await queries.sizes.all(connection, {**params, "ranges": _json(near)}, clause)
        if len(rows) >= limit or near == ranges:
            break
        positions *= WIDER
    total = 0
    for number, (_, size) in enumerate(sorted(rows, reverse=newest_first)[:limit]):
        total += size
        if total > max_bytes:
            return max(number, 1)
    return int(limit)


async def _read_session_view(connection: Connection, params: Mapping[str, Any]) -> _SessionView:
    row = await queries.shown.one(connection, params)
    if row is None:
        raise NotFound(f"session {params['session_id']} does not exist", noun="session", key=params["session_id"])
    return _SessionView(views.load(row[0]), *row)


async def _read_ranges(
    connection: Connection, params: Mapping[str, Any], clause: str, session: _SessionView, newest_first: bool
) -> Sequence[Row] | None:
    """Read the requested messages through a view; return ``None`` if the session shows another view by now."""
    limit, ranges = params["limit"], tuple(views.within(session.view, params["after"], params["before"]))
    positions = limit
    while True:
        # As many positions as messages; if some messages were deleted or do not match, these are too few.
        near = _nearest(ranges, positions, session, newest_first)
        query_params = {**params, "view": session.stored, "ranges": _json(near)}
        rows = await queries.ranges.all(connection, query_params, clause)
        if not rows:
            return None
        messages = sorted((row for row in rows if row[0] is not None), key=_seq, reverse=newest_first)
        if len(messages) >= limit or near == ranges:
            return messages[:limit]
        positions *= WIDER


async def decoded(connection: Connection, rows: Sequence[Row], engine: Engine | None) -> list[Message]:
    """Decode rows as messages. Large contents from PostgreSQL are decoded in a thread; SQLite's engine runs the whole call in
    one."""
    decode = mapper(Message, connection.dialect)
    if engine is None or connection.dialect is Dialect.SQLITE:
        return decode(rows)
    chars = sum([len(row[_CONTENT]) for row in rows])
    return decode(rows) if chars < INLINE_CHARS else await compute(engine, lambda _: decode(rows), chars=chars)


def _nearest(ranges: View, positions: int, session: _SessionView, newest_first: bool) -> View:
    nearest = views.last_positions if newest_first else views.first_positions
    return nearest(ranges, positions, session.next_position)


def _json(ranges: Sequence[Range]) -> str:
    return msgspec.json.encode(ranges).decode()


def _unstable(params: Mapping[str, Any]) -> Unavailable:
    return Unavailable(f"session {params['session_id']} is being switched all the time; nothing was read, try again")
