"""Argument checks that several stores share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidInput
from ..ids import parse as parse_id
from ..limits import Limits

MAX_NUMBER = 2**62


def whole_number(value: object, what: str, *, minimum: int = 0, maximum: int = MAX_NUMBER) -> int:
    """Return a whole number within a range. ``True`` and ``False`` are not numbers.

    Raises:
        InvalidInput: the value is of another type or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        upper = "on" if maximum >= MAX_NUMBER else f"to {maximum:,}"
        raise InvalidInput(f"{what} must be a whole number from {minimum} {upper}, not {value!r}", field=what)
    return value


def list_of(kind: type, values: object, what: str) -> Sequence[Any]:
    """Return a list or tuple in which every item is an instance of a type.

    Raises:
        InvalidInput: the value is of another type, or one of its items is.
    """
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(value, kind) for value in values)
    ):
        raise InvalidInput(f"{what} must be a list of {kind.__name__}", field=what)
    return values


def id_batch(ids: object, what: str, limits: Limits) -> list[str]:
    """Return a list of at most ``batch_rows`` ids in their stored form.

    Raises:
        InvalidInput: the value is not a list, or one of its items is not an id.
        LimitExceeded: the list is longer than ``batch_rows``.
    """
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise InvalidInput(f"{what} must be a list of ids", field=what)
    limits.check("batch_rows", len(ids), what)
    return [parse_id(id, "message id") for id in ids]
