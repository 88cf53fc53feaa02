"""The parameters of lists: pages and filters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Meta, Struct

from holdfast import Filter

from .schemas import moment

PAGE_ROWS = 100
"""Rows of a page when the caller does not say."""

Limit = Annotated[int, Meta(ge=1, description="Rows of one page at most.")]
Cursor = Annotated[str | None, Meta(description="The `next` of the page before.")]
Where = Annotated[
    list[Filter] | None,
    Meta(
        description=(
            "Filters as a JSON array, all of which must hold. Each names a `column` or a `meta` key, an operator `op` "
            "and a `value`; times are written as in the answers."
        )
    ),
]


def filters(where: Sequence[Filter] | None, row: type[Struct]) -> list[Filter]:
    """Filters as the store takes them: JSON has no times, so text compared with a time becomes one."""
    times = {name for name, hint in get_type_hints(row).items() if datetime in (hint, *get_args(hint))}
    return [_with_time(each) if each.column in times else each for each in where or ()]


def _with_time(each: Filter) -> Filter:
    value: Any = each.value
    if isinstance(value, list):
        return Filter(each.op, [moment(one) for one in value], each.column, each.meta)
    return each if value is None else Filter(each.op, moment(value), each.column, each.meta)
