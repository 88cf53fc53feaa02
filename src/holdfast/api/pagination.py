"""Parameters of list operations: pages and filters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Meta, Struct

from holdfast import Filter

from .schemas import parse_time

PAGE_ROWS = 100
"""Default number of rows of a page."""

Limit = Annotated[int, Meta(ge=1, description="Maximum number of rows on the page.")]
Cursor = Annotated[str | None, Meta(description="The `next` of the previous page.")]
Where = Annotated[
    list[Filter] | None,
    Meta(
        description=(
            "Filters as a JSON array; a row must match all of them. Each has a `column` or a `meta` key, an operator `op` "
            "and a `value`; times are formatted as in responses."
        )
    ),
]


def filters(where: Sequence[Filter] | None, row: type[Struct]) -> list[Filter]:
    """Convert filters for the store: JSON has no times, so text that is compared with a time is parsed."""
    times = {name for name, hint in get_type_hints(row).items() if datetime in (hint, *get_args(hint))}
    return [_with_time(condition) if condition.column in times else condition for condition in where or ()]


def _with_time(condition: Filter) -> Filter:
    value: Any = condition.value
    if isinstance(value, list):
        return Filter(condition.op, [parse_time(item) for item in value], condition.column, condition.meta)
    return condition if value is None else Filter(condition.op, parse_time(value), condition.column, condition.meta)
