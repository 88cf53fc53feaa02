"""Reading a session's log through its view.

Most sessions have none: they are read with one query, which finds nothing where there is a view. Only then is the view looked
up, and each of its ranges read with the same query, from the end that was asked for and no further than needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engines.protocol import Connection, Row
from ...errors import NotFound
from . import views
from .message_log import queries
from .views import View


async def read_log(
    connection: Connection, params: Mapping[str, Any], clause: str = "", *, newest_first: bool = False
) -> Sequence[Row]:
    """The rows of a live session between the messages ``after`` and ``before``, ``limit`` of them at most.

    Raises:
        NotFound: there is no such live session.
    """
    query = queries.list_newest if newest_first else queries.list
    rows = await query.all(connection, {**params, "viewed": False}, clause)
    if rows:
        return rows
    view = await view_of(connection, params)
    if view == views.PLAIN:
        return rows
    ranges = list(views.within(view, params["after"], params["before"]))
    found: list[Row] = []
    for first, last in reversed(ranges) if newest_first else ranges:
        more = {**params, "viewed": True, "after": first - 1, "before": last + 1, "limit": params["limit"] - len(found)}
        found += await query.all(connection, more, clause)
        if len(found) >= params["limit"]:
            break
    return found


async def view_of(connection: Connection, params: Mapping[str, Any]) -> View:
    """What a live session shows of its log.

    Raises:
        NotFound: there is no such live session.
    """
    row = await queries.live_session.one(connection, params)
    if row is None:
        raise NotFound(f"there is no session {params['session_id']} here")
    return views.load(row[0])


async def count_view(
    connection: Connection, params: Mapping[str, Any], view: View, clause: str = ""
) -> tuple[int, int]:
    """How many messages a view shows, and their tokens."""
    count = tokens = 0
    for first, last in view:
        row = await queries.count.one(connection, {**params, "after": first - 1, "before": last + 1}, clause)
        assert row is not None
        count, tokens = count + int(row[0]), tokens + int(row[1])
    return count, tokens
