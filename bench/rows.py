"""An append by hand with the rows and settings of Holdfast, used by the floors."""

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
    """Return the content blocks of a message as stored."""
    return _encode([{"type": "text", "text": message["content"]}]).decode()


def new_id() -> str:
    """Return a UUID version 7."""
    return str(uuid_utils.uuid7())


def by_hand(execute: Callable[..., Any], tenant: str, session: str) -> Append:
    """Return an append function with one transaction per append, as Holdfast writes for a single writer."""
    together = by_hand_together(execute, tenant, [session])
    return lambda _writer, message: together([message])


def by_hand_together(execute: Callable[..., Any], tenant: str, sessions: Sequence[str]) -> AppendTogether:
    """Return an append function with one transaction for a message to each session: the floor of a group commit."""
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
