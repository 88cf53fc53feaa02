"""JSON decoding and encoding, and the bodies of requests and responses that are not rows of a store.

Every string and every JSON value that a store keeps can also come and go over HTTP, lone surrogates included, which msgspec by
itself neither reads nor writes.
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
"""The beginnings of containers, the ends of values, and whole strings; linear also in what is no JSON."""
_OF_CONTAINER, _OF_STRING = 8, 2
"""What containers and strings cost, where a number costs one."""
_COSTS = {ord("{"): _OF_CONTAINER, ord("["): _OF_CONTAINER, ord(","): 1}
_ITEMS = 8
"""Items of a list that are encoded at once."""
_PAUSE_BYTES = 1024 * 1024
"""Bytes that are encoded until others get their turn."""

Metadata = Annotated[dict[str, Any], Meta(description="Any JSON object.")]
Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Name = Annotated[str, Meta(min_length=1)]
Role = Literal["user", "assistant", "system"]


class NewTenant(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to register."""

    id: Annotated[str, Meta(min_length=1, description="Its name.")]
    metadata: Metadata | UnsetType = UNSET


class TenantChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to replace what was there."""

    metadata: Metadata


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A session to start."""

    key: Annotated[Name, Meta(description="Your name for it; without one, its id is its key.")] | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    agent: Name | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    id: Annotated[Uuid, Meta(description="An id of your own, so that the request can be repeated.")] | UnsetType = UNSET
    unique: (
        Annotated[bool, Meta(description="False lets it share its key with other sessions of the user.")] | UnsetType
    ) = UNSET


class SessionChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to replace what was there; the rest stays."""

    agent: Name | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class MessageToAppend(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to append. A `message` has a role and content that is text or a list of blocks, each with a `type`."""

    role: Role | None = None
    metadata: Metadata | None = None
    token_count: Annotated[int, Meta(ge=0, description="Without one, it is estimated.")] | None = None
    id: Annotated[Uuid, Meta(description="An id of your own, so that the request can be repeated.")] | None = None


class MessagesToAppend(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to append at consecutive places, all or none of them."""

    messages: Annotated[list[MessageToAppend], Meta(min_length=1)]


class MessageChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to replace what was there; the rest stays."""

    content: Annotated[Any, Meta(description="Not null: that would be no change.")] = UNSET
    metadata: Metadata | UnsetType = UNSET
    token_count: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    is_preserved: bool | UnsetType = UNSET


class TenantPage(Struct, frozen=True):
    """Tenants by name."""

    items: list[Tenant]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]


class SessionPage(Struct, frozen=True):
    """Sessions, the one used last first."""

    items: list[Session]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]


class MessagePage(Struct, frozen=True):
    """Messages in the order asked for."""

    items: list[Message]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]


class HitPage(Struct, frozen=True):
    """A page of SearchHit."""

    items: list[SearchHit]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]
    complete: Annotated[bool, Meta(description="Whether everything committed before the search was searched.")]
    sessions_behind: Annotated[
        int, Meta(description="Sessions with messages that are not indexed yet and were not searched; 1000 for more.")
    ]


class MessageList(Struct, frozen=True):
    """Messages in the order of the log."""

    items: list[Message]


class MessagesToRestore(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages to bring back."""

    ids: Annotated[list[Uuid], Meta(min_length=1)]


class DeletedMessagePage(Struct, frozen=True):
    """Deleted messages in the order of their ids."""

    items: list[DeletedMessage]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]


class Removed(Struct, frozen=True):
    """How many there were."""

    removed: int


class RestoredMessages(Struct, frozen=True):
    """How many came back."""

    restored: int


class Health(Struct, frozen=True, omit_defaults=True):
    """How the server is."""

    status: Literal["ok", "ready"]
    overdue_erasures: int = 0
    """Tenants that were to be erased by now and are not; left out if there are none."""


class Index(Struct, frozen=True):
    """Where to go from here."""

    name: str
    version: str
    links: dict[str, str]


class Problem(Struct, frozen=True, omit_defaults=True):
    """What went wrong, as RFC 9457 has it; `type` is the name of Holdfast's error."""

    type: str
    title: str
    status: int
    detail: str
    id: Annotated[str | None, Meta(description="The id to repeat the request with, to settle its outcome.")] = None


def given(body: Struct) -> dict[str, Any]:
    """The fields of a body that were sent."""
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}


def decode(data: bytes | str, decoder: msgspec.json.Decoder[T], *, what: str = "the body") -> T:
    """JSON as a value of the decoder's type.

    Raises:
        InvalidInput: it is not JSON, or not of that type.
        LimitExceeded: it is nested too deeply to be read.
    """
    decoded: T = decode_first(data, [decoder], what=what)
    return decoded


