"""Agent shares: the users who may use an agent, beside its owner."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.grants import AsyncGrants, Grants, GrantTable
from ...core.records import Limited, References
from ...core.rows import Column
from ..objects.activity import Audited

LIVE_AGENT = References("agents", "agent", live="deleted_at IS NULL")
"""Marks a field that names an agent, which must exist."""
ShareRole = Literal["user", "admin", "operator"]


class AgentShare(Struct, frozen=True):
    """A user may use an agent, in a role."""

    agent: Annotated[str, Column("agent_id"), Limited("name_bytes", empty=False), LIVE_AGENT]
    user: Annotated[str, Column("user_id"), Limited("name_bytes", empty=False)]
    role: ShareRole
    granted_by: Annotated[str, Limited("name_bytes")]
    """The actor who made the share last; empty if none was set."""
    created_at: datetime
    updated_at: datetime


class NewAgentShare(Struct, frozen=True):
    """A share to make. Without ``granted_by``, it names the actor."""

    agent: str
    user: str
    role: ShareRole = "user"
    granted_by: str | UnsetType = UNSET


class AsyncAgentShares(Audited, AsyncGrants[AgentShare, NewAgentShare]):
    """The shares of one tenant's agents."""

    grants = (
        GrantTable("agent_shares", AgentShare, NewAgentShare, resource="agent", principal="user", noun="agent share"),
    )


class AgentShares(Grants[AgentShare, NewAgentShare]):
    """The shares of one tenant's agents."""
