"""What several resources have in common: pages, filters, and ids that make a request repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import Filter
from holdfast.errors import InvalidInput, OutcomeUnknown

from .operations import Header
from .service import Service
from .wire import moment

SETTLED_BY: ContextVar[str | None] = ContextVar("settled_by", default=None)
"""The id of what the request in hand is making."""
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
IdempotencyKey = Annotated[
    str | None,
    Header("Idempotency-Key"),
    Meta(
        description=(
            "A UUID that becomes the id, if the body has none. The same request with the same id is answered with the "
            "first result; one that differs in what the id stands for is refused as a conflict. The guide says what that "
            "is for sessions, runs and messages."
        )
    ),
]


def filters(where: Sequence[Filter] | None, row: type[Struct]) -> list[Filter]:
    """Filters as the store takes them: JSON has no times, so text compared with a time becomes one."""
    times = {name for name, hint in get_type_hints(row).items() if datetime in (hint, *get_args(hint))}
    return [_with_time(each) if each.column in times else each for each in where or ()]


def chosen_id(service: Service, in_body: str | UnsetType | None, in_header: str | None) -> str:
    """The id of what is to be made: the caller's, from either place, or a new one.

    Raises:
        InvalidInput: the two places differ.
    """
    key = None if in_header is None else in_header.strip().strip('"')
    if in_body is None or in_body is UNSET:
        return service.ids.new() if key is None else key
    if key is not None and key.lower() != str(in_body).lower():
        raise InvalidInput("the Idempotency-Key is not the id in the body: send one of them, or twice the same")
    return str(in_body)


class settled_by:  # noqa: N801  # it is used like a function
    """Tell a caller whose answer was lost which id to ask again with, even if it chose none."""

    __slots__ = ("_id",)

    def __init__(self, id: str) -> None:
        self._id = id

    def __enter__(self) -> None:
        SETTLED_BY.set(self._id)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(str(error), id=error.id or self._id) from error


def _with_time(each: Filter) -> Filter:
    value: Any = each.value
    if isinstance(value, list):
        return Filter(each.op, [moment(one) for one in value], each.column, each.meta)
    return each if value is None else Filter(each.op, moment(value), each.column, each.meta)