def decode_first(data: bytes | str, decoders: Sequence[msgspec.json.Decoder[Any]], *, what: str = "the body") -> Any:
    """JSON as a value of the first decoder's type that it fits; otherwise the complaint of the one it looks like.

    Raises:
        InvalidInput: it is not JSON, or of none of those types.
        LimitExceeded: it is nested too deeply to be read.
    """
    complaints: list[msgspec.ValidationError] = []
    try:
        for decoder in decoders:
            try:
                return decoder.decode(data)
            except msgspec.ValidationError as error:
                complaints.append(error)
            except msgspec.DecodeError:
                return _convert_first(_plain_json(data), [each.type for each in decoders])
        if len(complaints) > 1:
            return _convert_first(_ANY_JSON.decode(data), [each.type for each in decoders])
        raise complaints[0]
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{what} is not as documented: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidInput(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise LimitExceeded(f"{what} is nested deeper than the limit json_depth") from None


def decode_body(data: bytes, decoders: Sequence[msgspec.json.Decoder[Any]], most_values: int) -> Any:
    """The same for the body of a request, which may have ``most_values`` JSON values: stores look at each of them.

    Eight numbers, or four strings, count as one.

    Raises:
        InvalidInput: it is not JSON, or of none of those types.
        LimitExceeded: it is nested too deeply to be read, or has more values.
    """
    _check_values(data, most_values)
    return decode_first(data, decoders)


def _check_values(data: bytes, most: int) -> None:
    """Count what JSON is made of, before anything is made of it. What is no JSON is found later."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") <= most:
        return
    left = most * _OF_CONTAINER
    for token in _TOKENS.finditer(data):
        left -= _COSTS.get(data[token.start()], _OF_STRING)
        if left < 0:
            raise LimitExceeded(f"the body has more JSON values than the limit body_values = {most:,}")


def _convert_first(value: Any, kinds: Sequence[Any]) -> Any:
    complaints: list[msgspec.ValidationError] = []
    for kind in kinds:
        try:
            return msgspec.convert(value, kind, dec_hook=read_secret)
        except msgspec.ValidationError as error:
            complaints.append(error)
    sent = set(value) if isinstance(value, dict) else set()
    raise next((error for kind, error in zip(kinds, complaints, strict=True) if _required(kind) & sent), complaints[0])


def _required(kind: Any) -> set[str]:
    if not isinstance(kind, type) or not issubclass(kind, Struct):
        return set()
    return {field.encode_name for field in msgspec.structs.fields(kind) if field.required}


def encode(value: Any) -> bytes:
    """A value as JSON."""
    try:
        return msgspec.json.encode(value, enc_hook=mask_secret)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=mask_secret)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode()


def read_secret(kind: Any, value: Any) -> Any:
    """A secret as a client sends it; for decoders of types that have one."""
    if (get_origin(kind) or kind) is not Secret:
        raise NotImplementedError(f"JSON cannot be read as {kind}")
    wanted = dict if _holds_object(kind) else str
    if not isinstance(value, wanted) and value != MASK:
        raise ValueError(f"Expected `{'object' if wanted is dict else 'str'}`")
    return Secret(value)


def secret_schema(kind: Any) -> dict[str, Any]:
    """How the document describes a secret."""
    if (get_origin(kind) or kind) is not Secret:
        raise NotImplementedError(f"there is no schema for {kind}")
    kinds = ["object", "string"] if _holds_object(kind) else "string"
    return {"type": kinds, "format": "password", "description": f"Stored encrypted; an answer shows {MASK}."}


def _holds_object(kind: Any) -> bool:
    return any((get_origin(each) or each) is dict for each in get_args(kind))


async def encode_within(value: Any, most: int) -> bytes:
    """A value as JSON, a list in it item by item: large answers leave the event loop to others in between.

    Raises:
        LimitExceeded: it has more than ``most`` bytes. Nothing is encoded beyond that.
    """
    items = getattr(value, "items", None)
    if not isinstance(items, list) or value.__struct_fields__ not in (("items",), ("items", "next")):
        body = await _encoded(value)
        _check_size(len(body), most)
        return body
    pieces: list[bytes] = []
    size = since_pause = 0
    for start in range(0, len(items), _ITEMS):
        piece = (await _encoded(items[start : start + _ITEMS]))[1:-1]
        pieces.append(piece)
        size, since_pause = size + len(piece) + 1, since_pause + len(piece)
        _check_size(size, most)
        if since_pause > _PAUSE_BYTES:
            since_pause = 0
            await asyncio.sleep(0)
    end = b"]}" if len(value.__struct_fields__) == 1 else b'],"next":' + encode(value.next) + b"}"
    parts = (b'{"items":[', b",".join(pieces), end)
    return await asyncio.to_thread(b"".join, parts) if size > _PAUSE_BYTES else b"".join(parts)


async def _encoded(value: Any) -> bytes:
    return await asyncio.to_thread(encode, value) if is_large(value) else encode(value)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise LimitExceeded(
            f"the answer has {size:,} bytes or more, over the limit response_bytes = {most:,}: ask for less"
        )


def moment(value: Any) -> datetime:
    """A time as it is written in JSON.

    Raises:
        InvalidInput: it is not one, or has no time zone.
    """
    try:
        read: datetime = msgspec.convert(value, Annotated[datetime, Meta(tz=True)])
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise InvalidInput(f"a time is written like 2030-01-31T12:00:00Z, not {value!r}") from None
    return read


def _plain_json(data: bytes | str) -> Any:
    """JSON that msgspec refuses to read: the standard library takes a surrogate without its partner."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    if "\\ud" not in text and "\\uD" not in text:
        return msgspec.json.decode(data)  # it was something else, and msgspec says it better
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")
