"""Pending group chat messages: the titles of chats, and removal of old messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from ..operations import operation
from ..state import Service
from ..store_routes import Count
from .conversation import T

_MAX_SECONDS = 10**11


class GroupChat(Struct, frozen=True, forbid_unknown_fields=True):
    """A group chat, identified by its channel and the key of its history."""

    channel_name: str
    history_key: str


class GroupChats(Struct, frozen=True, forbid_unknown_fields=True):
    """Group chats to look up."""

    groups: Annotated[list[GroupChat], Meta(min_length=1)]


class GroupTitle(Struct, frozen=True):
    """The title of a group chat."""

    channel_name: str
    history_key: str
    title: str


class GroupTitleList(Struct, frozen=True):
    """The titles that are stored."""

    items: list[GroupTitle]


@operation("DELETE", T + "/pending-messages/stale")
async def delete_stale_pending_messages(
    service: Service, *, tenant: str, older_than_s: Annotated[int, Meta(ge=0, le=_MAX_SECONDS)]
) -> Count:
    """Delete messages of all groups that have been pending for longer than this, and return their number."""
    older_than = timedelta(seconds=older_than_s)
    return Count(await service.tenant(tenant).pending_messages.delete_stale(older_than=older_than))


@operation("POST", T + "/pending-messages/titles", need="read")
async def look_up_group_titles(service: Service, *, tenant: str, body: GroupChats) -> GroupTitleList:
    """Look up the titles of group chats: `chat_title` in the metadata of each chat's most recent session."""
    groups = [(group.channel_name, group.history_key) for group in body.groups]
    titles = await service.tenant(tenant).pending_messages.resolve_group_titles(groups)
    return GroupTitleList([GroupTitle(*group, title) for group, title in titles.items()])
