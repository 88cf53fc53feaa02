"""The commands of record stores, one line each: ``holdfast channels`` and others."""

from __future__ import annotations

from holdfast.types import AsyncAgentOverrides, AsyncAgents, AsyncAgentShares, AsyncChannels, AsyncProfiles

from .agent_users import messages, users
from .grant_commands import add_grants
from .record_commands import record_commands

agents = record_commands(
    "agents", AsyncAgents, columns=["id", "name", "agent_type", "model"], about="Manage agents and who may use them."
)
add_grants(agents, "agent_shares", AsyncAgentShares, grant="share", revoke="revoke-share", list="shares")
agents.add_command(messages)
agents.add_command(users)

profiles = record_commands(
    "profiles",
    AsyncProfiles,
    columns=["agent", "user", "workspace", "created_at", "last_seen_at"],
    about="Manage the users of agents.",
)

agent_overrides = record_commands(
    "agent_overrides",
    AsyncAgentOverrides,
    columns=["agent", "user", "provider", "model"],
    about="Manage the providers, models and settings that agents use for single users.",
)

channels = record_commands(
    "channels",
    AsyncChannels,
    columns=["name", "channel_type", "agent", "is_enabled", "id"],
    about="Manage the connections of agents to chat platforms.",
)
