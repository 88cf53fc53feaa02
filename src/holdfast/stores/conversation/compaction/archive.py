"""Reading the originals of what compactions removed or rewrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ....core.scope import Scope
from ....engines.protocol import Connection
from ....errors import InvalidInput
from ....ids import parse as parse_id
from ..log_reading import view_of
from ..search.searchable_text import text_of
from .events import ArchivedMessage, archived_of, queries
from .rollback import find_event

_MAX_NUMBER = 2**62
_SEARCH_ROWS = 500
"""Originals that are read at once while searching."""


async def list_originals(
    connection: Connection, scope: Scope, session_id: str | None, event_id: str | None, limit: int, cursor: str | None
) -> Page[ArchivedMessage]:
    """A page of the originals of a session or of one event, the oldest event first.

    Raises:
        NotFound: there is no such live session, or no such event.
        InvalidInput: neither or both were given.
    """
    params = await _selected(connection, scope, session_id, event_id, cursor)
    params["limit"] = rows_to_read(limit, scope.limits)
    rows = await queries.archived.all(connection, params)
    found = archived_of(connection, rows[:limit])
    return Page(found, _cursor(rows[limit - 1]) if len(rows) > limit else None)


async def search_originals(
    connection: Connection, scope: Scope, session_id: str, text: str, limit: int, cursor: str | None
) -> Page[ArchivedMessage]:
    """A page of the originals of a session whose words contain a text, ignoring case.

    Raises:
        NotFound: there is no such live session.
        InvalidInput: the text is empty.
    """
    if not isinstance(text, str) or not text:
        raise InvalidInput("the text to search for must not be empty")
    wanted = rows_to_read(limit, scope.limits)
    params = await _selected(connection, scope, session_id, None, cursor)
    found: list[tuple[ArchivedMessage, str]] = []
    needle, more = text.casefold(), True
    while more and len(found) < wanted:
        rows = await queries.archived.all(connection, {**params, "limit": _SEARCH_ROWS})
        for row, original in zip(rows, archived_of(connection, rows), strict=True):
            if needle in text_of(original.message.kind, original.message.content).casefold():
                found.append((original, _cursor(row)))
        more = len(rows) == _SEARCH_ROWS
        if more:
            params.update(_after(_cursor(rows[-1])))
    return Page([original for original, _ in found[:limit]], found[limit - 1][1] if len(found) > limit else None)


async def _selected(
    connection: Connection, scope: Scope, session_id: str | None, event_id: str | None, cursor: str | None
) -> dict[str, Any]:
    """The parameters that select originals and where to start."""
    if (session_id is None) == (event_id is None):
        raise InvalidInput("say whose originals: session_id= or event_id=")
    if event_id is not None:
        event = await find_event(connection, scope, parse_id(event_id, "event id"))
        return scope.params(
            session_id=event.session_id, from_number=event.number, to_number=event.number, **_after(cursor)
        )
    session = parse_id(str(session_id), "session id")
    params = scope.params(session_id=session, from_number=0, to_number=_MAX_NUMBER, **_after(cursor))
    await view_of(connection, params)
    return params


def _cursor(row: Sequence[Any]) -> str:
    """The cursor after an original: the number of its event, and of the message."""
    return encode_cursor("archive", int(row[-1]), int(row[1]))


def _after(cursor: str | None) -> dict[str, int]:
    number, seq = (0, 0) if cursor is None else decode_cursor(cursor, "archive", int, int)
    return {"after_number": number, "after_seq": seq}
