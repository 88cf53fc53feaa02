"""Read and search the archived originals of messages that compactions removed or rewrote."""

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
from .events import ArchivedMessage, archived_messages_of, queries
from .rollback import find_event

_MAX_NUMBER = 2**62
_SEARCH_ROWS = 500
"""Originals read per query while searching."""


async def list_originals(
    connection: Connection, scope: Scope, session_id: str | None, event_id: str | None, limit: int, cursor: str | None
) -> Page[ArchivedMessage]:
    """Return a page of the originals of a session or of one event, the oldest event first.

    Raises:
        NotFound: the session does not exist or is deleted, or the event does not exist.
        InvalidInput: neither or both of ``session_id`` and ``event_id`` were given.
    """
    params = await _original_params(connection, scope, session_id, event_id, cursor)
    params["limit"] = rows_to_read(limit, scope.limits)
    rows = await queries.archived.all(connection, params)
    originals = archived_messages_of(connection, rows[:limit])
    return Page(originals, _cursor(rows[limit - 1]) if len(rows) > limit else None)


async def search_originals(
    connection: Connection, scope: Scope, session_id: str, text: str, limit: int, cursor: str | None
) -> Page[ArchivedMessage]:
    """Return a page of the originals of a session whose text contains ``text``, ignoring case.

    Raises:
        NotFound: the session does not exist or is deleted.
        InvalidInput: the text is empty.
    """
    if not isinstance(text, str) or not text:
        raise InvalidInput("text must be a non-empty string", field="text")
    match_count = rows_to_read(limit, scope.limits)
    params = await _original_params(connection, scope, session_id, None, cursor)
    matches: list[tuple[ArchivedMessage, str]] = []
    needle, more = text.casefold(), True
    while more and len(matches) < match_count:
        rows = await queries.archived.all(connection, {**params, "limit": _SEARCH_ROWS})
        for row, original in zip(rows, archived_messages_of(connection, rows), strict=True):
            if needle in text_of(original.message.kind, original.message.content).casefold():
                matches.append((original, _cursor(row)))
        more = len(rows) == _SEARCH_ROWS
        if more:
            params.update(_cursor_params(_cursor(rows[-1])))
    return Page([original for original, _ in matches[:limit]], matches[limit - 1][1] if len(matches) > limit else None)


async def _original_params(
    connection: Connection, scope: Scope, session_id: str | None, event_id: str | None, cursor: str | None
) -> dict[str, Any]:
    """Return the query parameters for the originals of a session or an event, starting after a cursor."""
    if (session_id is None) == (event_id is None):
        raise InvalidInput("give either session_id= or event_id=", field="session_id")
    if event_id is not None:
        event = await find_event(connection, scope, parse_id(event_id, "event id"))
        return scope.params(
            session_id=event.session_id, from_number=event.number, to_number=event.number, **_cursor_params(cursor)
        )
    session = parse_id(str(session_id), "session id")
    params = scope.params(session_id=session, from_number=0, to_number=_MAX_NUMBER, **_cursor_params(cursor))
    await view_of(connection, params)
    return params


def _cursor(row: Sequence[Any]) -> str:
    """Return the cursor after an original: the number of its event and the seq of its message."""
    return encode_cursor("archive", int(row[-1]), int(row[1]))


def _cursor_params(cursor: str | None) -> dict[str, int]:
    number, seq = (0, 0) if cursor is None else decode_cursor(cursor, "archive", int, int)
    return {"after_number": number, "after_seq": seq}
