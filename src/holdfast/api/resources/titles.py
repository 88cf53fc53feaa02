"""What the chats are called whose messages wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..operations import operation
from ..service import Service
from .conversation import T


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """A chat: a channel, and what its history is kept under."""

    channel_name: str
    history_key: str


class Groups(Struct, frozen=True, forbid_unknown_fields=True):
    """Chats to look up."""

    groups: Annotated[list[Group], Meta(min_length=1)]


class Title(Struct, frozen=True):
    """What a chat is called."""

    channel_name: str
    history_key: str
    title: str


class TitleList(Struct, frozen=True):
    """Those that are known."""

    items: list[Title]


@operation("POST", T + "/pending-messages/titles", need="read")
async def look_up_group_titles(service: Service, *, tenant: str, body: Groups) -> TitleList:
    """What these chats are called, as far as it is known: `chat_title` in the metadata of the session used last for each."""
    wanted = [(each.channel_name, each.history_key) for each in body.groups]
    found = await service.tenant(tenant).pending_messages.resolve_group_titles(wanted)
    return TitleList([Title(*group, title) for group, title in found.items()])
