"""Messages that are kept outside of the log, each with its feedback as one JSON object: what compactions took out or rewrote, and
deleted messages. The part ``original`` of ``originals.sql`` makes the objects, and this module reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from ...clock import from_us, to_us
from ...core.queries import Queries
from ...engines.dialect import Dialect
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict
from .message_log import Entry, Message, insert, message_of

queries = Queries(__package__, "originals.sql")
_JSON_COLUMNS = ("content", "metadata")
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Original(Struct, frozen=True):
    """A message as it was. Entry, feedback and times are in the form that ``insert`` and queries take."""

    entry: Entry
    created_us: int
    updated_us: int
    feedback: Sequence[Mapping[str, Any]]

    def message(self, session_id: str, seq: int) -> Message:
        """It as a message, at a place of a session's log."""
        return message_of(self.entry, session_id, seq, from_us(self.created_us), from_us(self.updated_us))


def load(stored: str, dialect: Dialect) -> Original:
    """The message in an object."""
    if dialect is Dialect.SQLITE:
        values = msgspec.json.decode(stored)
        feedback = values["feedback"]
    else:
        raw = _RAW.decode(stored)
        feedback = [
            _columns(row) for row in msgspec.json.decode(raw.pop("feedback"), type=list[dict[str, msgspec.Raw]])
        ]
        values = _columns(raw)
    entry = Entry(*[values[name] for name in Entry.__struct_fields__])
    return Original(
        msgspec.structs.replace(entry, is_preserved=bool(entry.is_preserved), is_summary=bool(entry.is_summary)),
        values["created_at"],
        values["updated_at"],
        feedback,
    )


def _columns(raw: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """The columns in an object that PostgreSQL made."""
    return {
        name: bytes(value).decode()
        if name in _JSON_COLUMNS
        else to_us(msgspec.json.decode(value, type=datetime))
        if name.endswith("_at")
        else msgspec.json.decode(value)
        for name, value in raw.items()
    }


async def restore(connection: Connection, params: Mapping[str, Any], originals: Sequence[tuple[int, Original]]) -> None:
    """Insert messages and their feedback again, each at its place, in a transaction that holds the session.

    Raises:
        Conflict: a message or feedback with one of the ids exists, or a place is taken.
    """
    tenant, session_id = params["tenant_id"], params["session_id"]
    rows = [(place, original.entry, original.created_us, original.updated_us) for place, original in originals]
    feedback = [{**row, "tenant_id": tenant} for _, original in originals for row in original.feedback]
    try:
        await insert(connection, tenant, session_id, rows)
    except AlreadyExists:
        raise Conflict(
            "a message that would come back was appended again under its id, or its place is taken; delete that one first"
        ) from None
    try:
        await queries.insert_feedback.many(connection, feedback)
    except AlreadyExists:
        raise Conflict(
            "feedback that would come back with its message was given again under its id; delete that one first"
        ) from None
