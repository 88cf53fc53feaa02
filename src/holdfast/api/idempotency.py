"""Ids that make a request repeatable: chosen by the caller, or told to a caller whose answer was lost."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from holdfast.errors import InvalidInput, OutcomeUnknown

from .operations import Header
from .state import Service

SETTLED_BY: ContextVar[str | None] = ContextVar("settled_by", default=None)
"""The id of what the request in hand is making."""

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
