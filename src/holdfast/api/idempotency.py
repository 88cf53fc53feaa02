"""Ids that make a request repeatable: chosen by the caller, or reported to a caller whose request has an unknown outcome."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from holdfast.errors import InvalidInput, OutcomeUnknown

from .operations import Header
from .state import Service

RETRY_ID: ContextVar[str | None] = ContextVar("retry_id", default=None)
"""The id of the object that the current request creates."""

IdempotencyKey = Annotated[
    str | None,
    Header("Idempotency-Key"),
    Meta(
        description=(
            "A UUID that becomes the id if the body has none. Repeating the same request with the same id returns the first "
            "result; a request with the same id and different content is refused as a conflict. The guide defines which "
            "content is compared for sessions, runs and messages."
        )
    ),
]


def chosen_id(service: Service, in_body: str | UnsetType | None, in_header: str | None) -> str:
    """Return the id of the object to create: the caller's, from the body or the header, or a new one.

    Raises:
        InvalidInput: the body and the header contain different ids.
    """
    key = None if in_header is None else in_header.strip().strip('"')
    if in_body is None or in_body is UNSET:
        return service.ids.new() if key is None else key
    if key is not None and key.lower() != str(in_body).lower():
        raise InvalidInput(
            "the Idempotency-Key differs from the id in the body: send one of them", field="Idempotency-Key"
        )
    return str(in_body)


class retry_id:  # noqa: N801  # it is used like a function
    """Context manager that adds this id to an ``OutcomeUnknown``, so that the caller can retry with it even if it chose none."""

    __slots__ = ("_id",)

    def __init__(self, id: str) -> None:
        self._id = id

    def __enter__(self) -> None:
        RETRY_ID.set(self._id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(str(error), id=error.id or self._id) from error
