"""Messages kept outside of the log, each with its feedback as one JSON object: messages that compactions removed or rewrote, and
deleted messages. The part ``original`` of ``originals.sql`` creates the objects, and this module reads them."""

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
from .message_log import LogEntry, Message, insert, message_of

queries = Queries(__package__, "originals.sql")
_JSON_COLUMNS = ("content", "metadata")
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Original(Struct, frozen=True):
    """The original content of a message. Entry, feedback and times have the form that ``insert`` and queries take."""

    entry: LogEntry
    created_us: int
    updated_us: int
    feedback: Sequence[Mapping[str, Any]]

    def message(self, session_id: str, seq: int) -> Message:
        """Return it as a message at a position of a session's log."""
        return message_of(self.entry, session_id, seq, from_us(self.created_us), from_us(self.updated_us))


def load(stored: str, dialect: Dialect) -> Original:
    """Return the message in a JSON object."""
    if dialect is Dialect.SQLITE:
        values = msgspec.json.decode(stored)
        feedback = values["feedback"]
    else:
        raw = _RAW.decode(stored)
        feedback = [
            _columns(row) for row in msgspec.json.decode(raw.pop("feedback"), type=list[dict[str, msgspec.Raw]])
        ]
        values = _columns(raw)
    entry = LogEntry(*[values[name] for name in LogEntry.__struct_fields__])
    return Original(
        msgspec.structs.replace(entry, is_preserved=bool(entry.is_preserved), is_summary=bool(entry.is_summary)),
        values["created_at"],
        values["updated_at"],
        feedback,
    )


def _columns(raw: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the columns in an object that PostgreSQL created."""
    return {
        name: bytes(value).decode()
        if name in _JSON_COLUMNS
        else to_us(msgspec.json.decode(value, type=datetime))
        if name.endswith("_at")
        else msgspec.json.decode(value)
        for name, value in raw.items()
    }


async def restore(connection: Connection, params: Mapping[str, Any], originals: Sequence[tuple[int, Original]]) -> None:
    """Insert messages and their feedback again, each at its position, in a transaction that has locked the session.

    Raises:
        Conflict: a message or feedback with one of the ids exists, or a position is taken.
    """
    tenant, session_id = params["tenant_id"], params["session_id"]
    rows = [(position, original.entry, original.created_us, original.updated_us) for position, original in originals]
    feedback = [{**row, "tenant_id": tenant} for _, original in originals for row in original.feedback]
    try:
        await insert(connection, tenant, session_id, rows)
    except AlreadyExists:
        raise Conflict(
            "a message to restore was appended again under its id, or its position is taken; delete that message first",
            reason="message_id_taken",
        ) from None
    try:
        await queries.insert_feedback.many(connection, feedback)
    except AlreadyExists:
        raise Conflict(
            "feedback to restore with its message was given again under its id; delete that feedback first",
            reason="feedback_id_taken",
        ) from None
