"""Shares: links with which somebody else may look into a session, or take part in it.

Whoever has the token of a link has what it grants, so it must be long and nobody's guess; the caller draws it. A link belongs to
its session: it leads nowhere while the session is deleted, and is gone with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.queries import Queries
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, InvalidInput, LimitExceeded, NotFound
from ...ids import Id
from ...ids import parse as parse_id

TOKEN_CHARS_LEAST = 16
"""Characters of a token; fewer could be guessed."""


class SessionShare(Struct, frozen=True):
    """A link to a session. ``number`` counts the links of one session, and ``user`` is whose session it is.

    ``shows_token`` says whether a list over HTTP may repeat the token, which opens the session to whoever reads it.
    """

    token: str
    session_id: Id
    number: int
    user: Annotated[str, Column("user_id")]
    read_only: bool
    shows_token: bool
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "shares.sql", SessionShare)


class AsyncSessionShares(TenantStore):
    """The links to one tenant's sessions."""

    @writes
    async def create(
        self, connection: Connection, session_id: str, *, token: str, read_only: bool = True, shows_token: bool = False
    ) -> SessionShare:
        """A link to a session, under a token that the caller has drawn. With ``shows_token``, lists over HTTP repeat the token.

        Raises:
            NotFound: there is no such live session.
            AlreadyExists: there is a link with this token.
        """
        for name, value in (("read_only", read_only), ("shows_token", shows_token)):
            if not isinstance(value, bool):
                raise InvalidInput(f"{name} must be true or false, not {value!r}")
        params = self._session(session_id) | {"token": self._token(token)}
        params |= {"read_only": read_only, "shows_token": shows_token}
        params["now_at"] = self._scope.clock.now_us()
        owner = await queries.session.one(connection, params)
        if owner is None:
            raise NotFound(f"there is no session {session_id} here")
        row = await queries.create.one(connection, {**params, "user_id": owner[0]})
        if row is None:
            raise AlreadyExists("there is a link with this token; draw another")
        return _share(connection, row)

    @reads
    async def list(self, connection: Connection, session_id: str) -> Sequence[SessionShare]:
        """The links to a live session, in the order in which they were made; none if there is no such session."""
        return await self._listed(connection, queries.list, self._session(session_id))

    @reads
    async def find(self, connection: Connection, token: str) -> SessionShare | None:
        """The link with this token, or ``None`` if there is none or its session is deleted."""
        row = await queries.find.one(connection, self._scope.params(token=self._token(token, least=1)))
        return None if row is None else _share(connection, row)

    @writes
    async def use(self, connection: Connection, token: str, *, user: str) -> SessionShare:
        """The link with this token, and from now on it is known that the user has used it.

        Raises:
            NotFound: there is none, or its session is deleted.
        """
        params = self._scope.params(token=self._token(token, least=1), user_id=self._user(user))
        row = await queries.find.one(connection, params)
        if row is None:
            raise NotFound("there is no such link")
        await queries.use.all(connection, {**params, "now_at": self._scope.clock.now_us()})
        return _share(connection, row)

    @reads
    async def used_by(self, connection: Connection, user: str) -> Sequence[SessionShare]:
        """The links that a user has used, to sessions that are live, the one made last first."""
        return await self._listed(connection, queries.used_by, self._scope.params(user_id=self._user(user)))

    @writes
    async def delete(self, connection: Connection, session_id: str, *, token: str) -> bool:
        """Remove a link to a session; whether there was one."""
        params = self._session(session_id) | {"token": self._token(token, least=1)}
        await queries.delete_uses.all(connection, params)
        return await queries.delete.one(connection, params) is not None

    async def _listed(self, connection: Connection, query: Any, params: dict[str, Any]) -> Sequence[SessionShare]:
        most = self._scope.limits.list_rows
        rows = await query.all(connection, {**params, "limit": most + 1})
        if len(rows) > most:
            raise LimitExceeded(f"there are more than list_rows = {most:,} links")
        return mapper(SessionShare, connection.dialect)(rows)

    def _session(self, session_id: str) -> dict[str, Any]:
        return self._scope.params(session_id=parse_id(session_id, "session id"))

    def _user(self, user: str) -> str:
        return scopes.name(user, "user", self._scope.limits)

    def _token(self, token: str, *, least: int = TOKEN_CHARS_LEAST) -> str:
        stored = scopes.name(token, "token", self._scope.limits)
        if len(stored) < least:
            raise InvalidInput(f"a token has at least {least} characters, drawn at random")
        return stored


class SessionShares(Blocking[AsyncSessionShares]):
    """The links to one tenant's sessions."""

    create = blocking(AsyncSessionShares.create)
    list = blocking(AsyncSessionShares.list)
    find = blocking(AsyncSessionShares.find)
    use = blocking(AsyncSessionShares.use)
    used_by = blocking(AsyncSessionShares.used_by)
    delete = blocking(AsyncSessionShares.delete)


def _share(connection: Connection, row: Row) -> SessionShare:
    return mapper(SessionShare, connection.dialect)([row])[0]
