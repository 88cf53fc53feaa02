"""Language models: what each provider offers, with sizes, prices and capabilities."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from ...core.blocking import blocking
from ...core.records import (
    AsyncRecords,
    AtLeast,
    AtMostOne,
    Filterable,
    Key,
    Limited,
    Names,
    Natural,
    Records,
    References,
    Searchable,
)
from ...core.rows import Column
from ...core.store import reads
from ...engines.protocol import Connection
from ...ids import Id
from ...ids import parse as parse_id
from ..objects.activity import Audited

Price = Annotated[int | None, AtLeast(0), Filterable()]


class Model(Struct, frozen=True):
    """A model of a provider. ``None`` means unknown.

    Prices are whole numbers, so that sums are exact: millionths of a US dollar for a million tokens. 3,000,000 is $3 for a
    million tokens; 0 is free.
    """

    id: Annotated[Id, Key()]
    provider: Annotated[Id, Column("provider_id"), Natural(), Filterable(), References("llm_providers", "provider")]
    """The id of its provider."""
    name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    """The name that the provider's API expects."""
    display_name: Annotated[str, Limited("display_bytes"), Searchable()]
    context_window: Annotated[int | None, AtLeast(1), Filterable()]
    """Tokens that a request may have, with its answer."""
    max_output_tokens: Annotated[int | None, AtLeast(1), Filterable()]
    input_price_micros: Price
    output_price_micros: Price
    cache_read_price_micros: Price
    cache_write_price_micros: Price
    capabilities: Annotated[list[str], Names("capabilities")]
    """Such as ``vision`` or ``tools``."""
    is_enabled: Annotated[bool, Filterable()]
    is_default: Annotated[bool, AtMostOne(within=("provider",)), Filterable()]
    """Whether it is the model that its provider uses if none is named. Setting it takes it from the provider's other models."""
    version: int
    created_at: datetime
    updated_at: datetime


class NewModel(Struct, frozen=True):
    """A model to create."""

    provider: str
    name: str
    id: str | UnsetType = UNSET
    display_name: str = ""
    context_window: int | None = None
    max_output_tokens: int | None = None
    input_price_micros: int | None = None
    output_price_micros: int | None = None
    cache_read_price_micros: int | None = None
    cache_write_price_micros: int | None = None
    capabilities: list[str] = []
    is_enabled: bool = True
    is_default: bool = False


class ModelChange(Struct, frozen=True):
    """A change of a model. ``None`` makes a size or a price unknown."""

    name: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    context_window: int | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    input_price_micros: int | UnsetType | None = UNSET
    output_price_micros: int | UnsetType | None = UNSET
    cache_read_price_micros: int | UnsetType | None = UNSET
    cache_write_price_micros: int | UnsetType | None = UNSET
    capabilities: list[str] | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET


class AsyncModels(Audited, AsyncRecords[Model, NewModel, ModelChange]):
    """The models of one tenant's providers, by provider and name. They are deleted with their provider."""

    table, noun, order = "llm_models", "model", ("provider", "name")

    @reads
    async def default(self, connection: Connection, provider: Id) -> Model | None:
        """Return the default model of a provider, or ``None`` if none was chosen."""
        params = self._scope.params(provider_id=parse_id(provider, "provider"))
        return await self._one(connection, self.queries.flagged, params)


class Models(Records[Model, NewModel, ModelChange]):
    """The models of one tenant's providers, by provider and name. They are deleted with their provider."""

    default = blocking(AsyncModels.default)
