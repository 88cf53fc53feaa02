"""Requests for access to MCP servers: someone asks for a grant to an agent or a user, and a reviewer approves or rejects it.

An approval makes the grant in the same transaction. A request is reviewed once: of two reviewers one succeeds, and the other
gets ``Conflict``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Struct

from ...clock import from_us
from ...core.actor_context import ActorContext
from ...core.blocking import blocking
from ...core.records import Limited, Names
from ...core.rows import Column
from ...core.store import writes_with_actor
from ...core.transition_stores import AsyncTransitions, Transitions
from ...core.transitions import Move, TransitionTable
from ...engines.protocol import Connection
from ...errors import InvalidInput
from ...ids import Id
from ..agents.agent_shares import LIVE_AGENT
from ..objects.activity import Audited
from .mcp_grants import AsyncMcpGrants, NewMcpAgentGrant, NewMcpGrant, NewMcpUserGrant, Server

_REVIEW = ("reviewed_by", "reviewed_at", "review_note")


class McpRequest(Struct, frozen=True):
    """A request for access to an MCP server. Its scope says whether it asks for a grant to ``agent`` or to ``user``."""

    id: Id
    server: Server
    scope: Literal["agent", "user"]
    agent: Annotated[str | None, Column("agent_id"), Limited("name_bytes", empty=False), LIVE_AGENT]
    user: Annotated[str | None, Column("user_id"), Limited("name_bytes", empty=False)]
    tool_allow: Annotated[list[str] | None, Names("tools")]
    """The tools it asks for; all if it is ``None``."""
    reason: Annotated[str, Limited("text_bytes")]
    requested_by: Annotated[str, Limited("name_bytes")]
    status: Literal["pending", "approved", "rejected", "cancelled"]
    reviewed_by: Annotated[str | None, Limited("name_bytes")]
    reviewed_at: datetime | None
    review_note: Annotated[str | None, Limited("text_bytes")]
    created_at: datetime
    updated_at: datetime


class AsyncMcpRequests(Audited, AsyncTransitions[McpRequest]):
    """The requests for access to one tenant's MCP servers."""

    transitions = TransitionTable(
        "mcp_requests",
        McpRequest,
        noun="MCP request",
        moves={
            "approve": Move({"pending": "approved"}, sets=_REVIEW),
            "reject": Move({"pending": "rejected"}, sets=_REVIEW),
            "cancel": Move({"pending": "cancelled"}),
        },
        indexes={"status": "mcp_requests_by_status", "": "mcp_requests_by_time"},
    )

    @writes_with_actor
    async def create(
        self,
        connection: Connection,
        acting: ActorContext,
        server: Id,
        *,
        scope: Literal["agent", "user"],
        agent: str | None = None,
        user: str | None = None,
        tool_allow: Sequence[str] | None = None,
        reason: str = "",
        requested_by: str | None = None,
        id: str | None = None,
    ) -> McpRequest:
        """Request access to a server for an agent or a user. ``requested_by`` is the actor if it is left out.

        With an ``id`` chosen by the caller, the call can be repeated: the same id with the same content returns the first
        request.

        Raises:
            InvalidInput: the scope needs an agent or a user, and not both.
            NotFound: the server or the agent does not exist.
            Conflict: another request has this id.
        """
        subjects = {"agent": agent, "user": user}
        if isinstance(scope, str) and scope in subjects:
            for kind, subject in subjects.items():
                if (subject is None) == (kind == scope):
                    needed = "needs one" if kind == scope else f"has a {scope} only"
                    raise InvalidInput(f"{kind} is {subject!r}: a request of the scope {scope!r} {needed}", field=kind)
        values = {
            "server": server,
            "scope": scope,
            **subjects,
            "tool_allow": tool_allow,
            "reason": reason,
            "requested_by": acting.actor()[1] if requested_by is None else requested_by,
        }
        return await self._create(connection, acting, values, id=id)

    @writes_with_actor
    async def review(
        self,
        connection: Connection,
        acting: ActorContext,
        id: Id,
        *,
        approved: bool,
        by: str | None = None,
        note: str = "",
    ) -> McpRequest:
        """Approve or reject a request. ``by`` is the actor if it is left out.

        An approval enables the grant with the requested ``tool_allow``. A grant that exists keeps its other attributes.

        Raises:
            NotFound: the request does not exist, or its server or agent no longer does.
            Conflict: it was reviewed or cancelled before.
        """
        if not isinstance(approved, bool):
            raise InvalidInput(f"approved must be true or false, not {approved!r:.60}", field="approved")
        reviewer = acting.actor()[1] if by is None else by
        review = {"reviewed_by": reviewer, "reviewed_at": from_us(self._scope.clock.now_us()), "review_note": note}
        move = "approve" if approved else "reject"
        request = await self._move(connection, acting, id, move, values=review)
        if approved:
            grants = AsyncMcpGrants(self._engine, self._scope)
            await grants._grant(connection, acting, _grant_of(request, reviewer), extend=True)
        return request

    @writes_with_actor
    async def cancel(self, connection: Connection, acting: ActorContext, id: Id) -> McpRequest:
        """Cancel a request that was not reviewed.

        Raises:
            NotFound: the request does not exist.
            Conflict: it was reviewed or cancelled before.
        """
        return await self._move(connection, acting, id, "cancel")


class McpRequests(Transitions[McpRequest]):
    """The requests for access to one tenant's MCP servers."""

    create = blocking(AsyncMcpRequests.create)
    review = blocking(AsyncMcpRequests.review)
    cancel = blocking(AsyncMcpRequests.cancel)


def _grant_of(request: McpRequest, reviewer: str) -> NewMcpGrant:
    attributes: dict[str, Any] = {"tool_allow": request.tool_allow, "granted_by": reviewer}
    if request.agent is not None:
        return NewMcpAgentGrant(request.server, request.agent, **attributes)
    assert request.user is not None
    return NewMcpUserGrant(request.server, request.user, **attributes)
