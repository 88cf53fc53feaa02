"""From a request to the call of a function, and from what it returns to a response."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import Closed, HoldfastError, InvalidInput, OutcomeUnknown, Unavailable

from . import parameters
from .bodies import JSON_TYPE, Upload, read_body
from .conventions import SETTLED_BY
from .limits import ServerLimits
from .operations import Operation
from .problems import TooSlow
from .service import Service
from .streams import EventStream, Stream
from .wire import decode, decode_body, encode_within, given, read_secret

_ANY_JSON = msgspec.json.Decoder()
_IN_THREAD_BYTES = 256 * 1024
"""Bytes of a body from which on it is decoded in a thread."""
_NEVER_STORED = ((b"cache-control", b"no-store"),)
_AS_JSON = (*_NEVER_STORED, (b"content-type", JSON_TYPE.encode()))


class Sendable(Protocol):
    """An answer that is ready to be sent."""

    status_code: int

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Send it."""


class Handler:
    """One operation, ready to answer."""

    def __init__(self, operation: Operation) -> None:
        self._operation, self._area = operation, operation.tag
        found = parameters.parameters(operation)
        self._headers = [(each.wire_name.lower().encode(), each.name) for each in found if each.place == "header"]
        self._changes_unseen = operation.method != "GET" and (b"if-match", "if_match") not in self._headers
        is_made = operation.method == "POST" and operation.status == HTTPStatus.CREATED
        self._made_anew = is_made and (b"idempotency-key", "idempotency_key") not in self._headers
        self._query = {each.wire_name: each for each in found if each.place == "query"}
        self._arguments = parameters.arguments(operation)
        self._are_names_enough = parameters.are_names_enough(operation)
        self._may_be_empty = parameters.may_be_empty(operation)
        self._wants_caller = "caller" in operation.function.__annotations__
        self._bodies = [msgspec.json.Decoder(kind, dec_hook=read_secret) for kind in parameters.bodies(operation)]

    async def answer(
        self, service: Service, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> Sendable:
        """Do what the request asks for, if whoever asks may."""
        caller = await self._caller(service, scope, headers)
        if self._changes_unseen and b"if-match" in headers:
            raise InvalidInput("If-Match is not understood here: nothing is compared before it is changed")
        if self._made_anew and b"idempotency-key" in headers:
            raise InvalidInput(
                "Idempotency-Key is not understood here: what is sent twice is made twice, unless its body has an id"
            )
        arguments = self._parameters(scope, headers)
        if self._wants_caller:
            arguments["caller"] = caller
        if self._operation.streams:
            return await self._streamed(service, headers, arguments, receive)
        is_read = False
        try:
            with service.deadlines.begin() as deadline, self._slot(service, scope, caller):
                if self._bodies:
                    empty = self._may_be_empty and _is_empty(headers)
                    data = b"{}" if empty else await read_body(receive, headers, service.limits)
                    arguments["body"] = await self._body(data, service.limits)
                is_read = True
                if self._operation.need in ("read", "watch"):
                    deadline.needs_client(receive)
                result = await self._done(service, headers, arguments)
        except TimeoutError:
            raise self._too_late(service.limits, is_read) from None
        except asyncio.CancelledError:
            if not service.news.is_over:
                raise
            raise self._cut_off(service.limits, is_read) from None
        return await self._response(result, service.limits)

    def _slot(self, service: Service, scope: Scope, caller: Any) -> AbstractContextManager[None]:
        """A slot of the tenant that is spoken of. What anybody may ask is about none, and must not be refused for others."""
        return nullcontext() if self._operation.need == "open" else service.requests.take(_tenant(scope, caller))

    async def _streamed(
        self, service: Service, headers: Mapping[bytes, bytes], arguments: dict[str, Any], receive: Receive
    ) -> Sendable:
        """What is not bound by ``answer_s``: events as they come, and what is too large to be quick."""
        if self._operation.takes_upload:
            arguments["upload"] = Upload(receive, headers, service.limits)
        try:
            found = await self._done(service, headers, arguments)
        except asyncio.CancelledError:
            if not service.news.is_over:
                raise
            raise self._cut_off(service.limits, is_read=True) from None
        if isinstance(found, Stream):
            return EventStream(found)
        return await self._response(found, service.limits)

    def _done(self, service: Service, headers: Mapping[bytes, bytes], arguments: dict[str, Any]) -> Awaitable[Any]:
        user = headers.get(b"x-user-id")
        if user is None or "tenant" not in arguments:
            return self._operation.function(service, **arguments)
        return self._done_by(user.decode("utf-8", "replace"), service, arguments)

    async def _done_by(self, user: str, service: Service, arguments: dict[str, Any]) -> Any:
        with service.tenant(arguments["tenant"]).acting(user=user):
            return await self._operation.function(service, **arguments)

    def _too_late(self, limits: ServerLimits, is_read: bool) -> HoldfastError:
        if not is_read:
            return TooSlow(
                f"the body did not come within answer_s = {limits.answer_s} s", headers={"connection": "close"}
            )
        return self._not_done(f"not done within answer_s = {limits.answer_s} s")

    def _cut_off(self, limits: ServerLimits, is_read: bool) -> HoldfastError:
        """What to say when a server that stops waits no longer, and ends the task."""
        message = f"not done within grace_s = {limits.grace_s} s of being told to stop"
        return self._not_done(message) if is_read else Unavailable(message)

    def _not_done(self, message: str) -> HoldfastError:
        if self._operation.method == "GET":
            return Unavailable(message)
        return OutcomeUnknown(message, id=SETTLED_BY.get())

    async def _caller(self, service: Service, scope: Scope, headers: Mapping[bytes, bytes]) -> Any:
        """Who asks, if whoever asks may do this."""
        operation = self._operation
        if operation.need == "open":
            return None
        if service.access is None:
            raise Closed
        access = service.access
        caller = access.seen_lately(scope, headers)
        if caller is None:
            caller = await access.caller(scope, headers, though_away=operation.need == "watch")
        access.check(caller, operation.need, self._area, scope["path_params"].get("tenant"), scope)
        return caller

    def _parameters(self, scope: Scope, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
        values: dict[str, Any] = dict(scope["path_params"])
        for wire_name, name in self._headers:
            if wire_name in headers:
                values[name] = headers[wire_name].decode("latin-1")
        if scope["query_string"]:
            self._read_query(scope["query_string"], values)
        if self._are_names_enough and len(values) == len(scope["path_params"]):
            return values
        try:
            return given(msgspec.convert(values, self._arguments, strict=False))
        except msgspec.ValidationError as error:
            raise InvalidInput(f"a parameter is not as documented: {error}") from None

    def _read_query(self, query: bytes, values: dict[str, Any]) -> None:
        for name, value in _pairs(query):
            parameter = self._query.get(name)
            if parameter is None:
                known = ", ".join(self._query) or "none"
                raise InvalidInput(f"there is no parameter {name!r} here; there are: {known}")
            if parameter.as_json:
                read: Any = decode(value, _ANY_JSON, what=f"the parameter {name}")
            elif parameter.is_moment:
                read = _moment(value, name)
            else:
                read = value
            if parameter.repeated and not parameter.as_json:
                values.setdefault(parameter.name, []).append(read)
            elif parameter.name in values:
                raise InvalidInput(f"the parameter {name} is there twice")
            else:
                values[parameter.name] = read

    async def _body(self, data: bytes, limits: ServerLimits) -> Any:
        """The body as the first type that it fits."""
        if len(data) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(decode_body, data, self._bodies, limits.body_values)
        return decode_body(data, self._bodies, limits.body_values)

    async def _response(self, result: Any, limits: ServerLimits) -> Sendable:
        if isinstance(result, Response):
            return result
        if result is None:
            return Answer(self._operation.status, b"", _NEVER_STORED)
        is_read = self._operation.method == "GET"
        body = await encode_within(result, limits.response_bytes if is_read else sys.maxsize)
        headers = [*_AS_JSON, (b"content-length", b"%d" % len(body))]
        if self._operation.etag is not None:
            headers.append((b"etag", self._operation.etag(result).encode()))
        return Answer(self._operation.status, body, headers)


class Answer:
    """A good answer, as it is."""

    __slots__ = ("_body", "_headers", "status_code")

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.status_code, self._body, self._headers = status, body, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._headers})
        body = b"" if scope["method"] == "HEAD" else self._body
        await send({"type": "http.response.body", "body": body})


def _tenant(scope: Scope, caller: Any) -> str:
    """The tenant that a request is counted for."""
    named: str | None = scope["path_params"].get("tenant")
    return named or (caller.tenant if caller is not None else "")


def _is_empty(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request has no body and does not say that it has one."""
    if b"content-type" in headers or b"transfer-encoding" in headers:
        return False
    return headers.get(b"content-length", b"0") == b"0"


def _moment(value: str, name: str) -> datetime:
    """A time as it is documented: where text is read as what it looks like, a bare number would be one too."""
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the parameter {name} is not as documented: {error}") from None


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:  # not ASCII, or percent-encoded bytes that are not UTF-8
        raise InvalidInput("the query is not percent-encoded UTF-8") from None
