"""One request of a kagent client: its user, its parameters and body, and the format of responses.

The user is named by the query, else by a header, else it is kagent's default user, because some clients cannot name one. A
response is ``{"error": false, "data": ..., "message": "..."}``, always with ``data``; an error is ``{"error": "<message>"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote, unquote_plus

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import SERVICE_USER, AsyncTenantHandle
from holdfast.declared.rows import agent_id
from holdfast.errors import InvalidInput

from ..request_body import JSON_TYPE
from ..schemas import decode, encode
from ..state import Service

T = TypeVar("T")

DEFAULT_USER = SERVICE_USER
"""The user of requests that name none, as in kagent."""
_USER_ENDS = frozenset("&#")
"""Characters that end a user's name that was written into a URL without encoding."""


class KagentRequest:
    """A request with the service, the tenant and the user that it concerns."""

    __slots__ = ("_data", "agent", "names", "query", "service", "share_token", "tenant", "user", "version")

    def __init__(
        self,
        service: Service,
        tenant: AsyncTenantHandle,
        names: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        query: str,
        data: bytes,
    ) -> None:
        self.service, self.tenant, self.names, self._data = service, tenant, names, data
        self.query = parameters(query)
        self.user = user_of(query, header(headers, b"x-user-id"))
        self.agent = agent_id(header(headers, b"x-agent-name") or "")
        self.share_token = header(headers, b"x-share-token")
        self.version = header(headers, b"a2a-version") or "0.3"

    def body(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return the body as the decoder's type; an empty one is an empty object.

        Raises:
            InvalidInput: it does not match the type.
        """
        return decode(self._data or b"{}", decoder)

    def required(self, name: str) -> str:
        """Return a required query parameter.

        Raises:
            InvalidInput: it is missing or empty.
        """
        value = self.query.get(name, "")
        if not value:
            raise InvalidInput(f"the parameter {name} is missing", field=name)
        return value

    def number(self, name: str, default: int) -> int:
        """Return a query parameter as an integer.

        Raises:
            InvalidInput: it is not an integer.
        """
        value = self.query.get(name)
        if value is None or value == "":
            return default
        try:
            return int(value)
        except ValueError:
            raise InvalidInput(f"the parameter {name} must be an integer, not {value!r}", field=name) from None


Handler = Callable[[KagentRequest], Coroutine[Any, Any, Response]]


class KagentRoute(Struct, frozen=True):
    """One method on one path."""

    method: str
    path: str
    handler: Handler
    need: str


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Declare a function as the handler of a path; ``routing`` finds it."""

    def mark(handler: Handler) -> Handler:
        existing = getattr(handler, "kagent_routes", ())
        need = "read" if method == "GET" else "write"
        handler.kagent_routes = (*existing, KagentRoute(method, path, handler, need))  # type: ignore[attr-defined]
        return handler

    return mark


class Envelope(Struct, frozen=True):
    """The envelope of responses."""

    data: Any
    message: str
    error: bool = False


def success(data: Any, message: str, status: int = 200) -> Response:
    """Return a response in an envelope. ``data`` is always present: two clients require it."""
    return bare(Envelope(data, message), status)


def bare(data: Any, status: int = 200) -> Response:
    """Return a response without an envelope, as in the memory routes."""
    return Response(encode(data), status, {"cache-control": "no-store"}, JSON_TYPE)


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error response in kagent's format."""
    return Response(encode({"error": message}), status, {"cache-control": "no-store", **(headers or {})}, JSON_TYPE)


def header(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """Return the value of a header, or ``None`` if it is missing or empty."""
    value = headers.get(name, b"").strip()
    return value.decode("utf-8", "replace") if value else None


def parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query; the first value of a repeated one."""
    values: dict[str, str] = {}
    for name, value in _raw(query):
        values.setdefault(unquote_plus(name), unquote_plus(value))
    return values


def user_of(query: str, in_header: str | None) -> str:
    """Return the user of a request.

    Some calls of the session client write the user's name into the URL without encoding: then a plus is a plus, and everything
    after ``&`` or ``#`` is lost. If the header contains the whole of such a name, the header is used.
    """
    raw = next((value for name, value in _raw(query) if name == "user_id"), "")
    is_unencoded = "@" in raw or "%20" in raw
    in_query = (unquote if is_unencoded else unquote_plus)(raw)
    if not in_query:
        return in_header or DEFAULT_USER
    if in_header is not None and (in_header == in_query.replace(" ", "+") or _is_cut_off(in_query, in_header)):
        return in_header
    return in_query


def _is_cut_off(start: str, whole: str) -> bool:
    return whole.startswith(start) and whole[len(start) : len(start) + 1] in _USER_ENDS


def _raw(query: str) -> list[tuple[str, str]]:
    pairs = [parameter.partition("=") for parameter in query.split("&") if parameter]
    return [(name, value) for name, _, value in pairs]
