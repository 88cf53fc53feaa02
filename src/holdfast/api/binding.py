"""From a request to the call of a function, and from what it returns to a response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import Closed, HoldfastError, InvalidInput, LimitExceeded, OutcomeUnknown, Unavailable

from . import parameters
from .bodies import JSON_TYPE, Upload, read_body
from .conventions import SETTLED_BY
from .exchanges import exchange_of
from .limits import ServerLimits
from .operations import Operation
from .problems import TooSlow
from .service import Service
from .streams import EventStream
from .wire import decode, encode, given

_ANY_JSON = msgspec.json.Decoder()
_NEVER_STORED = ((b"cache-control", b"no-store"),)
_AS_JSON = (*_NEVER_STORED, (b"content-type", JSON_TYPE.encode()))
_JSON_LINES = b"".join([b"%b: %b\r\n" % each for each in _AS_JSON]) + b"content-length: %d\r\n"
"""The same as they are written, with the length of the body."""


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
        self._bodies = [(msgspec.json.Decoder(kind), _required(kind)) for kind in parameters.bodies(operation)]

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
            with service.deadlines.begin():
                if self._bodies:
                    empty = self._may_be_empty and _is_empty(headers)
                    arguments["body"] = self._body(
                        b"{}" if empty else await read_body(receive, headers, service.limits)
                    )
                is_read = True
                result = await self._done(service, headers, arguments)
        except TimeoutError:
            raise self._too_late(service.limits, is_read) from None
        except asyncio.CancelledError:
            if not service.news.is_over:
                raise
            raise self._cut_off(service.limits, is_read) from None
        return self._response(result, service.limits)

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
        if isinstance(found, AsyncIterator):
            return EventStream(found, service)
        return self._response(found, service.limits)

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

    def _body(self, data: bytes) -> Any:
        """The body as the first type that it fits; if none, the complaint of the one it looks like."""
        complaints: list[InvalidInput] = []
        for decoder, _ in self._bodies:
            try:
                return decode(data, decoder)
            except InvalidInput as error:
                complaints.append(error)
        if len(complaints) == 1:
            raise complaints[0]
        raise complaints[self._looks_like(data)]

    def _looks_like(self, data: bytes) -> int:
        found = decode(data, _ANY_JSON)
        sent = set(found) if isinstance(found, dict) else set()
        return next((place for place, (_, required) in enumerate(self._bodies) if required & sent), 0)

    def _response(self, result: Any, limits: ServerLimits) -> Sendable:
        if isinstance(result, Response):
            return result
        if result is None:
            return Answer(self._operation.status, b"", _NEVER_STORED)
        body = encode(result)
        if len(body) > limits.response_bytes and self._operation.method == "GET":
            raise LimitExceeded(
                f"the answer has {len(body):,} bytes, over the limit response_bytes = {limits.response_bytes:,}: ask for less"
            )
        if self._operation.etag is None:
            return JsonAnswer(self._operation.status, body)
        etag = (b"etag", self._operation.etag(result).encode())
        return Answer(self._operation.status, body, [*_AS_JSON, _length_of(body), etag])


class Answer:
    """A good answer, as it is."""

    __slots__ = ("_body", "_headers", "status_code")

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.status_code, self._body, self._headers = status, body, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._headers})
        body = b"" if scope["method"] == "HEAD" else self._body
        await send({"type": "http.response.body", "body": body})


class JsonAnswer(Answer):
    """JSON and nothing else: nearly every good answer. A server of ours writes it as it is."""

    __slots__ = ()

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body, ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, exchange = self._body, exchange_of(send)
        if exchange is None or not exchange.answer(self.status_code, _JSON_LINES % len(body), body):
            self._headers = [*_AS_JSON, _length_of(body)]
            await super().__call__(scope, receive, send)


def _length_of(body: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % len(body))


def _is_empty(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request has no body and does not say that it has one."""
    if b"content-type" in headers or b"transfer-encoding" in headers:
        return False
    return headers.get(b"content-length", b"0") == b"0"


def _required(kind: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind) if field.required}


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
