"""From a request to the call of a function, and from what it returns to a response."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from holdfast.errors import Closed, InvalidInput

from . import parameters
from .auth import Caller
from .operations import Operation
from .request import Request
from .request_body import Upload, read_body
from .responses import Json, Sendable
from .routing import Route
from .schemas import decode, decode_body, encode_within, given, read_secret
from .state import Service
from .streams import EventStream, Stream

_ANY_JSON = msgspec.json.Decoder()
_IN_THREAD_BYTES = 256 * 1024
"""Bytes of a body from which on it is decoded in a thread."""


def operation_routes(service: Service, operations: Iterable[Operation]) -> list[Route]:
    """The routes of operations, for the router."""
    return [
        Route(each.method, each.path, each.function.__name__, Handler(service, each).respond, each.streams)
        for each in operations
    ]


class Handler:
    """One operation, ready to answer."""

    def __init__(self, service: Service, operation: Operation) -> None:
        self._service, self._operation, self._area = service, operation, operation.tag
        self._is_read_only = operation.need in ("read", "watch") and not operation.streams
        found = parameters.parameters(operation)
        self._headers = [(each.wire_name.lower().encode(), each.name) for each in found if each.place == "header"]
        self._changes_unseen = operation.method != "GET" and (b"if-match", "if_match") not in self._headers
        is_made = operation.method == "POST" and operation.status == HTTPStatus.CREATED
        self._made_anew = is_made and (b"idempotency-key", "idempotency_key") not in self._headers
        self._query = {each.wire_name: each for each in found if each.place == "query"}
        self._arguments = parameters.arguments(operation)
        self._may_be_empty = parameters.may_be_empty(operation)
        self._wants_caller = "caller" in operation.function.__annotations__
        self._bodies = [msgspec.json.Decoder(kind, dec_hook=read_secret) for kind in parameters.bodies(operation)]

    async def respond(self, request: Request) -> Sendable:
        """Do what the request asks for, if its caller is allowed to."""
        caller = await self._caller(request)
        headers = request.headers
        if self._changes_unseen and b"if-match" in headers:
            raise InvalidInput("If-Match is not understood here: nothing is compared before it is changed")
        if self._made_anew and b"idempotency-key" in headers:
            raise InvalidInput(
                "Idempotency-Key is not understood here: what is sent twice is made twice, unless its body has an id"
            )
        arguments = self._parameters(request.scope, headers)
        if self._wants_caller:
            arguments["caller"] = caller
        if self._operation.takes_upload:
            arguments["upload"] = Upload(request.receive, headers, self._service.limits)
        with self._slot(request, caller):
            if self._bodies:
                arguments["body"] = await self._body(request)
            if self._is_read_only:
                request.cancel_when_client_leaves()
            result = await self._call(headers, arguments)
        return await self._response(result)

    def _slot(self, request: Request, caller: Caller | None) -> AbstractContextManager[None]:
        """A slot of the caller's tenant. Streams have slots of their own; what needs no key is never refused for others."""
        if caller is None or self._operation.streams:
            return nullcontext()
        return self._service.requests.take(request.path_params.get("tenant") or caller.tenant)

    def _call(self, headers: Mapping[bytes, bytes], arguments: dict[str, Any]) -> Awaitable[Any]:
        user = headers.get(b"x-user-id")
        if user is None or "tenant" not in arguments:
            return self._operation.function(self._service, **arguments)
        return self._call_as(user.decode("utf-8", "replace"), arguments)

    async def _call_as(self, user: str, arguments: dict[str, Any]) -> Any:
        with self._service.tenant(arguments["tenant"]).acting(user=user):
            return await self._operation.function(self._service, **arguments)

    async def _caller(self, request: Request) -> Caller | None:
        """The caller, if it may do this; ``None`` if anybody may."""
        need = self._operation.need
        if need == "open":
            return None
        access = self._service.access
        if access is None:
            raise Closed
        caller = await access.caller(request.scope, request.headers, though_away=need == "watch")
        access.check(caller, need, self._area, request.path_params.get("tenant"), request.scope)
        return caller

    def _parameters(self, scope: Scope, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
        values: dict[str, Any] = dict(scope["path_params"])
        for wire_name, name in self._headers:
            if wire_name in headers:
                values[name] = headers[wire_name].decode("latin-1")
        if scope["query_string"]:
            self._read_query(scope["query_string"], values)
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

    async def _body(self, request: Request) -> Any:
        """The body as the first type that it fits."""
        limits = self._service.limits
        data = b"{}" if self._may_be_empty and _is_empty(request.headers) else await read_body(request, limits)
        if len(data) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(decode_body, data, self._bodies, limits.body_values)
        return decode_body(data, self._bodies, limits.body_values)

    async def _response(self, result: Any) -> Sendable:
        if isinstance(result, Stream):
            return EventStream(result)
        if isinstance(result, Response):
            return result
        if result is None:
            return Json(self._operation.status, b"")
        is_read = self._operation.method == "GET"
        body = await encode_within(result, self._service.limits.response_bytes if is_read else sys.maxsize)
        etag = self._operation.etag
        return Json(self._operation.status, body, etag=None if etag is None else etag(result))


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
