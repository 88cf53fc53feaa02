"""The commands of record stores, one line each: ``holdfast channels`` and others."""

from __future__ import annotations

from holdfast.types import (
    AsyncAgentOverrides,
    AsyncChannels,
    AsyncDeclaredResources,
    AsyncModels,
    AsyncProfiles,
    AsyncProviders,
)

from .record_commands import record_commands

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

declared = record_commands(
    "declared",
    AsyncDeclaredResources,
    columns=["ref", "source", "applied_by", "updated_at"],
    about="Manage the resources that `holdfast apply` has applied.",
)

providers = record_commands(
    "providers",
    AsyncProviders,
    columns=["name", "provider_type", "api_base", "is_enabled", "id"],
    about="Manage model providers and their keys.",
)

models = record_commands(
    "models",
    AsyncModels,
    columns=["name", "context_window", "input_price_micros", "output_price_micros", "is_default", "is_enabled", "id"],
    about="Manage the models of providers. A provider is named by its name or its id.",
    named={"provider": "providers"},
)
