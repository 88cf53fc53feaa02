"""Agents: their definitions, such as owner, model, system prompt and tools, and who may use them.

An agent has an id, which is any name that the caller chooses, a key, by which people know it, and a version, which every change
increases. Runs and sessions refer to an agent by its id and do not require a definition. Core blocks, context files, profiles
and shares do: they are hidden while the agent is deleted, and return with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core import checks, text
from ...core import scope as scopes
from ...core.actor_context import ActorContext, AgentType
from ...core.blocking import blocking
from ...core.filters import id_list
from ...core.paging import Page, page, rows_to_read
from ...core.queries import Queries, Query
from ...core.records import (
    AsyncSoftRecords,
    AtLeast,
    AtMostOne,
    DefaultsTo,
    Filterable,
    Key,
    Limited,
    Metadata,
    Names,
    Natural,
    Searchable,
    SoftRecords,
    Tags,
)
from ...core.records.values import cursor_of, cursor_params
from ...core.rows import Column
from ...core.store import reads, writes_with_actor
from ...engines.protocol import Connection
from ...errors import NotFound
from ..objects.activity import Audited
from .agent_access import AgentAccess, decide_access
from .agent_shares import AgentShare, AsyncAgentShares, NewAgentShare, ShareRole

AgentStatus = Literal["active", "inactive", "summoning", "summon_failed"]
Config = Annotated[dict[str, Any] | None, Limited("metadata_bytes")]


class Agent(Struct, frozen=True):
    """The definition of an agent. A text or a list that is empty, and a number or a configuration that is ``None``, is not set:
    the program's own default applies.
    """

    id: Annotated[str, Key(), Limited("name_bytes", empty=False), Filterable()]
    key: Annotated[
        str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable(), DefaultsTo(field="id")
    ]
    display_name: Annotated[str, Limited("display_bytes"), Filterable(), Searchable()]
    owner: Annotated[str, Column("owner_id"), Limited("name_bytes"), Filterable(), DefaultsTo(actor="user")]
    agent_type: Annotated[AgentType, Filterable()]
    status: Annotated[AgentStatus, Filterable()]
    is_default: Annotated[bool, AtMostOne(), Filterable()]
    """Whether it is the default agent of its tenant. Setting it takes it from the agent that was."""
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    provider: Annotated[str, Limited("name_bytes"), Filterable()]
    model: Annotated[str, Limited("name_bytes"), Filterable()]
    system: Annotated[str, Limited("system_bytes")]
    frontmatter: Annotated[str, Limited("text_bytes")]
    context_window: Annotated[int | None, AtLeast(1), Filterable()]
    max_tool_iterations: Annotated[int | None, AtLeast(1), Filterable()]
    budget_monthly_cents: Annotated[int | None, AtLeast(0), Filterable()]
    workspace: Annotated[str, Limited("path_bytes")]
    restrict_to_workspace: bool
    tool_ids: Annotated[list[str], Names("tools")]
    tools_config: Config
    sandbox_config: Config
    subagents_config: Config
    memory_config: Config
    compaction_config: Config
    context_pruning: Config
    other_config: Config
    tags: Annotated[list[str], Tags("agent_tags", "agent_id")]
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewAgent(Struct, frozen=True):
    """An agent to create. Without an id, a new one is assigned; without a key, the id is the key too.

    Without an owner, the user of the actor context owns it.
    """

    id: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    display_name: str = ""
    owner: str | UnsetType = UNSET
    agent_type: AgentType = "open"
    status: AgentStatus = "active"
    is_default: bool = False
    description: str = ""
    provider: str = ""
    model: str = ""
    system: str = ""
    frontmatter: str = ""
    context_window: int | None = None
    max_tool_iterations: int | None = None
    budget_monthly_cents: int | None = None
    workspace: str = ""
    restrict_to_workspace: bool = True
    tool_ids: list[str] = []
    tools_config: dict[str, Any] | None = None
    sandbox_config: dict[str, Any] | None = None
    subagents_config: dict[str, Any] | None = None
    memory_config: dict[str, Any] | None = None
    compaction_config: dict[str, Any] | None = None
    context_pruning: dict[str, Any] | None = None
    other_config: dict[str, Any] | None = None
    tags: list[str] = []
    metadata: dict[str, Any] = {}


class AgentChange(Struct, frozen=True):
    """A change of an agent. An empty text, or ``None``, removes a value."""

    key: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    agent_type: AgentType | UnsetType = UNSET
    status: AgentStatus | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET
    description: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    frontmatter: str | UnsetType = UNSET
    context_window: int | UnsetType | None = UNSET
    max_tool_iterations: int | UnsetType | None = UNSET
    budget_monthly_cents: int | UnsetType | None = UNSET
    workspace: str | UnsetType = UNSET
    restrict_to_workspace: bool | UnsetType = UNSET
    tool_ids: list[str] | UnsetType = UNSET
    tools_config: dict[str, Any] | UnsetType | None = UNSET
    sandbox_config: dict[str, Any] | UnsetType | None = UNSET
    subagents_config: dict[str, Any] | UnsetType | None = UNSET
    memory_config: dict[str, Any] | UnsetType | None = UNSET
    compaction_config: dict[str, Any] | UnsetType | None = UNSET
    context_pruning: dict[str, Any] | UnsetType | None = UNSET
    other_config: dict[str, Any] | UnsetType | None = UNSET
    tags: list[str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


queries = Queries(__package__, "agents.sql", Agent)


class AsyncAgents(Audited, AsyncSoftRecords[Agent, NewAgent, AgentChange]):
    """The agents of one tenant. Deleting an agent hides its core blocks and shares; its sessions and runs stay."""

    table, noun = "agents", "agent"

    @reads
    async def get_default(self, connection: Connection) -> Agent:
        """Return the default agent, or the oldest one if none is the default.

        Raises:
            NotFound: the tenant has no agent.
        """
        params = self._scope.params()
        agent = await self._one(connection, self.queries.flagged, params)
        agent = agent or await self._one(connection, queries.oldest, params)
        if agent is None:
            raise NotFound("the tenant has no agent", noun="agent", key="default")
        return agent

    @reads
    async def by_ids(self, connection: Connection, ids: Sequence[str]) -> Sequence[Agent]:
        """Return the agents with these ids, in this order; those that do not exist are left out.

        Raises:
            LimitExceeded: there are more than ``batch_rows`` ids.
        """
        return await self._all_of(connection, queries.by_ids, "id", ids)

    @reads
    async def by_keys(self, connection: Connection, keys: Sequence[str]) -> Sequence[Agent]:
        """Return the agents with these keys, in this order; those that do not exist are left out.

        Raises:
            LimitExceeded: there are more than ``batch_rows`` keys.
        """
        return await self._all_of(connection, queries.by_keys, "key", keys)

    @reads
    async def access(self, connection: Connection, agent_id: str, user: str) -> AgentAccess:
        """Return whether a user may use an agent, in which role, and which of four steps decided.

        The steps, in this order: a missing agent is denied; anybody may use the default agent, its owner as ``owner`` and all
        others as ``user``, whatever their share says; the owner may use the agent; a share gives its role.
        """
        params = self._at((agent_id,)) | {"user_id": scopes.name(user, "user", self._scope.limits)}
        return decide_access(await queries.access.one(connection, params), user)

    @reads
    async def list_accessible(
        self, connection: Connection, user: str, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Agent]:
        """List the agents to which ``access`` admits a user, by id. With ``limit``, one page.

        Raises:
            InvalidFilter: the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits, listing, order = self._scope.limits, "accessible_agents", self.declared.key
        params = self._scope.params(limit=rows_to_read(limit, limits), user_id=scopes.name(user, "user", limits))
        params |= {"after_id": ""} if cursor is None else cursor_params(cursor, listing, order)
        rows = self._rows(connection, await queries.accessible.all(connection, params))
        return page(rows, limit, limits, self.nouns, lambda row: cursor_of(listing, order, row))

    @writes_with_actor
    async def share(
        self, connection: Connection, acting: ActorContext, agent_id: str, user: str, *, role: ShareRole = "user"
    ) -> AgentShare:
        """Let a user use an agent, or change the role of a user who may. ``agent_shares`` has more operations on shares.

        Raises:
            NotFound: the agent does not exist.
        """
        return await self._shares._grant(connection, acting, NewAgentShare(agent_id, user, role))

    @writes_with_actor
    async def revoke_share(self, connection: Connection, acting: ActorContext, agent_id: str, user: str) -> bool:
        """Remove a user's share of an agent; return whether it existed."""
        return await self._shares._revoke(connection, acting, agent_id, user)

    @reads
    async def list_shares(
        self, connection: Connection, agent_id: str, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[AgentShare]:
        """List the shares of an agent, by user. With ``limit``, one page.

        Raises:
            InvalidFilter: the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        table = self._shares.grants[0]
        return await table.list(connection, self._scope, resource=agent_id, limit=limit, cursor=cursor)

    @property
    def _shares(self) -> AsyncAgentShares:
        return AsyncAgentShares(self._engine, self._scope)

    async def _all_of(self, connection: Connection, query: Query, field: str, values: Sequence[str]) -> list[Agent]:
        limits = self._scope.limits
        checked = checks.list_of(str, values, f"{field}s")
        limits.check("batch_rows", len(checked), f"{field}s")
        stored = [scopes.name(value, field, limits) for value in dict.fromkeys(checked)]
        params = self._scope.params(values=id_list(stored, connection.dialect))
        rows = {getattr(row, field): row for row in self._rows(connection, await query.all(connection, params))}
        return [rows[value] for value in dict.fromkeys(checked) if value in rows]


class Agents(SoftRecords[Agent, NewAgent, AgentChange]):
    """The agents of one tenant. Deleting an agent hides its core blocks and shares; its sessions and runs stay."""

    get_default = blocking(AsyncAgents.get_default)
    by_ids = blocking(AsyncAgents.by_ids)
    by_keys = blocking(AsyncAgents.by_keys)
    access = blocking(AsyncAgents.access)
    list_accessible = blocking(AsyncAgents.list_accessible)
    share = blocking(AsyncAgents.share)
    revoke_share = blocking(AsyncAgents.revoke_share)
    list_shares = blocking(AsyncAgents.list_shares)


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
