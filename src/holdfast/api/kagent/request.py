"""One request of a kagent client: who asks, what is asked, and what an answer looks like.

The user is named by the query, else by a header, else it is kagent's default user: some of its clients can name nobody. An
answer is ``{"error": false, "data": ..., "message": "..."}``, always with ``data``; an error is ``{"error": "<words>"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote, unquote_plus

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import SERVICE_USER, AsyncTenantHandle
from holdfast.errors import InvalidInput

from ..request_body import JSON_TYPE
from ..schemas import decode, encode
from ..state import Service

T = TypeVar("T")

DEFAULT_USER = SERVICE_USER
"""Who asks when nobody is named, as in kagent."""
_OF_NO_USER = frozenset("&#")
"""What ends a user's name in an address into which it was written as it is."""


class Ask:
    """A request, and everything that is needed to answer it."""

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
        """The body as the decoder's type; one that was left out is an empty object.

        Raises:
            InvalidInput: it is not that.
        """
        return decode(self._data or b"{}", decoder)

    def required(self, name: str) -> str:
        """A query parameter that must be there.

        Raises:
            InvalidInput: it is not, or is empty.
        """
        value = self.query.get(name, "")
        if not value:
            raise InvalidInput(f"the parameter {name} is missing")
        return value

    def number(self, name: str, otherwise: int) -> int:
        """A query parameter that is a whole number.

        Raises:
            InvalidInput: it is none.
        """
        value = self.query.get(name)
        if value is None or value == "":
            return otherwise
        try:
            return int(value)
        except ValueError:
            raise InvalidInput(f"the parameter {name} is a whole number, not {value!r}") from None


Handler = Callable[[Ask], Coroutine[Any, Any, Response]]


class Route(Struct, frozen=True):
    """One thing that can be asked."""

    method: str
    path: str
    handler: Handler
    need: str


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Mark a function as what answers there; ``routing`` finds it."""

    def mark(handler: Handler) -> Handler:
        marked = getattr(handler, "kagent_routes", ())
        need = "read" if method == "GET" else "write"
        handler.kagent_routes = (*marked, Route(method, path, handler, need))  # type: ignore[attr-defined]
        return handler

    return mark


class Envelope(Struct, frozen=True):
    """What every answer stands in."""

    data: Any
    message: str
    error: bool = False


def enveloped(data: Any, message: str, status: int = 200) -> Response:
    """An answer. ``data`` is never left out: two clients cannot do without it."""
    return bare(Envelope(data, message), status)


def bare(data: Any, status: int = 200) -> Response:
    """An answer without an envelope, as the routes about memories have it."""
    return Response(encode(data), status, {"cache-control": "no-store"}, JSON_TYPE)


def failure(status: int, words: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as kagent's clients know it."""
    return Response(encode({"error": words}), status, {"cache-control": "no-store", **(headers or {})}, JSON_TYPE)


def header(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """The value of a header, or ``None`` if it is not there or empty."""
    value = headers.get(name, b"").strip()
    return value.decode("utf-8", "replace") if value else None


def parameters(query: str) -> dict[str, str]:
    """The parameters of a query; of one that is there twice, the first."""
    found: dict[str, str] = {}
    for name, value in _raw(query):
        found.setdefault(unquote_plus(name), unquote_plus(value))
    return found


def user_of(query: str, in_header: str | None) -> str:
    """Who asks.

    Some calls of the session client write the user's name into the address as it is: a plus then is a plus, and what comes after
    ``&`` or ``#`` is lost. Where the header says the whole of such a name, it is believed.
    """
    raw = next((value for name, value in _raw(query) if name == "user_id"), "")
    written_as_is = "@" in raw or "%20" in raw
    named = (unquote if written_as_is else unquote_plus)(raw)
    if not named:
        return in_header or DEFAULT_USER
    if in_header is not None and (in_header == named.replace(" ", "+") or _is_cut_off(named, in_header)):
        return in_header
    return named


def _is_cut_off(named: str, whole: str) -> bool:
    return whole.startswith(named) and whole[len(named) : len(named) + 1] in _OF_NO_USER


def agent_id(reference: str) -> str:
    """The one name of an agent, however it is written: ``kagent/my-agent`` is ``kagent__NS__my_agent``."""
    return reference.replace("-", "_").replace("/", "__NS__")


def _raw(query: str) -> list[tuple[str, str]]:
    pairs = [each.partition("=") for each in query.split("&") if each]
    return [(name, value) for name, _, value in pairs]
