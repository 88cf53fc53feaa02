"""Conditions of a list of sessions: the filters a caller may use, and where a page starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...clock import MINUTE_US
from ...core.filters import Filter, Filterable, equal_metadata, listed
from ...core.paging import decode_cursor
from ...engines.dialect import Dialect
from ...ids import parse as parse_id
from ...limits import Limits

FILTERS = Filterable(
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


def matching(
    user: str | None,
    agent: str | None,
    metadata: Mapping[str, Any] | None,
    where: Sequence[Filter],
    params: dict[str, Any],
    dialect: Dialect,
    limits: Limits,
) -> str:
    """SQL conditions for the sessions asked for; their values are put into ``params``.

    Raises:
        InvalidFilter: a filter is not part of the language.
    """
    named = (("user", user), ("agent", agent))
    plain = [Filter("eq", value, column=name) for name, value in named if value is not None]
    return FILTERS.compile([*plain, *equal_metadata(metadata), *listed(where)], params, dialect, limits)


def after(cursor: str | None, params: dict[str, Any], dialect: Dialect) -> str:
    """The condition that a page starts after a cursor."""
    if cursor is None:
        return ""
    after_at, after_id = decode_cursor(cursor, "sessions", int, str)
    params.update(after_minute=after_at // MINUTE_US, after_at=after_at, after_id=parse_id(after_id, "cursor"))
    cast = "::uuid" if dialect.native_time else ""
    return (
        "\n  AND updated_minute <= :after_minute"
        f"\n  AND (updated_minute, updated_at, id) < (:after_minute, :after_at, :after_id{cast})"
    )
