"""Values of filters: their checks, and their conversion to parameters of a statement."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..clock import to_us
from ..engines.dialect import Dialect
from ..errors import InvalidFilter, InvalidInput
from ..ids import parse as parse_id
from . import text

_MAX_NUMBER = 10**16
"""Numbers to compare must be smaller than this: above it, the engines disagree on the digits of a float."""


def scalar_kind(value: Any) -> str:
    """Return the kind of a scalar: null, true, false, number or text.

    Raises:
        InvalidFilter: the value is not a scalar, or is a number that the engines compare differently.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        if not abs(value) < _MAX_NUMBER:  # "not", because NaN compares false with everything
            raise InvalidFilter(
                f"a number to filter by must be finite and under 1e16, not {short_repr(value)}", field="value"
            )
        return "number"
    if isinstance(value, str):
        return "text"
    raise InvalidFilter(
        f"a value to filter by must be text, a number, true, false or null, not {type(value).__name__}", field="value"
    )


def scalar_param(value: Any, kind: str, dialect: Dialect) -> Any:
    """Return a scalar as a parameter of an equality: the value or the name of its type on SQLite, JSON on PostgreSQL."""
    if dialect is Dialect.POSTGRES:
        return text.dump(value)
    return kind if kind in ("true", "false", "null") else plain_param(value)


def plain_param(value: Any) -> Any:
    """Return a text or a number as a parameter that is compared without JSON."""
    return text.escape(value) if isinstance(value, str) else text.plain(value)


def column_param(value: Any, public: str, kind: str) -> Any:
    """Return a value as a parameter that is compared with a column of a kind.

    Raises:
        InvalidFilter: the column is not compared with such a value.
    """
    if kind == "time" and isinstance(value, datetime) and value.tzinfo is not None:
        return _time_us(value, public)
    if kind == "number" and isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER:
        return text.plain(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "text" and isinstance(value, str):
        return text.escape(value)
    if kind == "id" and isinstance(value, str):
        return _parse_id(value, public)
    expected = {"time": "a datetime with a time zone", "number": "a whole number under 1e16", "bool": "true or false"}
    raise InvalidFilter(
        f"{public} is compared with {expected.get(kind, 'text')}, not {short_repr(value)}", field=public
    )


def _time_us(value: datetime, public: str) -> int:
    try:
        return to_us(value)
    except InvalidInput:
        raise InvalidFilter(
            f"{public} must be between the years 1 and 9999 in UTC, not {value}", field=public
        ) from None


def _parse_id(value: str, public: str) -> str:
    try:
        return parse_id(value, public)
    except InvalidInput as error:
        raise InvalidFilter(str(error), field=public) from None


def short_repr(value: Any) -> str:
    """Return a short ``repr`` for an error message, even of values whose ``repr`` fails."""
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):  # a number with thousands of digits, a list that contains itself
        return f"{type(value).__name__} without a repr"
