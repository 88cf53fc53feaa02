"""Calls the function of an operation with the arguments from a request, and makes a response from its result."""

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
from .schemas import decode, decode_body, encode_within, present_fields, read_secret
from .state import Service
from .streams import EventStream, Stream

_ANY_JSON = msgspec.json.Decoder()
_IN_THREAD_BYTES = 256 * 1024
"""Size in bytes above which a body is decoded in a thread."""


def operation_routes(service: Service, operations: Iterable[Operation]) -> list[Route]:
    """Return the routes of these operations."""
    return [
        Route(
            operation.method,
            operation.path,
            operation.function.__name__,
            Handler(service, operation).respond,
            operation.streams,
        )
        for operation in operations
    ]


class Handler:
    """Answers the requests for one operation. Everything that depends on the operation alone is computed once."""

    def __init__(self, service: Service, operation: Operation) -> None:
        self._service, self._operation, self._area = service, operation, operation.tag
        self._is_read_only = operation.need in ("read", "watch") and not operation.streams
        all_parameters = parameters.parameters(operation)
        self._headers = [
            (parameter.wire_name.lower().encode(), parameter.name)
            for parameter in all_parameters
            if parameter.place == "header"
        ]
        self._ignores_if_match = operation.method != "GET" and (b"if-match", "if_match") not in self._headers
        creates = operation.method == "POST" and operation.status == HTTPStatus.CREATED
        self._creates_duplicates = creates and (b"idempotency-key", "idempotency_key") not in self._headers
        self._query = {parameter.wire_name: parameter for parameter in all_parameters if parameter.place == "query"}
        self._arguments = parameters.arguments(operation)
        self._may_be_empty = parameters.may_be_empty(operation)
        self._wants_caller = "caller" in operation.function.__annotations__
        self._bodies = [msgspec.json.Decoder(kind, dec_hook=read_secret) for kind in parameters.bodies(operation)]

    async def respond(self, request: Request) -> Sendable:
        """Run the operation for this request, if its caller is allowed to."""
        caller = await self._caller(request)
        headers = request.headers
        if self._ignores_if_match and b"if-match" in headers:
            raise InvalidInput(
                "this operation does not support If-Match: its changes are unconditional", field="If-Match"
            )
        if self._creates_duplicates and b"idempotency-key" in headers:
            raise InvalidInput(
                "this operation does not support Idempotency-Key: a repeated request creates another object, unless its body "
                "contains an id",
                field="Idempotency-Key",
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
            result = await self._call(headers, arguments, caller)
        return await self._response(result)

    def _slot(self, request: Request, caller: Caller | None) -> AbstractContextManager[None]:
        """Take a slot of the caller's tenant. Streams have their own slots; operations that need no key are not limited."""
        if caller is None or self._operation.streams:
            return nullcontext()
        return self._service.requests.take(request.path_params.get("tenant") or caller.tenant)

    def _call(self, headers: Mapping[bytes, bytes], arguments: dict[str, Any], caller: Caller | None) -> Awaitable[Any]:
        user = headers.get(b"x-user-id")
        if "tenant" not in arguments or (user is None and self._is_read_only):
            return self._operation.function(self._service, **arguments)
        return self._call_as(None if user is None else user.decode("utf-8", "replace"), caller, arguments)

    async def _call_as(self, user: str | None, caller: Caller | None, arguments: dict[str, Any]) -> Any:
        key, address = (caller.name, caller.address or None) if caller else (None, None)
        with self._service.tenant(arguments["tenant"]).acting(user=user, api_key=key, address=address):
            return await self._operation.function(self._service, **arguments)

    async def _caller(self, request: Request) -> Caller | None:
        """Return the caller after checking its permissions; ``None`` if the operation needs no key."""
        need = self._operation.need
        if need == "open":
            return None
        access = self._service.access
        if access is None:
            raise Closed
        caller = await access.caller(request.scope, request.headers, accept_cached=need == "watch")
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
            return present_fields(msgspec.convert(values, self._arguments, strict=False))
        except msgspec.ValidationError as error:
            raise InvalidInput(f"a parameter is invalid: {error}") from None

    def _read_query(self, query: bytes, values: dict[str, Any]) -> None:
        for name, value in _pairs(query):
            parameter = self._query.get(name)
            if parameter is None:
                names = ", ".join(self._query) or "none"
                raise InvalidInput(
                    f"parameter {name!r} does not exist; parameters of this operation: {names}", field=name
                )
            if parameter.as_json:
                parsed: Any = decode(value, _ANY_JSON, what=f"the parameter {name}")
            elif parameter.is_datetime:
                parsed = _datetime(value, name)
            else:
                parsed = value
            if parameter.repeated and not parameter.as_json:
                values.setdefault(parameter.name, []).append(parsed)
            elif parameter.name in values:
                raise InvalidInput(f"the parameter {name} was sent twice", field=name)
            else:
                values[parameter.name] = parsed

    async def _body(self, request: Request) -> Any:
        """Return the body, decoded as the first type that it matches."""
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
    """Return whether a request neither has a body nor declares one."""
    if b"content-type" in headers or b"transfer-encoding" in headers:
        return False
    return headers.get(b"content-length", b"0") == b"0"


def _datetime(value: str, name: str) -> datetime:
    """Parse a time. The lax conversion of the other parameters would also accept a bare number as a timestamp."""
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the parameter {name} is invalid: {error}", field=name) from None


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:  # not ASCII, or percent-encoded bytes that are not UTF-8
        raise InvalidInput("the query is not percent-encoded UTF-8", field="query") from None
