"""What a compaction leaves behind: the event that says what it did, and the originals of all it removed or rewrote."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from ....core.queries import Queries
from ....core.rows import mapper
from ....engines.protocol import Connection, Row
from ....ids import Id
from ..message_log import Message


class CompactionEvent(Struct, frozen=True):
    """One compaction. ``original_tokens`` and ``compacted_tokens`` are of all the session showed before and after.

    ``preserved_message_ids`` are the messages that were protected, and ``rolled_back_at`` is when it was undone.
    """

    id: Id
    session_id: Id
    number: int
    branch: int
    strategy: str
    original_tokens: int
    compacted_tokens: int
    messages_removed: int
    messages_rewritten: int
    summary_content: str | None
    summary_message_id: Id | None
    preserved_message_ids: list[str]
    model_used: str | None
    duration_ms: int
    created_at: datetime
    updated_at: datetime
    rolled_back_at: datetime | None


class ArchivedMessage(Struct, frozen=True):
    """The original of a message that a compaction removed or, if ``is_rewritten``, rewrote."""

    event_id: Id
    message: Message
    is_rewritten: bool
    archived_at: datetime


class _Filing(Struct, frozen=True):
    """What the archive says about an original."""

    event_id: Id
    is_rewritten: bool
    archived_at: datetime


queries = Queries(__package__, "compactions.sql", Message, CompactionEvent)
_FIELDS = len(Message.__struct_fields__)


def events_of(connection: Connection, rows: list[Row] | tuple[Row, ...]) -> list[CompactionEvent]:
    """Rows as events."""
    return mapper(CompactionEvent, connection.dialect)(rows)


def archived_of(connection: Connection, rows: Any) -> list[ArchivedMessage]:
    """Rows as archived messages."""
    messages = mapper(Message, connection.dialect)([row[:_FIELDS] for row in rows])
    filings = mapper(_Filing, connection.dialect)([row[_FIELDS : _FIELDS + 3] for row in rows])
    return [
        ArchivedMessage(filing.event_id, message, filing.is_rewritten, filing.archived_at)
        for message, filing in zip(messages, filings, strict=True)
    ]
