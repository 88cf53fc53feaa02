"""JSON decoding and encoding, and the bodies of requests and responses that are not rows of a store.

Every string and every JSON value that a store accepts can also be sent and returned over HTTP, including lone surrogates, which
msgspec neither decodes nor encodes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import NewMessage
from holdfast.encryption import MASK, Secret, mask_secret
from holdfast.errors import InvalidInput, LimitExceeded
from holdfast.offload import is_large
from holdfast.types import DeletedMessage, Message, SearchHit, Session, Tenant

T = TypeVar("T")

_ANY_JSON = msgspec.json.Decoder()
_TOKENS = re.compile(rb'[{\[,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
"""The start of a container, a comma, or a whole string; matching takes linear time even for invalid JSON."""
_CONTAINER_COST, _STRING_COST = 8, 2
"""The cost of a container and of a string, relative to a number."""
_COSTS = {ord("{"): _CONTAINER_COST, ord("["): _CONTAINER_COST, ord(","): 1}
_ITEMS = 8
"""Items of a list that are encoded at once."""
_PAUSE_BYTES = 1024 * 1024
"""Encoded bytes after which control returns to the event loop."""

Metadata = Annotated[dict[str, Any], Meta(description="Any JSON object.")]
Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Name = Annotated[str, Meta(min_length=1)]
Role = Literal["user", "assistant", "system"]


class NewTenant(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to register."""

    id: Annotated[str, Meta(min_length=1, description="The tenant's name.")]
    metadata: Metadata | UnsetType = UNSET


class TenantChange(Struct, frozen=True, forbid_unknown_fields=True):
    """New values of a tenant's fields."""

    metadata: Metadata


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A session to start."""

    key: Annotated[Name, Meta(description="A name chosen by the caller; defaults to the id.")] | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    agent: Name | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    id: (
        Annotated[Uuid, Meta(description="An id chosen by the caller, so that the request can be repeated.")]
        | UnsetType
    ) = UNSET
    unique: (
        Annotated[bool, Meta(description="False allows other sessions of the user with the same key.")] | UnsetType
    ) = UNSET


class SessionChange(Struct, frozen=True, forbid_unknown_fields=True):
    """New values of a session's fields; omitted fields stay unchanged."""

    agent: Name | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class MessageToAppend(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to append. A `message` has a role and content that is text or a list of blocks, each with a `type`."""

    role: Role | None = None
    metadata: Metadata | None = None
    token_count: Annotated[int, Meta(ge=0, description="Estimated if omitted.")] | None = None
    id: Annotated[Uuid, Meta(description="An id chosen by the caller, so that the request can be repeated.")] | None = (
        None
    )


class MessagesToAppend(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to append at consecutive positions; either all are appended or none."""

    messages: Annotated[list[MessageToAppend], Meta(min_length=1)]


class MessageChange(Struct, frozen=True, forbid_unknown_fields=True):
    """New values of a message's fields; omitted fields stay unchanged."""

    content: Annotated[Any, Meta(description="Null is not allowed.")] = UNSET
    metadata: Metadata | UnsetType = UNSET
    token_count: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    is_preserved: bool | UnsetType = UNSET


class TenantPage(Struct, frozen=True):
    """A page of tenants, ordered by name."""

    items: list[Tenant]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


class SessionPage(Struct, frozen=True):
    """A page of sessions, the most recently used first."""

    items: list[Session]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


class MessagePage(Struct, frozen=True):
    """A page of messages in the requested order."""

    items: list[Message]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


class HitPage(Struct, frozen=True):
    """A page of search hits."""

    items: list[SearchHit]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]
    complete: Annotated[bool, Meta(description="Whether everything committed before the search was searched.")]
    sessions_behind: Annotated[
        int, Meta(description="Sessions that were not searched because they have unindexed messages, at most 1000.")
    ]


class MessageList(Struct, frozen=True):
    """Messages in the order of the log."""

    items: list[Message]


class MessagesToRestore(Struct, frozen=True, forbid_unknown_fields=True):
    """The deleted messages to restore."""

    ids: Annotated[list[Uuid], Meta(min_length=1)]


