"""Agents: who acts in a session and how, as it was defined.

An agent has an id, which is any name of the caller's choosing, and a version, which rises with every change. Its runs and
sessions name it by its id and need no definition; its core blocks of memory do, and are deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core import text
from ...core.queries import Queries
from ...core.records import AsyncRecords, Filterable, Key, Limited, Metadata, Names, Records, Searchable, Tags
from ...engines.protocol import Connection
from ...errors import NotFound


class Agent(Struct, frozen=True):
    """A definition. ``model`` and ``system`` are empty where it has none of its own."""

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
    """An agent to define. Without an id it gets one."""

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
    """What to change of an agent; an empty text takes a model or a prompt away."""

    name: str | UnsetType = UNSET
    agent_type: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    tool_ids: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


queries = Queries(__package__, "agents.sql")


class AsyncAgents(AsyncRecords[Agent, NewAgent, AgentChange]):
    """The agents of one tenant. Deleting an agent deletes its core blocks; its sessions and runs stay."""

    table, noun = "agents", "agent"

    async def _before_delete(self, connection: Connection, params: dict[str, Any]) -> None:
        await queries.delete_blocks.all(connection, params)


class Agents(Records[Agent, NewAgent, AgentChange]):
    """The agents of one tenant. Deleting an agent deletes its core blocks; its sessions and runs stay."""


async def has_agent(connection: Connection, params: Mapping[str, Any]) -> bool:
    """Whether there is an agent with this ``id``; for other stores."""
    return await AsyncAgents.queries.get.one(connection, params) is not None


async def lock_agent(connection: Connection, params: Mapping[str, Any]) -> None:
    """Lock an agent until the transaction ends: what belongs to it is changed by one call at a time.

    Raises:
        NotFound: there is no such agent.
    """
    if not await AsyncAgents.queries.lock.all(connection, params):
        raise NotFound(f"there is no agent {text.unescape(params['id'])!r}")
