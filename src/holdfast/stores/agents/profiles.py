"""Profiles: the users of an agent, each with a workspace and metadata.

A profile is created on a user's first contact with an agent. The workspace of the first contact stays.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...clock import to_us
from ...core import scope as scopes
from ...core.actor_context import ActorContext
from ...core.blocking import blocking
from ...core.paging import Page, after_clause, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.records import (
    AsyncRecords,
    Filterable,
    Key,
    Limited,
    Merged,
    Metadata,
    Records,
    Searchable,
)
from ...core.rows import Column, mapper
from ...core.store import reads, writes_with_actor
from ...engines.protocol import Connection
from ...errors import InvalidInput, NotFound
from ..objects.activity import Audited
from . import context_files
from .agent_shares import LIVE_AGENT
from .agents import has_agent
from .context_files import USER_FILE

_LISTING = "agent-users"


class Profile(Struct, frozen=True):
    """A user of an agent. ``created_at`` is the time of the first contact."""

    agent: Annotated[str, Column("agent_id"), Key(), Limited("name_bytes", empty=False), Filterable(), LIVE_AGENT]
    user: Annotated[str, Column("user_id"), Key(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    workspace: Annotated[str, Limited("path_bytes")]
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata(), Merged()]
    version: int
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime


class NewProfile(Struct, frozen=True):
    """A profile to create without a contact."""

    agent: str
    user: str
    workspace: str = ""
    metadata: dict[str, Any] = {}


class ProfileChange(Struct, frozen=True):
    """A change of a profile. Metadata is merged into the stored object; an empty object clears it."""

    workspace: str | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class Visit(Struct, frozen=True):
    """A contact of a user with an agent: the profile, and whether this contact has created it."""

    profile: Profile
    created: bool


class AgentUser(Struct, frozen=True):
    """A user of an agent, and how many copies of context files apply to the user."""

    profile: Profile
    file_count: int


queries = Queries(__package__, "profiles.sql", Profile)


class AsyncProfiles(Audited, AsyncRecords[Profile, NewProfile, ProfileChange]):
    """The users of one tenant's agents, the one seen last first."""

    table, noun, order = "agent_profiles", "profile", ("-last_seen_at",)

    @writes_with_actor
    async def get_or_create(
        self,
        connection: Connection,
        acting: ActorContext,
        agent: str,
        user: str,
        *,
        workspace: str = "",
        channel: str = "",
        seed: bool = False,
    ) -> Visit:
        """Return the profile of a user who contacts an agent now, and whether this contact has created it.

        Of concurrent calls, exactly one is told that it has created the profile. The workspace of the first contact stays; the
        channel becomes its last segment. With ``seed``, a new user gets copies of the agent's context files in the same
        transaction.

        Raises:
            NotFound: the agent does not exist.
            InvalidInput: the channel cannot be a segment of a path.
        """
        new = NewProfile(agent, user, _with_channel(workspace, channel))
        row = await queries.visit.one(connection, self._now(self._new_values(new, acting)))
        if row is None:
            raise _no_agent(agent)
        visit = Visit(mapper(Profile, connection.dialect)([row[:-1]])[0], bool(row[-1]))
        if visit.created:
            await self._on_change(connection, acting, "created", visit.profile, ())
            if seed:
                await context_files.seed(connection, self._scope, acting, agent, user)
        return visit

    @reads
    async def users(
        self, connection: Connection, agent: str, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[AgentUser]:
        """List the users of an agent with the number of their context files, the one seen last first. With ``limit``, a page.

        Raises:
            NotFound: the agent does not exist.
            InvalidFilter: the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(
            agent_id=scopes.name(agent, "agent", limits), user_file=USER_FILE, limit=rows_to_read(limit, limits)
        )
        clause = after_clause(
            cursor, _LISTING, {"p.last_seen_at": "time", "p.user_id": "text"}, params, connection.dialect
        )
        rows = await queries.users.all(connection, params, clause)
        if not rows and not await has_agent(connection, {**params, "id": params["agent_id"]}):
            raise _no_agent(agent)
        profiles = mapper(Profile, connection.dialect)([row[:-1] for row in rows])
        users = [AgentUser(profile, row[-1]) for profile, row in zip(profiles, rows, strict=True)]
        return page(users, limit, limits, "users", _cursor)


class Profiles(Records[Profile, NewProfile, ProfileChange]):
    """The users of one tenant's agents, the one seen last first."""

    get_or_create = blocking(AsyncProfiles.get_or_create)
    users = blocking(AsyncProfiles.users)


def _with_channel(workspace: str, channel: str) -> str:
    """Return the workspace of a user in a channel.

    Raises:
        InvalidInput: the channel cannot be a segment of a path.
    """
    if not isinstance(channel, str) or channel in (".", "..") or any(char in "/\\\0" for char in channel):
        raise InvalidInput(
            f"channel becomes a directory in the workspace, so it must be one segment of a path, not {channel!r}",
            field="channel",
        )
    if not channel or not workspace or not isinstance(workspace, str):
        return workspace
    return f"{workspace.rstrip('/')}/{channel}"


def _no_agent(agent: str) -> NotFound:
    return NotFound(f"agent {agent!r} does not exist", noun="agent", key=agent)


def _cursor(user: AgentUser) -> str:
    return encode_cursor(_LISTING, to_us(user.profile.last_seen_at), user.profile.user)
