"""What a compaction leaves behind: the event that says what it did, and the originals of all it removed or rewrote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from ....core.queries import Queries
from ....core.rows import mapper
from ....engines.protocol import Connection, Row
from ....ids import Id
from .. import originals
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


queries = Queries(__package__, "compactions.sql", Message, CompactionEvent, parts=originals.queries)


def events_of(connection: Connection, rows: list[Row] | tuple[Row, ...]) -> list[CompactionEvent]:
    """Rows as events."""
    return mapper(CompactionEvent, connection.dialect)(rows)


def archived_of(connection: Connection, rows: Sequence[Row]) -> list[ArchivedMessage]:
    """Rows of ``archived`` as archived messages."""
    filings = mapper(_Filing, connection.dialect)([row[3:6] for row in rows])
    return [
        ArchivedMessage(
            filing.event_id,
            originals.load(stored, connection.dialect).message(session_id, seq),
            filing.is_rewritten,
            filing.archived_at,
        )
        for (session_id, seq, stored, *_), filing in zip(rows, filings, strict=True)
    ]
