"""The commands of record stores, one line each: ``holdfast channels`` and others."""

from __future__ import annotations

from holdfast.types import AsyncChannels

from .record_commands import record_commands

channels = record_commands(
    "channels",
    AsyncChannels,
    columns=["name", "channel_type", "agent", "is_enabled", "id"],
    about="Manage the connections of agents to chat platforms.",
)
