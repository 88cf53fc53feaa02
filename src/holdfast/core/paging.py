"""Keyset pages: a page starts after a row, not after a number of rows, so every page costs the same.

A cursor is opaque: it contains the sort values of the last row of a page and the name of the list it belongs to. It contains
no tenant and no filter, so it grants no access; the next call passes its own.
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
"""The end of the year 9999 in microseconds: no time and no position in a log is greater."""


class Page(list[T]):
    """A list of rows; ``next`` is the cursor of the next page, or ``None`` on the last page."""

    __slots__ = ("next",)

    def __init__(self, rows: Iterable[T] = (), next: str | None = None) -> None:
        super().__init__(rows)
        self.next = next


def rows_to_read(limit: int | None, limits: Limits) -> int:
    """Return the number of rows to query: one more than requested, to see whether there are more.

    Raises:
        InvalidInput: the limit is not a whole number from 1 on.
        LimitExceeded: the limit is over ``page_rows``.
    """
    if limit is None:
        return limits.list_rows + 1
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidInput(f"limit must be a whole number from 1 on, not {limit!r}", field="limit")
    limits.check("page_rows", limit, "limit")
    return limit + 1


def page(rows: Sequence[T], limit: int | None, limits: Limits, nouns: str, cursor: Callable[[T], str]) -> Page[T]:
    """Return the requested page of the rows read with ``rows_to_read``. ``cursor`` returns the cursor that starts after a row.

    Raises:
        LimitExceeded: without ``limit``, there are more than ``list_rows``.
    """
    maximum = limits.list_rows if limit is None else limit
    if len(rows) <= maximum:
        return Page(rows)
    if limit is None:
        raise LimitExceeded(
            f"there are more than list_rows = {maximum:,} {nouns}: page them with limit= and cursor=",
            limit="list_rows",
            maximum=maximum,
        )
    return Page(rows[:maximum], cursor(rows[maximum - 1]))


def after_clause(
    cursor: str | None,
    listing: str,
    columns: Mapping[str, Literal["time", "id", "text"]],
    params: dict[str, Any],
    dialect: Dialect,
) -> str:
    """Return the SQL condition that continues a list in descending order after a cursor; ``""`` without a cursor.

    Raises:
        InvalidFilter: the cursor belongs to another list.
    """
    if cursor is None:
        return ""
    values = decode_cursor(cursor, listing, *[int if kind == "time" else str for kind in columns.values()])
    placeholders = []
    for (column, kind), value in zip(columns.items(), values, strict=True):
        name = f"after_{column.rpartition('.')[2]}"
        params[name] = parse_id(value, "cursor") if kind == "id" else escape(value) if kind == "text" else value
        placeholders.append(f":{name}::uuid" if kind == "id" and dialect is Dialect.POSTGRES else f":{name}")
    return f"\n  AND ({', '.join(columns)}) < ({', '.join(placeholders)})"


def encode_cursor(listing: str, *values: Any) -> str:
    """Return an opaque cursor for the row with these sort values."""
    escaped = [escape(value) if isinstance(value, str) else value for value in values]
    return base64.urlsafe_b64encode(msgspec.msgpack.encode([listing, *escaped])).decode().rstrip("=")


def decode_cursor(cursor: str, listing: str, *kinds: type) -> list[Any]:
    """Return the sort values in a cursor.

    Raises:
        InvalidFilter: the cursor belongs to another list.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        decoded = msgspec.msgpack.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=list[Any])
    except (AttributeError, ValueError, msgspec.MsgspecError, RecursionError):
        decoded = []
    values = decoded[1:]
    if decoded[:1] != [listing] or [type(value) for value in values] != list(kinds) or not _in_range(values):
        raise InvalidFilter("the cursor does not belong to this list; take it from the previous page", field="cursor")
    return [unescape(value) if isinstance(value, str) else value for value in values]


def _in_range(values: Sequence[Any]) -> bool:
    """Return whether both engines accept the numbers: a forged cursor may contain any."""
    return all(0 <= value < _MAX_NUMBER for value in values if isinstance(value, int))
