"""Agent overrides: the provider, the model and the settings that an agent uses for one user instead of its own."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core.records import AsyncRecords, Filterable, Key, Limited, Metadata, Records
from ...core.rows import Column
from ..objects.activity import Audited
from .agent_shares import LIVE_AGENT


class AgentOverride(Struct, frozen=True):
    """What an agent uses for one user. An empty provider or model means the agent's own."""

    agent: Annotated[str, Column("agent_id"), Key(), Limited("name_bytes", empty=False), Filterable(), LIVE_AGENT]
    user: Annotated[str, Column("user_id"), Key(), Limited("name_bytes", empty=False), Filterable()]
    provider: Annotated[str, Limited("name_bytes"), Filterable()]
    model: Annotated[str, Limited("name_bytes"), Filterable()]
    settings: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewAgentOverride(Struct, frozen=True):
    """An override to create."""

    agent: str
    user: str
    provider: str = ""
    model: str = ""
    settings: dict[str, Any] = {}


class AgentOverrideChange(Struct, frozen=True):
    """A change of an override."""

    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET


class AsyncAgentOverrides(Audited, AsyncRecords[AgentOverride, NewAgentOverride, AgentOverrideChange]):
    """The overrides of one tenant's agents, one for each agent and user."""

    table, noun = "agent_overrides", "agent override"


class AgentOverrides(Records[AgentOverride, NewAgentOverride, AgentOverrideChange]):
    """The overrides of one tenant's agents, one for each agent and user."""
