"""Messages that wait: what their chats are called, and removing those that have waited too long."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from ..operations import operation
from ..state import Service
from ..store_routes import Count
from .conversation import T

_MAX_SECONDS = 10**11


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


@operation("DELETE", T + "/pending-messages/stale")
async def delete_stale_pending_messages(
    service: Service, *, tenant: str, older_than_s: Annotated[int, Meta(ge=0, le=_MAX_SECONDS)]
) -> Count:
    """Remove what has been waiting for longer than so many seconds, in all groups; how many messages there were."""
    older_than = timedelta(seconds=older_than_s)
    return Count(await service.tenant(tenant).pending_messages.delete_stale(older_than=older_than))


@operation("POST", T + "/pending-messages/titles", need="read")
async def look_up_group_titles(service: Service, *, tenant: str, body: Groups) -> TitleList:
    """What these chats are called, as far as it is known: `chat_title` in the metadata of the session used last for each."""
    wanted = [(each.channel_name, each.history_key) for each in body.groups]
    found = await service.tenant(tenant).pending_messages.resolve_group_titles(wanted)
    return TitleList([Title(*group, title) for group, title in found.items()])
