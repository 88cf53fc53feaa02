"""New memories of crews: their checks, and their conversion to column values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from ...clock import to_us
from ...core import scope as scopes
from ...core import text
from ...errors import InvalidInput
from ...limits import Limits
from . import similarity


class NewCrewMemory(Struct, frozen=True, kw_only=True):
    """A memory to save. Without an embedding it is stored, but no search finds it."""

    content: str
    id: str | None = None
    scope: str = "/"
    categories: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    importance: float = 0.5
    source: str | None = None
    is_private: bool = False
    embedding: Sequence[float] | None = None
    created_at: datetime | None = None
    accessed_at: datetime | None = None


def new_row(scope: scopes.Scope, memory: NewCrewMemory) -> dict[str, Any]:
    """Check a memory and return its column values.

    Raises:
        InvalidInput: a field is not valid.
        LimitExceeded: a field is over a limit.
    """
    limits, now = scope.limits, scope.clock.now_us()
    packed = similarity.pack(memory.embedding, limits)
    source = memory.source
    return {
        "memory_id": scopes.name(memory.id or scope.ids.new(), "memory id", limits),
        "content": scopes.free_text(memory.content, "content", limits, limit="content_bytes"),
        "scope": scope_path(memory.scope, limits),
        "categories": _categories(memory.categories, limits),
        "metadata": scopes.metadata(memory.metadata, limits),
        "importance": _importance(memory.importance),
        "source": None if source is None else scopes.free_text(source, "source", limits, limit="key_bytes"),
        "is_private": bool(memory.is_private),
        "embedding": packed,
        "dimensions": len(packed) // 4,
        "created_at": now if memory.created_at is None else time_us(memory.created_at),
        "accessed_at": now if memory.accessed_at is None else time_us(memory.accessed_at),
    }


def scope_path(scope: object, limits: Limits) -> str:
    """Return a scope in its stored form: it starts with a slash and does not end with one.

    Raises:
        InvalidInput: the value is not a path.
        LimitExceeded: the path is too long.
    """
    if not isinstance(scope, str):
        raise InvalidInput(f"scope must be a path such as /company/team, not {type(scope).__name__}", field="scope")
    inner = scope.strip("/")
    return "/" if not inner else scopes.name(f"/{inner}", "scope", limits, limit="key_bytes")


def time_us(value: object) -> int:
    """Convert a datetime to microseconds; without a time zone it is taken as UTC.

    Raises:
        InvalidInput: the value is not a datetime.
    """
    if not isinstance(value, datetime):
        raise InvalidInput(f"times must be datetimes, not {type(value).__name__}")
    return to_us(value if value.tzinfo else value.replace(tzinfo=UTC))


def check_categories(categories: Sequence[str]) -> None:
    """Check that categories are a list of strings.

    Raises:
        InvalidInput: they are not.
    """
    if isinstance(categories, str) or not isinstance(categories, Sequence):
        raise InvalidInput("categories must be a list", field="categories")
    if not all(isinstance(category, str) for category in categories):
        raise InvalidInput("categories must be strings", field="categories")


def _categories(categories: Sequence[str], limits: Limits) -> str:
    check_categories(categories)
    stored = text.dump(list(categories))
    limits.check("metadata_bytes", text.size(stored), "categories")
    return stored


def _importance(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidInput(f"importance must be a number from 0 to 1, not {value!r}", field="importance")
    return float(value)
