"""A model of filters in plain Python; both engines must match the same rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET

from holdfast.core.filters import Filter
from holdfast.core.text import escape
from holdfast.errors import InvalidFilter, LimitExceeded
from holdfast.limits import Limits

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_LARGE = 10**16
_MISSING = object()

Columns = Mapping[str, str]
"""The columns that filters support, with their kinds."""

SESSION_COLUMNS: Columns = {
    "id": "id",
    "key": "text",
    "user": "text",
    "agent": "text",
    "message_count": "number",
    "token_count": "number",
    "compaction_count": "number",
    "created_at": "time",
    "updated_at": "time",
}
MESSAGE_COLUMNS: Columns = {
    "seq": "number",
    "kind": "text",
    "role": "text",
    "token_count": "number",
    "is_preserved": "bool",
    "is_summary": "bool",
    "created_at": "time",
    "content": "json",
}


def check(filters: Sequence[Any], columns: Columns, limits: Limits) -> None:
    """Raise for a filter that is not part of the language.

    Raises:
        InvalidFilter: one of them is not.
        LimitExceeded: there are too many of them, or of their values.
    """
    if len(filters) > limits.filters:
        raise LimitExceeded
    for item in filters:
        if not isinstance(item, Filter) or (item.column is UNSET) == (item.meta is UNSET):
            raise InvalidFilter
        values = item.value if item.op == "in" else [item.value]
        if item.op == "in" and len(values) > limits.filter_values:
            raise LimitExceeded
        for value in values:
            if isinstance(item.column, str):
                _check_column(item.op, value, columns.get(item.column))
            else:
                _check_meta(item.op, value)


def matches(row: Any, filters: Sequence[Filter]) -> bool:
    """Return whether a row, with its columns and ``metadata`` as attributes, matches all filters."""
    return all(_matches(row, item) for item in filters)


def _matches(row: Any, f: Filter) -> bool:
    if f.column == "content":
        return contains(row.content, f.value) or (isinstance(f.value, dict) and contains(row.content, [f.value]))
    if isinstance(f.column, str):
        return _column(getattr(row, f.column), f)
    actual = row.metadata.get(f.meta, _MISSING)
    if f.op == "ne":
        return not _equal(actual, f.value)
    if f.op == "in":
        return any(_equal(actual, value) for value in f.value)
    if f.op == "eq":
        return _equal(actual, f.value)
    if f.op == "contains":
        if isinstance(actual, list):
            return any(_equal(item, f.value) for item in actual)
        return isinstance(actual, str) and isinstance(f.value, str) and f.value in actual
    if _kind(actual) != _kind(f.value):
        return False
    return _COMPARISONS[f.op](_sortable(actual), _sortable(f.value))


def contains(whole: Any, part: Any) -> bool:
    """Return whether a JSON value contains another, as PostgreSQL's ``@>`` defines it."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(entry, item) for entry in whole) for item in part)
    return _equal(whole, part)


def _column(stored: Any, f: Filter) -> bool:
    if f.op == "ne":
        return bool(stored != f.value)
    if f.op == "in":
        return stored in f.value
    if f.op == "eq":
        return bool(stored == f.value)
    if stored is None:
        return False
    if f.op == "contains":
        return f.value in stored
    return _COMPARISONS[f.op](_sortable(stored), _sortable(f.value))


def _equal(stored: Any, value: Any) -> bool:
    """Return whether two JSON scalars are equal: true is not 1, "1" is not 1, 1.0 is 1."""
    return _kind(stored) == _kind(value) != "other" and stored == value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _sortable(value: Any) -> Any:
    """Return text in its stored form, in which it is compared."""
    return escape(value) if isinstance(value, str) else value


def _check_column(op: str, value: Any, kind: str | None) -> None:
    if kind is None or op not in (*_COMPARISONS, "eq", "ne", "in", "contains"):
        raise InvalidFilter
    if kind == "json":
        if op != "contains" or not isinstance(value, (dict, list)):
            raise InvalidFilter
        _check_part(value)
        return
    if value is None and op in ("eq", "ne", "in"):
        return
    fits = {
        "text": isinstance(value, str),
        "id": isinstance(value, str),
        "bool": isinstance(value, bool),
        "number": isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGE,
        "time": isinstance(value, datetime) and value.tzinfo is not None,
    }
    if not fits[kind] or (op == "contains" and kind != "text") or (op in _COMPARISONS and kind == "bool"):
        raise InvalidFilter


def _check_part(value: Any) -> None:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_part(item)
    elif _kind(value) == "number" and not abs(value) < _LARGE:
        raise InvalidFilter


def _check_meta(op: str, value: Any) -> None:
    if op not in (*_COMPARISONS, "eq", "ne", "in", "contains"):
        raise InvalidFilter
    kind = _kind(value)
    if kind == "other" or (kind == "number" and not abs(value) < _LARGE):
        raise InvalidFilter
    if op in _COMPARISONS and kind not in ("number", "text"):
        raise InvalidFilter