class DeletedMessagePage(Struct, frozen=True):
    """A page of deleted messages, ordered by id."""

    items: list[DeletedMessage]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


class Removed(Struct, frozen=True):
    """The number of removed objects."""

    removed: int


class RestoredMessages(Struct, frozen=True):
    """The number of restored messages."""

    restored: int


class Health(Struct, frozen=True, omit_defaults=True):
    """The health of the server."""

    status: Literal["ok", "ready"]
    overdue_erasures: int = 0
    """Erasures that are past their due time; omitted if there are none."""


class Index(Struct, frozen=True):
    """The name and version of the server, with links to its endpoints."""

    name: str
    version: str
    links: dict[str, str]


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error as in RFC 9457; `type` is the name of Holdfast's error."""

    type: str
    title: str
    status: int
    detail: str
    id: Annotated[str | None, Meta(description="Repeat the request with this id to settle its outcome.")] = None
    field: Annotated[str, Meta(description="The invalid field, parameter or header.")] = ""
    limit: Annotated[str, Meta(description="The name of the exceeded limit.")] = ""
    reason: Annotated[str, Meta(description="Which conflict or refusal, for programs.")] = ""


def present_fields(body: Struct) -> dict[str, Any]:
    """Return the fields of a body that were sent."""
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}


def decode(data: bytes | str, decoder: msgspec.json.Decoder[T], *, what: str = "the body") -> T:
    """Decode JSON to the decoder's type.

    Raises:
        InvalidInput: it is not JSON, or not of that type.
        LimitExceeded: it is nested too deeply.
    """
    decoded: T = decode_first(data, [decoder], what=what)
    return decoded


def decode_first(data: bytes | str, decoders: Sequence[msgspec.json.Decoder[Any]], *, what: str = "the body") -> Any:
    """Decode JSON to the first decoder's type that it matches.

    Raises:
        InvalidInput: it is not JSON, or of none of those types; the message is that of the most likely type.
        LimitExceeded: it is nested too deeply.
    """
    type_errors: list[msgspec.ValidationError] = []
    try:
        for decoder in decoders:
            try:
                return decoder.decode(data)
            except msgspec.ValidationError as error:
                type_errors.append(error)
            except msgspec.DecodeError:
                return _convert_first(_plain_json(data), [decoder.type for decoder in decoders])
        if len(type_errors) > 1:
            return _convert_first(_ANY_JSON.decode(data), [decoder.type for decoder in decoders])
        raise type_errors[0]
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{what} is invalid: {error}", field=what.removeprefix("the ")) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidInput(f"{what} is not JSON: {error}", field=what.removeprefix("the ")) from None
    except RecursionError:
        raise LimitExceeded(f"{what} is nested deeper than the limit json_depth", limit="json_depth") from None


def decode_body(data: bytes, decoders: Sequence[msgspec.json.Decoder[Any]], max_values: int) -> Any:
    """Decode the body of a request like ``decode_first``, with at most ``max_values`` JSON values: stores examine each of them.

    Eight numbers, or four strings, count as one.

    Raises:
        InvalidInput: it is not JSON, or of none of those types.
        LimitExceeded: it is nested too deeply, or has more values.
    """
    _check_values(data, max_values)
    return decode_first(data, decoders)


