"""What travels: JSON to types and back, and the bodies of requests and answers that are not rows of a store.

Every string and every JSON value that a store keeps can also come and go over HTTP, lone surrogates included, which msgspec by
itself neither reads nor writes.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import Message, NewMessage, Session, Tenant
from holdfast.errors import InvalidInput, LimitExceeded

T = TypeVar("T")

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


class SessionChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to replace what was there; the rest stays."""

    agent: Name | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class MessageToAppend(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to append. A `message` has a role and content that is text or a list of blocks, each with a `type`."""

    role: Role | None = None
    metadata: Metadata | None = None
    token_count: Annotated[int, Meta(ge=0)] = 0
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


class MessageList(Struct, frozen=True):
    """Messages in the order of the log."""

    items: list[Message]


class Removed(Struct, frozen=True):
    """How many there were."""

    removed: int


class Health(Struct, frozen=True):
    """How the server is."""

    status: Literal["ok", "ready"]


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
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            converted: T = msgspec.convert(_plain_json(data), decoder.type)
            return converted
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{what} is not as documented: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidInput(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise LimitExceeded(f"{what} is nested deeper than the limit json_depth") from None


def encode(value: Any) -> bytes:
    """A value as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=True, separators=(",", ":")).encode()


def moment(value: Any) -> datetime:
    """A time as it is written in JSON.

    Raises:
        InvalidInput: it is not one, or has no time zone.
    """
    try:
        read: datetime = msgspec.convert(value, Annotated[datetime, Meta(tz=True)])
    except msgspec.ValidationError:
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
