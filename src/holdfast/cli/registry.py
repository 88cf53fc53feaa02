"""The commands of record stores, one line each: ``holdfast channels`` and others."""

from __future__ import annotations

from holdfast.types import AsyncAgents, AsyncAgentShares, AsyncChannels

from .grant_commands import add_grants
from .record_commands import record_commands

agents = record_commands(
    "agents", AsyncAgents, columns=["id", "name", "agent_type", "model"], about="Manage agents and who may use them."
)
add_grants(agents, "agent_shares", AsyncAgentShares, grant="share", revoke="revoke-share", list="shares")

channels = record_commands(
    "channels",
    AsyncChannels,
    columns=["name", "channel_type", "agent", "is_enabled", "id"],
    about="Manage the connections of agents to chat platforms.",
)
