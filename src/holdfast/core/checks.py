"""Checks of arguments that many stores have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidInput
from ..ids import parse as parse_id
from ..limits import Limits

MAX_NUMBER = 2**62


def whole_number(value: object, what: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """A whole number in a range. ``True`` and ``False`` are none.

    Raises:
        InvalidInput: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        upper = "on" if most >= MAX_NUMBER else f"to {most:,}"
        raise InvalidInput(f"{what} must be a whole number from {least} {upper}, not {value!r}")
    return value


def list_of(kind: type, values: object, what: str) -> Sequence[Any]:
    """A list or tuple that holds nothing but instances of a type.

    Raises:
        InvalidInput: it is something else.
    """
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(each, kind) for each in values)
    ):
        raise InvalidInput(f"{what} must be a list of {kind.__name__}")
    return values


def id_batch(ids: object, what: str, limits: Limits) -> list[str]:
    """A list of ids, at most ``batch_rows``, in the form that is stored.

    Raises:
        InvalidInput: it is no list, or something in it is no id.
        LimitExceeded: there are more.
    """
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise InvalidInput(f"{what} must be a list of ids")
    limits.check("batch_rows", len(ids), what)
    return [parse_id(id, "message id") for id in ids]
