"""Agents: their definitions, such as name, model, system prompt and tools.

An agent has an id, which is any name that the caller chooses, and a version, which every change increases. Runs and sessions
refer to an agent by its id and do not require a definition. Core blocks, context files and profiles do, and are deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core import text
from ...core.actor_context import ActorContext
from ...core.queries import Queries
from ...core.records import AsyncRecords, Filterable, Key, Limited, Metadata, Names, Records, Searchable, Tags
from ...engines.protocol import Connection
from ...errors import NotFound
from ..objects.activity import Audited


class Agent(Struct, frozen=True):
    """The definition of an agent. ``model`` and ``system`` are empty if it has none of its own."""

    id: Annotated[str, Key(), Limited("name_bytes", empty=False)]
    name: Annotated[str, Limited("name_bytes", empty=False), Filterable(), Searchable()]
    agent_type: Annotated[str, Limited("name_bytes", empty=False), Filterable()]
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    model: Annotated[str, Limited("name_bytes"), Filterable()]
    system: Annotated[str, Limited("system_bytes")]
    tool_ids: Annotated[list[str], Names("tools")]
    tags: Annotated[list[str], Tags("agent_tags", "agent_id")]
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewAgent(Struct, frozen=True):
    """An agent to create. Without an id, a new one is assigned."""

    name: str
    id: str | UnsetType = UNSET
    agent_type: str = "open"
    description: str = ""
    model: str = ""
    system: str = ""
    tool_ids: list[str] = []
    tags: list[str] = []
    metadata: dict[str, Any] = {}


class AgentChange(Struct, frozen=True):
    """A change of an agent. An empty string removes the model or the system prompt."""

    name: str | UnsetType = UNSET
    agent_type: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    tool_ids: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


queries = Queries(__package__, "agents.sql")


class AsyncAgents(Audited, AsyncRecords[Agent, NewAgent, AgentChange]):
    """The agents of one tenant. Deleting an agent deletes its blocks, context files and profiles; its sessions and runs stay."""

    table, noun = "agents", "agent"

    async def _before_delete(self, connection: Connection, acting: ActorContext, params: dict[str, Any]) -> None:
        await queries.run_all("delete_", connection, params)


class Agents(Records[Agent, NewAgent, AgentChange]):
    """The agents of one tenant. Deleting an agent deletes its blocks, context files and profiles; its sessions and runs stay."""


async def has_agent(connection: Connection, params: Mapping[str, Any]) -> bool:
    """Return whether an agent with this ``id`` exists."""
    return await AsyncAgents.queries.get.one(connection, params) is not None


async def lock_agent(connection: Connection, params: Mapping[str, Any]) -> None:
    """Lock an agent until the transaction ends, so that its blocks are changed by one call at a time.

    Raises:
        NotFound: the agent does not exist.
    """
    if not await AsyncAgents.queries.lock.all(connection, params):
        agent_id = text.unescape(params["id"])
        raise NotFound(f"agent {agent_id!r} does not exist", noun="agent", key=agent_id)
