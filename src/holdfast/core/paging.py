"""Keyset pages: a page starts after a row, not after a number of rows, so every page costs the same.

A cursor is opaque: it holds the sort values of the row where the page ended and the name of the list it belongs to. It holds
no tenant and no filter, so it gives nobody access to anything; the next call brings its own.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from ..engines.dialect import Dialect
from ..errors import InvalidFilter, InvalidInput, LimitExceeded
from ..ids import parse as parse_id
from ..limits import Limits
from .text import escape, unescape

T = TypeVar("T")
_MAX_NUMBER = 253_402_300_800_000_000
"""No place in a log and no moment is beyond this: it is the end of the year 9999 in microseconds."""


class Page(list[T]):
    """A list of rows that also knows how to go on: ``next`` is the cursor of the next page, or ``None`` at the end."""

    __slots__ = ("next",)

    def __init__(self, rows: Iterable[T] = (), next: str | None = None) -> None:
        super().__init__(rows)
        self.next = next


def rows_to_read(limit: int | None, limits: Limits) -> int:
    """How many rows to ask the database for: one more than wanted, to see whether there are more.

    Raises:
        InvalidInput: the limit is not a whole number from 1 on.
        LimitExceeded: it is over ``page_rows``.
    """
    if limit is None:
        return limits.list_rows + 1
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidInput(f"limit must be a whole number from 1 on, not {limit!r}")
    limits.check("page_rows", limit, "limit")
    return limit + 1


def page(rows: Sequence[T], limit: int | None, limits: Limits, nouns: str, cursor: Callable[[T], str]) -> Page[T]:
    """The page that was asked for, out of ``rows_to_read`` rows. ``cursor`` makes the cursor that starts after a row.

    Raises:
        LimitExceeded: without ``limit``, there are more than ``list_rows``.
    """
    most = limits.list_rows if limit is None else limit
    if len(rows) <= most:
        return Page(rows)
    if limit is None:
        raise LimitExceeded(f"there are more than list_rows = {most:,} {nouns}: page them with limit= and cursor=")
    return Page(rows[:most], cursor(rows[most - 1]))


def after(
    cursor: str | None,
    listing: str,
    columns: Mapping[str, Literal["time", "id", "text"]],
    params: dict[str, Any],
    dialect: Dialect,
) -> str:
    """The condition that a list in descending order of some columns continues after a cursor; ``""`` without one.

    Raises:
        InvalidFilter: the cursor was not made by this list.
    """
    if cursor is None:
        return ""
    values = decode_cursor(cursor, listing, *[int if kind == "time" else str for kind in columns.values()])
    marks = []
    for (column, kind), value in zip(columns.items(), values, strict=True):
        name = f"after_{column.rpartition('.')[2]}"
        params[name] = parse_id(value, "cursor") if kind == "id" else escape(value) if kind == "text" else value
        marks.append(f":{name}::uuid" if kind == "id" and dialect is Dialect.POSTGRES else f":{name}")
    return f"\n  AND ({', '.join(columns)}) < ({', '.join(marks)})"


def encode_cursor(listing: str, *values: Any) -> str:
    """An opaque cursor for the row with these sort values."""
    stored = [escape(value) if isinstance(value, str) else value for value in values]
    return base64.urlsafe_b64encode(msgspec.msgpack.encode([listing, *stored])).decode().rstrip("=")


def decode_cursor(cursor: str, listing: str, *kinds: type) -> list[Any]:
    """The sort values in a cursor.

    Raises:
        InvalidFilter: the cursor was not made by this list.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found = msgspec.msgpack.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=list[Any])
    except (AttributeError, ValueError, msgspec.MsgspecError, RecursionError):
        found = []
    if found[:1] != [listing] or [type(value) for value in found[1:]] != list(kinds) or not _in_range(found[1:]):
        raise InvalidFilter("that cursor does not belong to this list; take it from the page before")
    return [unescape(value) if isinstance(value, str) else value for value in found[1:]]


def _in_range(values: Sequence[Any]) -> bool:
    """Whether both engines can take the numbers: a forged cursor may hold any."""
    return all(0 <= value < _MAX_NUMBER for value in values if isinstance(value, int))
