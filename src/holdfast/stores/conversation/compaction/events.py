"""Row types of compactions: the event, and the archived originals of removed and rewritten messages."""

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
    """One compaction. ``original_tokens`` and ``compacted_tokens`` count the whole session before and after it.

    ``preserved_message_ids`` are the messages that were protected, and ``rolled_back_at`` is when it was rolled back.
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


class _ArchiveEntry(Struct, frozen=True):
    """The archive's columns about one original."""

    event_id: Id
    is_rewritten: bool
    archived_at: datetime


queries = Queries(__package__, "compactions.sql", Message, CompactionEvent, parts=originals.queries)


def events_of(connection: Connection, rows: list[Row] | tuple[Row, ...]) -> list[CompactionEvent]:
    """Convert rows to events."""
    return mapper(CompactionEvent, connection.dialect)(rows)


def archived_messages_of(connection: Connection, rows: Sequence[Row]) -> list[ArchivedMessage]:
    """Convert rows of the query ``archived`` to archived messages."""
    entries = mapper(_ArchiveEntry, connection.dialect)([row[3:6] for row in rows])
    return [
        ArchivedMessage(
            entry.event_id,
            originals.load(original, connection.dialect).message(session_id, seq),
            entry.is_rewritten,
            entry.archived_at,
        )
        for (session_id, seq, original, *_), entry in zip(rows, entries, strict=True)
    ]
