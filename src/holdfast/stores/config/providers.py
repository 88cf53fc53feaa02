"""Model providers: the services that run language models, each with its address, its encrypted key and its settings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.actor_context import ActorContext
from ...core.crypto import Secret
from ...core.queries import Queries
from ...core.records import (
    AsyncSecretRecords,
    Filterable,
    Key,
    Limited,
    Metadata,
    Natural,
    Searchable,
    SecretRecords,
)
from ...engines.protocol import Connection
from ...ids import Id
from ..objects.activity import Audited, change_by, record_all

ProviderType = Literal[
    "openai_compat",
    "anthropic_native",
    "gemini_native",
    "openrouter",
    "groq",
    "deepseek",
    "mistral",
    "xai",
    "minimax_native",
    "cohere",
    "perplexity",
    "dashscope",
    "bailian",
    "chatgpt_oauth",
    "claude_cli",
    "suno",
    "yescale",
    "zai",
    "zai_coding",
    "ollama",
    "ollama_cloud",
    "acp",
    "azure_openai",
    "gemini_vertex_ai",
    "anthropic_vertex_ai",
    "bedrock",
    "sap_ai_core",
    "foundry",
]
"""The protocols that providers speak."""


class Provider(Struct, frozen=True):
    """A service that runs models. ``providers.reveal(id)`` returns its key and logs that."""

    id: Annotated[Id, Key()]
    name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    display_name: Annotated[str, Limited("display_bytes"), Searchable()]
    provider_type: Annotated[ProviderType, Filterable()]
    api_base: Annotated[str, Limited("url_bytes")]
    """The address of its API; empty for the address that its type implies."""
    api_key: Secret[str] | None
    is_enabled: Annotated[bool, Filterable()]
    settings: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    """Settings of the caller's client, such as timeouts. They are not encrypted: keep credentials out of them."""
    version: int
    created_at: datetime
    updated_at: datetime


class NewProvider(Struct, frozen=True):
    """A provider to create."""

    name: str
    id: str | UnsetType = UNSET
    display_name: str = ""
    provider_type: ProviderType = "openai_compat"
    api_base: str = ""
    api_key: Secret[str] | None = None
    is_enabled: bool = True
    settings: dict[str, Any] = {}


class ProviderChange(Struct, frozen=True):
    """A change of a provider. ``api_key=None`` removes the key."""

    name: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    provider_type: ProviderType | UnsetType = UNSET
    api_base: str | UnsetType = UNSET
    api_key: Secret[str] | UnsetType | None = UNSET
    is_enabled: bool | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET


queries = Queries(__package__, "providers.sql")


class AsyncProviders(Audited, AsyncSecretRecords[Provider, NewProvider, ProviderChange]):
    """The model providers of one tenant, by name. Deleting a provider deletes its models."""

    table, noun, order = "llm_providers", "provider", ("name",)

    async def _before_delete(self, connection: Connection, acting: ActorContext, params: dict[str, Any]) -> None:
        deleted = [id for (id,) in await queries.delete_models.all(connection, params)]
        entries = [change_by(acting, "model.deleted", "model", id) for id in deleted]
        await record_all(connection, self._scope, entries)


class Providers(SecretRecords[Provider, NewProvider, ProviderChange]):
    """The model providers of one tenant, by name. Deleting a provider deletes its models."""