def _check_values(data: bytes, maximum: int) -> None:
    """Count JSON values before any object is created. Invalid JSON is detected later."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") <= maximum:
        return
    left = maximum * _CONTAINER_COST
    for token in _TOKENS.finditer(data):
        left -= _COSTS.get(data[token.start()], _STRING_COST)
        if left < 0:
            message = f"the body has more JSON values than the limit body_values = {maximum:,}"
            raise LimitExceeded(message, limit="body_values", maximum=maximum)


def _convert_first(value: Any, kinds: Sequence[Any]) -> Any:
    type_errors: list[msgspec.ValidationError] = []
    for kind in kinds:
        try:
            return msgspec.convert(value, kind, dec_hook=read_secret)
        except msgspec.ValidationError as error:
            type_errors.append(error)
    sent = set(value) if isinstance(value, dict) else set()
    raise next(
        (error for kind, error in zip(kinds, type_errors, strict=True) if _required(kind) & sent), type_errors[0]
    )


def _required(kind: Any) -> set[str]:
    if not isinstance(kind, type) or not issubclass(kind, Struct):
        return set()
    return {field.encode_name for field in msgspec.structs.fields(kind) if field.required}


def encode(value: Any) -> bytes:
    """Encode a value as JSON."""
    try:
        return msgspec.json.encode(value, enc_hook=mask_secret)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=mask_secret)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode()


def read_secret(kind: Any, value: Any) -> Any:
    """Decode a secret that a client sent; the ``dec_hook`` of decoders for types with secrets."""
    if (get_origin(kind) or kind) is not Secret:
        raise NotImplementedError(f"JSON cannot be decoded as {kind}")
    expected = dict if _holds_object(kind) else str
    if not isinstance(value, expected) and value != MASK:
        raise ValueError(f"Expected `{'object' if expected is dict else 'str'}`")
    return Secret(value)


def secret_schema(kind: Any) -> dict[str, Any]:
    """Return the schema of a secret for the OpenAPI document."""
    if (get_origin(kind) or kind) is not Secret:
        raise NotImplementedError(f"no schema is defined for {kind}")
    kinds = ["object", "string"] if _holds_object(kind) else "string"
    return {"type": kinds, "format": "password", "description": f"Stored encrypted; responses contain {MASK}."}


def _holds_object(kind: Any) -> bool:
    return any((get_origin(argument) or argument) is dict for argument in get_args(kind))


async def encode_within(value: Any, maximum: int) -> bytes:
    """Encode a value as JSON, a list in it item by item: encoding a large response does not block the event loop.

    Raises:
        LimitExceeded: it has more than ``maximum`` bytes. Encoding stops there.
    """
    items = getattr(value, "items", None)
    if not isinstance(items, list) or value.__struct_fields__ not in (("items",), ("items", "next")):
        body = await _encode_in_thread(value)
        _check_size(len(body), maximum)
        return body
    chunks: list[bytes] = []
    size = since_pause = 0
    for start in range(0, len(items), _ITEMS):
        chunk = (await _encode_in_thread(items[start : start + _ITEMS]))[1:-1]
        chunks.append(chunk)
        size, since_pause = size + len(chunk) + 1, since_pause + len(chunk)
        _check_size(size, maximum)
        if since_pause > _PAUSE_BYTES:
            since_pause = 0
            await asyncio.sleep(0)
    end = b"]}" if len(value.__struct_fields__) == 1 else b'],"next":' + encode(value.next) + b"}"
    parts = (b'{"items":[', b",".join(chunks), end)
    return await asyncio.to_thread(b"".join, parts) if size > _PAUSE_BYTES else b"".join(parts)


async def _encode_in_thread(value: Any) -> bytes:
    return await asyncio.to_thread(encode, value) if is_large(value) else encode(value)


def _check_size(size: int, maximum: int) -> None:
    if size > maximum:
        raise LimitExceeded(
            f"the response has at least {size:,} bytes, over the limit response_bytes = {maximum:,}: request less",
            limit="response_bytes",
            maximum=maximum,
        )


def parse_time(value: Any) -> datetime:
    """Parse a time in JSON.

    Raises:
        InvalidInput: it is not a time, or has no time zone.
    """
    try:
        time: datetime = msgspec.convert(value, Annotated[datetime, Meta(tz=True)])
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise InvalidInput(f"a time must have the format 2030-01-31T12:00:00Z, not {value!r}", field="time") from None
    return time


def _plain_json(data: bytes | str) -> Any:
    """Decode JSON that msgspec rejects: the standard library accepts unpaired surrogates."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    if "\\ud" not in text and "\\uD" not in text:
        return msgspec.json.decode(data)  # invalid for another reason: raise msgspec's error
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")
