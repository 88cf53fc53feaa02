"""Session shares: links that let other users read a session, or take part in it.

The token of a link gives its bearer the access that the link grants. Only a hash of the token is stored, unless the link was
created with ``shows_token``. A link belongs to its session: it grants nothing while the session is deleted, and is removed with
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...clock import from_us
from ...core.blocking import Blocking, blocking
from ...core.grants import GrantTable
from ...core.queries import Queries, Query
from ...core.records import Limited
from ...core.rows import Column
from ...core.store import TenantStore, reads, writes
from ...core.text import unescape
from ...core.tokens import TokenTable, digest
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded, NotFound
from ...ids import Id
from ...ids import parse as parse_id

PRUNE_ROWS = 100
"""The number of expired links to remove whenever a link is created."""


class SessionShare(Struct, frozen=True):
    """A link to a session. ``number`` counts the links of one session, and ``user`` is the owner of the session.

    ``token`` is ``None`` unless the link was created with ``shows_token``.
    """

    session_id: Id
    number: int
    user: Annotated[str, Limited("name_bytes"), Column("user_id")]
    read_only: bool
    token: Annotated[str | None, Limited("name_bytes"), Column("shown_token")]
    created_at: datetime
    expires_at: datetime | None


class ShareUse(Struct, frozen=True):
    """A record that a user has used a link."""

    token_hash: Annotated[str, Limited("name_bytes")]
    user: Annotated[str, Limited("name_bytes", empty=False), Column("user_id")]
    used_at: datetime


LIVE = """EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = session_shares.session_id AND (s.deleted_at IS NULL) IS TRUE)"""
SHARES = TokenTable("session_shares", SessionShare, noun="link", condition=LIVE)
USES = GrantTable("session_share_uses", ShareUse, resource="token_hash", principal="user", noun="use of a link")
queries = Queries(__package__, "shares.sql", SessionShare)


class AsyncSessionShares(TenantStore):
    """The links to one tenant's sessions."""

    @writes
    async def create(
        self,
        connection: Connection,
        session_id: Id,
        *,
        token: str,
        read_only: bool = True,
        shows_token: bool = False,
        expires_at: datetime | None = None,
    ) -> SessionShare:
        """Create a link to a session, with a token that the caller generated.

        Args:
            shows_token: store the token itself too, so that lists can show it again.
            expires_at: when the link stops working; by default it does not expire.

        Raises:
            NotFound: no live session has this id.
            AlreadyExists: a link with this token exists.
        """
        if not isinstance(shows_token, bool):
            raise InvalidInput(f"shows_token must be true or false, not {shows_token!r}", field="shows_token")
        params = self._session(session_id) | {"now_at": self._scope.clock.now_us(), "limit": PRUNE_ROWS}
        owner = await queries.lock_session.one(connection, params)
        if owner is None:
            raise NotFound(f"session {session_id} does not exist", noun="session", key=session_id)
        await queries.prune_uses.all(connection, params)
        await SHARES.prune(connection, self._scope, limit=PRUNE_ROWS)
        ((number,),) = await queries.next_number.all(connection, params)
        values = {"session_id": session_id, "number": number, "read_only": read_only, "expires_at": expires_at}
        values |= {"user": unescape(owner[0]), "token": token if shows_token else None}
        return await SHARES.issue(connection, self._scope, token, values)

    @reads
    async def list(self, connection: Connection, session_id: Id) -> Sequence[SessionShare]:
        """List the links to a live session in the order of their creation; empty if no live session has the id."""
        return await self._all(connection, queries.list, self._session(session_id))

    @reads
    async def find(self, connection: Connection, token: str) -> SessionShare | None:
        """Return the link with this token, or ``None`` if it does not exist, has expired or its session is deleted."""
        return await SHARES.find(connection, self._scope, token)

    @writes
    async def use(self, connection: Connection, token: str, *, user: str) -> SessionShare:
        """Record that a user has used the link with this token, and return the link.

        Raises:
            NotFound: it does not exist, has expired or its session is deleted.
        """
        share = await SHARES.find(connection, self._scope, token)
        if share is None:
            raise NotFound("the link does not exist, has expired, or its session is deleted", noun="link")
        now = from_us(self._scope.clock.now_us())
        await USES.grant(connection, self._scope, ShareUse(digest(token), user, now))
        return share

    @reads
    async def used_by(self, connection: Connection, user: str) -> Sequence[SessionShare]:
        """List the links to live sessions that a user has used, newest first."""
        params = USES.params({"user": user}, self._scope.limits)
        return await self._all(connection, queries.used_by, self._scope.params(**params))

    @writes
    async def delete(
        self, connection: Connection, session_id: Id, *, token: str | None = None, number: int | None = None
    ) -> bool:
        """Remove a link to a session, by its token or its number; return whether it existed."""
        if (token is None) == (number is None):
            raise InvalidInput("give either the token or the number of the link to delete", field="token")
        params = self._session(session_id) | {"token_hash": None, "number": None}
        if token is not None:
            params["token_hash"] = SHARES.hash_of(self._scope, token)
        else:
            params |= SHARES.params({"number": number}, self._scope.limits)
        await queries.delete_uses.all(connection, params)
        return await queries.delete.one(connection, params) is not None

    async def _all(self, connection: Connection, query: Query, params: dict[str, Any]) -> Sequence[SessionShare]:
        maximum = self._scope.limits.list_rows
        rows = await query.all(connection, {**params, "limit": maximum + 1, "now_at": self._scope.clock.now_us()})
        if len(rows) > maximum:
            raise LimitExceeded(
                f"there are more than list_rows = {maximum:,} links", limit="list_rows", maximum=maximum
            )
        return SHARES.rows(connection, rows)

    def _session(self, session_id: str) -> dict[str, Any]:
        return self._scope.params(session_id=parse_id(session_id, "session id"))


class SessionShares(Blocking[AsyncSessionShares]):
    """The links to one tenant's sessions."""

    create = blocking(AsyncSessionShares.create)
    list = blocking(AsyncSessionShares.list)
    find = blocking(AsyncSessionShares.find)
    use = blocking(AsyncSessionShares.use)
    used_by = blocking(AsyncSessionShares.used_by)
    delete = blocking(AsyncSessionShares.delete)
