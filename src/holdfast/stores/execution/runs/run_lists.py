"""Lists of runs: the filters that callers may use, and the index for each list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.filters import Filter, FilterColumns

FILTERS = FilterColumns(
    {
        "id": ("id", "id"),
        "session_id": ("session_id", "id"),
        "agent": ("agent_id", "text"),
        "status": ("status", "text"),
        "iteration": ("iteration", "number"),
        "parent_run_id": ("parent_run_id", "id"),
        "depth": ("depth", "number"),
        "started_at": ("started_at", "time"),
        "finished_at": ("finished_at", "time"),
    },
    metadata="metadata",
)
_INDEXES = {
    "parent_run_id": "runs_by_parent",
    "session_id": "runs_by_session",
    "agent": "runs_by_agent",
    "status": "runs_by_status",
}
"""The index for a list with an equal value in a column, the most selective first."""


def equal_columns(columns: Mapping[str, Any]) -> list[Filter]:
    """Return filters for the values that are not ``None``."""
    return [Filter("eq", value, column=name) for name, value in columns.items() if value is not None]


def index_for(columns: Mapping[str, Any]) -> str:
    """Return the index for a list of runs with these values; ``None`` means any value."""
    return next((index for column, index in _INDEXES.items() if columns[column]), "runs_by_start")
