"""What one append writes, by hand: the rows and settings Holdfast uses, for the floors to be measured against."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import uuid_utils

from .workload import Append, AppendTogether, Message

_PRAGMAS = (
    "PRAGMA busy_timeout = 30000",
    "PRAGMA foreign_keys = ON",
    "PRAGMA cache_size = -65536",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
)

_ADVANCE = """
UPDATE sessions SET next_seq = next_seq + 1, message_count = message_count + 1, updated_at = ?
WHERE tenant_id = ? AND id = ? AND deleted_at IS NULL
RETURNING next_seq - 1
"""

_ADVANCE_TO_MINUTE = """
UPDATE sessions SET next_seq = next_seq + 1, message_count = message_count + 1, updated_at = ?, updated_minute = ?
WHERE tenant_id = ? AND id = ? AND deleted_at IS NULL
RETURNING next_seq - 1
"""

_INSERT = """
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
VALUES (?, ?, ?, ?, 'message', ?, ?, 0, '{}', 0, 0, ?, ?)
"""

_encode = msgspec.json.Encoder().encode


def content(message: Message) -> str:
    """The blocks of a message as they are stored."""
    return _encode([{"type": "text", "text": message["content"]}]).decode()


def new_id() -> str:
    """A UUID version 7."""
    return str(uuid_utils.uuid7())


def by_hand(execute: Callable[..., Any], tenant: str, session: str) -> Append:
    """One transaction for each append, as Holdfast makes it for a lone writer."""
    together = by_hand_together(execute, tenant, [session])
    return lambda _writer, message: together([message])


def by_hand_together(execute: Callable[..., Any], tenant: str, sessions: Sequence[str]) -> AppendTogether:
    """One transaction for a message to each of some sessions: what no group commit of these rows can be quicker than."""
    for pragma in _PRAGMAS:
        execute(pragma).fetchall()
    minute = 0

    def append(messages: Sequence[Message]) -> None:
        nonlocal minute
        now = time.time_ns() // 1_000
        rows = [(new_id(), message["role"], content(message), now, now) for message in messages]
        execute("BEGIN IMMEDIATE")
        for session, row in zip(sessions, rows, strict=True):
            if now // 60_000_000 == minute:
                ((seq,),) = execute(_ADVANCE, (now, tenant, session)).fetchall()
            else:
                ((seq,),) = execute(_ADVANCE_TO_MINUTE, (now, now // 60_000_000, tenant, session)).fetchall()
            execute(_INSERT, (tenant, session, seq, *row))
        execute("COMMIT")
        minute = now // 60_000_000

    return append
