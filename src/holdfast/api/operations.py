"""What an operation is: a typed function with a method and a path.

The signature says everything. The first parameter is the ``Service``. A parameter named in the path comes from there; ``body`` is
the JSON body; one annotated with ``Header`` comes from that header; every other one is a query parameter, and one that is not a
plain value is written there as JSON. The return type is the body of the answer::

    @operation("GET", "/v1/tenants/{tenant}/sessions/{session_id}", raises=[NotFound], etag=session_etag)
    async def get_session(service: Service, *, tenant: str, session_id: Uuid) -> Session:
        \"\"\"One session.\"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.errors import (
    Forbidden,
    HoldfastError,
    InvalidInput,
    LimitExceeded,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)

from .problems import BodyTooLarge, WrongContentType, status_of

Function = Callable[..., Coroutine[Any, Any, Any]]
F = TypeVar("F", bound=Function)

_ALWAYS: tuple[type[HoldfastError], ...] = (InvalidInput, Forbidden, HoldfastError)
_WITH_DATABASE: tuple[type[HoldfastError], ...] = (LimitExceeded, Unavailable)
_WHEN_WRITING: tuple[type[HoldfastError], ...] = (StorageFull, OutcomeUnknown)
_WITH_BODY: tuple[type[HoldfastError], ...] = (BodyTooLarge, WrongContentType)


class Header(Struct, frozen=True):
    """Says which header a parameter comes from."""

    name: str


class Operation(Struct, frozen=True):
    """One function, and where it is found."""

    method: str
    path: str
    function: Function
    status: int
    raises: tuple[type[HoldfastError], ...]
    etag: Callable[[Any], str] | None

    @property
    def tag(self) -> str:
        """The group it stands in: the last word of the path that is a plural noun, or ``server``."""
        words = [word for word in self.path.split("/") if word in ("tenants", "sessions", "messages")]
        return words[-1] if words else "server"

    @property
    def has_body(self) -> bool:
        return "body" in self.function.__annotations__

    @property
    def errors(self) -> tuple[type[HoldfastError], ...]:
        """Everything that can go wrong: what it raises, and what can happen to every request of its sort."""
        kinds = _ALWAYS + self.raises + (_WITH_BODY if self.has_body else ())
        if self.path.startswith("/v1"):
            kinds += _WITH_DATABASE + (_WHEN_WRITING if self.method != "GET" else ())
        return kinds

    @property
    def statuses(self) -> list[int]:
        """Every status it can be answered with, the good one first."""
        return [self.status, *sorted({status_of(kind) for kind in self.errors})]


def operation(
    method: str,
    path: str,
    *,
    status: int = 200,
    raises: Sequence[type[HoldfastError]] = (),
    etag: Callable[[Any], str] | None = None,
) -> Callable[[F], F]:
    """Mark a function as an operation; ``collect`` finds it."""

    def mark(function: F) -> F:
        function.operation = Operation(method, path, function, status, tuple(raises), etag)  # type: ignore[attr-defined]
        return function

    return mark


def collect(*modules: object) -> list[Operation]:
    """The operations of these modules, in the order they are written."""
    found = [getattr(each, "operation", None) for module in modules for each in vars(module).values()]
    return [each for each in found if isinstance(each, Operation)]
