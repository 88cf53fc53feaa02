"""SQL conditions for lists of sessions: the filters that callers may use, and the start of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...clock import MINUTE_US
from ...core.filters import Filter, FilterColumns, equal_metadata, filter_list
from ...core.paging import decode_cursor
from ...engines.dialect import Dialect
from ...ids import parse as parse_id
from ...limits import Limits

FILTERS = FilterColumns(
    {
        "id": ("id", "id"),
        "key": ("identifier", "text"),
        "user": ("user_id", "text"),
        "agent": ("agent_id", "text"),
        "message_count": ("message_count", "number"),
        "token_count": ("token_count", "number"),
        "compaction_count": ("compaction_count", "number"),
        "created_at": ("created_at", "time"),
        "updated_at": ("updated_at", "time"),
    },
    metadata="metadata",
)


def compile_filters(
    user: str | None,
    agent: str | None,
    metadata: Mapping[str, Any] | None,
    where: Sequence[Filter],
    params: dict[str, Any],
    dialect: Dialect,
    limits: Limits,
) -> str:
    """Return SQL conditions for the requested sessions, and add their values to ``params``.

    Raises:
        InvalidFilter: a filter is not part of the language.
    """
    columns = (("user", user), ("agent", agent))
    plain = [Filter("eq", value, column=name) for name, value in columns if value is not None]
    return FILTERS.compile([*plain, *equal_metadata(metadata), *filter_list(where)], params, dialect, limits)


def after_clause(cursor: str | None, params: dict[str, Any], dialect: Dialect) -> str:
    """Return the condition that a page starts after a cursor."""
    if cursor is None:
        return ""
    after_at, after_id = decode_cursor(cursor, "sessions", int, str)
    params.update(after_minute=after_at // MINUTE_US, after_at=after_at, after_id=parse_id(after_id, "cursor"))
    cast = "::uuid" if dialect.native_time else ""
    return (
        "\n  AND updated_minute <= :after_minute"
        f"\n  AND (updated_minute, updated_at, id) < (:after_minute, :after_at, :after_id{cast})"
    )
