"""Channel instances: the connections of agents to chat platforms, each with its credentials and its configuration."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core.crypto import Secret
from ...core.records import (
    AsyncSecretRecords,
    Filterable,
    Key,
    Limited,
    Merged,
    Metadata,
    Natural,
    Searchable,
    SecretRecords,
)
from ...core.rows import Column
from ...ids import Id
from ..agents.agent_shares import LIVE_AGENT
from ..objects.activity import Audited


class ChannelInstance(Struct, frozen=True):
    """A connection to a chat platform, such as one Telegram bot."""

    id: Annotated[Id, Key()]
    name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    display_name: Annotated[str, Limited("display_bytes"), Searchable()]
    channel_type: Annotated[str, Limited("name_bytes", empty=False), Filterable(), Searchable()]
    agent: Annotated[str, Column("agent_id"), Limited("name_bytes", empty=False), Filterable(), LIVE_AGENT]
    credentials: Annotated[Secret[dict[str, Any]] | None, Merged()]
    config: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    is_enabled: Annotated[bool, Filterable()]
    created_by: Annotated[str, Limited("name_bytes"), Filterable()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewChannelInstance(Struct, frozen=True):
    """A channel instance to create."""

    name: str
    channel_type: str
    agent: str
    id: str | UnsetType = UNSET
    display_name: str = ""
    credentials: Secret[dict[str, Any]] | None = None
    config: dict[str, Any] = {}
    is_enabled: bool = True
    created_by: str = ""


class ChannelInstanceChange(Struct, frozen=True):
    """A change of a channel instance. Credentials are merged into the stored ones; ``None`` removes them."""

    name: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    credentials: Secret[dict[str, Any]] | UnsetType | None = UNSET
    config: dict[str, Any] | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET


class AsyncChannels(Audited, AsyncSecretRecords[ChannelInstance, NewChannelInstance, ChannelInstanceChange]):
    """The channel instances of one tenant, by name."""

    table, noun, order = "channel_instances", "channel instance", ("name",)


class Channels(SecretRecords[ChannelInstance, NewChannelInstance, ChannelInstanceChange]):
    """The channel instances of one tenant, by name."""
