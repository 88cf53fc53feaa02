"""Sessions: conversations, found by id or by key.

A key is a name of the caller's choosing. At most one live session of a user has a key to itself; any number made with
``unique=False`` share it. Deleting hides a session and everything below it, frees its key, and can be undone by ``restore``;
``purge`` removes it for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Struct

from ...clock import to_us
from ...core import actor_context as actings
from ...core import scope as scopes
from ...core import text
from ...core.actor_context import Acting
from ...core.blocking import Blocking, blocking, blocking_as
from ...core.filters import Filter
from ...core.paging import Page, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import Column, mapper
from ...core.store import TenantStore, in_steps, reads, writes, writes_acting, writes_heavily
from ...engines.protocol import Connection, Engine, Row
from ...errors import AlreadyExists, Conflict, InvalidInput, Unavailable
from ...ids import Id
from ...ids import parse as parse_id
from . import linked_threads, session_lists
from .buffer.buffered import AsyncBufferedSession, async_session_of, blocking_session_of
from .buffer.message_buffer import BufferCache
from .keys import SessionKey
from .pruning import PrunedSessions, prune
from .search.index import remove_deleted
from .session_names import missing, new_session, of_user, same, stored_key, stored_names


class Session(Struct, frozen=True):
    """A conversation."""

    id: Id
    key: Annotated[str, Column("identifier")]
    user: Annotated[str, Column("user_id")]
    agent: Annotated[str, Column("agent_id")]
    metadata: dict[str, Any]
    message_count: int
    token_count: int
    compaction_count: int
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    is_unique: Annotated[bool, Column("identifier_rank = '~'")] = True
    """Whether it has its key to itself."""


UPSERT_TRIES = 3
"""How often an upsert looks for its session and tries to make it."""
queries = Queries(__package__, "sessions.sql", Session)


class AsyncSessions(TenantStore):
    """The sessions of one tenant."""

    def __init__(self, engine: Engine, scope: scopes.Scope) -> None:
        super().__init__(engine, scope)
        self._buffers = BufferCache(engine, scope)

    @writes_acting
    async def create(
        self,
        connection: Connection,
        acting: Acting,
        *,
        key: str | SessionKey | None = None,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        unique: bool = True,
    ) -> Session:
        """A new session. Without a key, its id is its key; without a user or agent, those who are acting.

        With ``unique=False`` the session shares its key with any number of others of the same user. With an ``id`` of the
        caller's the call can be repeated: the same id with the same key, user, agent and ``unique`` returns the session that
        is there.

        Raises:
            AlreadyExists: the user has a live session under this key.
            Conflict: there is another session with this id.
        """
        user = acting.user if user is None else user
        agent = acting.agent if agent is None else agent
        params = new_session(self._scope, key=key, user=user, agent=agent, metadata=metadata, id=id)
        if not isinstance(unique, bool):
            raise InvalidInput(f"unique must be true or false, not {unique!r}")
        params["identifier_rank"] = linked_threads.OWN_KEY if unique else params["id"]
        await register_tenant(connection, params)
        row = await queries.create.one(connection, params)
        if row is not None:
            return _session(connection, row)
        if id is not None and (there := await queries.get.one(connection, params)) is not None:
            return same(_session(connection, there), params)
        taken = f"the key {text.unescape(params['identifier'])!r}{of_user(user)}"
        raise AlreadyExists(
            f"there is a live session with {taken}; find it, upsert it, or share the key with unique=False"
        )

    @writes_acting
    async def upsert(
        self,
        connection: Connection,
        acting: Acting,
        key: str | SessionKey,
        *,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """The user's live session that has this key to itself, made if it is not there. What is given replaces what was there;
        its messages stay.

        Without a user, it is the session of the one who is acting. The agent who is acting is filled in only where the
        session is made: one that is there keeps its agent unless ``agent`` says otherwise.

        Raises:
            InvalidInput: the key is none.
        """
        stored_key(key, self._scope.limits)
        user = acting.user if user is None else user
        made_for = acting.agent if agent is None else agent
        new = new_session(self._scope, key=key, user=user, agent=made_for, metadata=metadata)
        new["identifier_rank"] = linked_threads.OWN_KEY
        changes = {**new, "agent_id": None if agent is None else new["agent_id"]}
        changes["metadata"] = None if metadata is None else new["metadata"]
        # Others may make the session, or delete it, between the two statements.
        for _ in range(UPSERT_TRIES):
            row = await queries.update_by_key.one(connection, changes)
            if row is None:
                await register_tenant(connection, new)
                row = await queries.create.one(connection, new)
            if row is not None:
                return _session(connection, row)
        raise Unavailable(f"the session with the key {str(key)!r} is being made and deleted by others; retry")

    @reads
    async def get(self, connection: Connection, session_id: Id, *, deleted: bool = False) -> Session:
        """One session; a deleted one only when ``deleted`` is asked for.

        Raises:
            NotFound: there is none.
        """
        session = await find_session(connection, self._scope, session_id)
        if session is None or (session.deleted_at is not None and not deleted):
            raise missing(session_id)
        return session

    @reads
    async def find(self, connection: Connection, key: str | SessionKey, *, user: str | None = None) -> Session | None:
        """The live session under this key, or ``None``: the one that has the key to itself, else of those that share it the one
        with the highest id, which is the newest unless callers choose their ids; ``list`` with a filter on the key has all.
        Without a user, the key must be enough to tell whose.

        Raises:
            Conflict: several users have a session under this key, and no user was given.
        """
        limits = self._scope.limits
        params = self._scope.params(identifier=stored_key(key, limits))
        if user is not None:
            params["user_id"] = scopes.name(user, "user", limits)
            rows = await queries.find.all(connection, params, index="sessions_by_identifier")
            return _session(connection, rows[0]) if rows else None
        rows = await queries.find_of_anybody.all(connection, params, index="sessions_by_identifier")
        if rows and rows[0][-1]:
            raise Conflict(f"several users have a session with the key {str(key)!r}: say whose with user=")
        return _session(connection, rows[0][:-1]) if rows else None

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
        deleted: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Session]:
        """Sessions, the one used last first. With ``limit``, a page; its ``next`` is the cursor of the one after.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = session_lists.matching(user, agent, metadata, where, params, connection.dialect, limits)
        clause += session_lists.after(cursor, params, connection.dialect)
        if deleted:
            rows = await queries.list_deleted.all(connection, params, clause)
        else:
            index = "sessions_by_user" if user else "sessions_by_agent" if agent else "sessions_by_recency"
            rows = await queries.list.all(connection, params, clause, index)
        found = mapper(Session, connection.dialect)(rows)
        return page(
            found, limit, limits, "sessions", lambda last: encode_cursor("sessions", to_us(last.updated_at), last.id)
        )

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
    ) -> int:
        """How many live sessions match."""
        params = self._scope.params()
        limits, dialect = self._scope.limits, connection.dialect
        clause = session_lists.matching(user, agent, metadata, where, params, dialect, limits)
        row = await queries.count.one(connection, params, clause)
        return int(row[0]) if row else 0

    @writes
    async def update(
        self,
        connection: Connection,
        session_id: Id,
        *,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expected: Session | None = None,
    ) -> Session:
        """Change what is given; ``metadata`` replaces the whole object. With ``expected``, only if it has not changed since.

        Raises:
            NotFound: there is no such live session.
            Conflict: it is no longer as ``expected``.
        """
        limits = self._scope.limits
        params = self._scope.params_now(
            id=parse_id(session_id, "session id"),
            agent_id=None if agent is None else scopes.name(agent, "agent", limits),
            metadata=None if metadata is None else scopes.metadata(metadata, limits),
        )
        await _check_expected(connection, params, expected)
        row = await queries.update.one(connection, params)
        if row is None:
            raise missing(session_id)
        return _session(connection, row)

    async def delete(self, session_id: Id, *, expected: Session | None = None) -> None:
        """Hide a session and everything below it. Its key is free at once; ``restore`` undoes it. With ``expected``, only if it
        has not changed since. A buffer of it, with all that was not saved, is dropped.

        Raises:
            NotFound: there is no such live session.
            Conflict: it is no longer as ``expected``.
        """
        await self._delete(session_id, expected)
        self._buffers.drop(parse_id(session_id, "session id"))

    @writes
    async def restore(self, connection: Connection, session_id: Id) -> Session:
        """Bring a deleted session back, as it was. A live one is returned unchanged.

        Raises:
            NotFound: there is no such session.
            Conflict: its key has been taken by another session, or something that was hidden with it is there again.
        """
        there = await find_session(connection, self._scope, session_id)
        if there is None:
            raise missing(session_id)
        if there.deleted_at is None:
            return there
        async with connection.savepoint():
            try:
                row = await queries.restore.one(connection, self._scope.params(id=there.id))
            except AlreadyExists:
                key = f"{there.key!r}{of_user(there.user)}"
                raise Conflict(f"the key {key} belongs to another session by now") from None
            await linked_threads.show(connection, self._scope, stored_names(there))
        if row is None:
            raise Conflict(f"session {session_id} was changed meanwhile; try again")
        return _session(connection, row)

    async def purge(self, session_id: Id) -> None:
        """Remove a session, deleted or not, with everything below it, for good. A buffer of it is dropped.

        Raises:
            NotFound: there is no such session.
            Conflict: it is held: see ``retention``.
        """
        await self._purge(session_id)
        self._buffers.drop(parse_id(session_id, "session id"))

    @in_steps
    async def prune(
        self, *, idle: timedelta | None = None, archives: timedelta | None = None, limit: int | None = None
    ) -> PrunedSessions:
        """Remove, for good, sessions that were not used for longer than ``idle``, deleted or not, with everything below them; and
        of other sessions the originals and the deleted messages that were put away longer ago than ``archives``.

        What is held stays, and so does a session with a run that goes on. Every batch is a commit of its own: after an
        interruption another call goes on. At most ``limit`` sessions, and as many originals and deleted messages, go.

        Raises:
            InvalidInput: neither age was given, one is not a time from 0 on, or the limit is not a number from 1 on.
        """
        return await prune(
            self._engine, self._scope, idle, archives, limit, purge=self._purge_there, drop=self._buffers.drop
        )

    async def buffered(
        self, key: str | SessionKey, *, user: str | None = None, agent: str | None = None
    ) -> AsyncBufferedSession:
        """The user's live session under this key, in memory: what is added to it is written by its ``save`` and **lost with the
        process until then**. If there is no such session, ``save`` makes it.

        As long as this handle keeps it (see ``Limits.buffered_sessions``), the same key gives the same live buffer, and nothing
        is read again. An ``agent`` replaces the session's. Without a user, it is the session of the one who is acting; the agent
        who is acting is filled in only where the session is new.

        Raises:
            LimitExceeded: all buffers that the handle keeps have unsaved changes, or the session has more than
                ``buffered_messages``.
        """
        limits, now = self._scope.limits, actings.now(self._scope)
        user = now.user if user is None else user
        stored_user = "" if user is None else scopes.name(user, "user", limits)
        named = None if agent is None else text.unescape(scopes.name(agent, "agent", limits))
        return async_session_of(await self._buffers.open(stored_key(key, limits), stored_user, named, now.agent))

    @writes
    async def _delete(self, connection: Connection, session_id: str, expected: Session | None) -> None:
        params = self._scope.params_now(id=parse_id(session_id, "session id"))
        await _check_expected(connection, params, expected)
        row = await queries.delete.one(connection, params)
        if row is None:
            raise missing(session_id)
        names = {"id": params["id"], "identifier": row[0], "user_id": row[1], "identifier_rank": row[2]}
        await linked_threads.hide(connection, self._scope, names)

    async def _purge_there(self, connection: Connection, session_id: str) -> None:
        params = self._scope.params(id=parse_id(session_id, "session id"))
        there = await find_session(connection, self._scope, session_id)
        if there is None:
            raise missing(session_id)
        await linked_threads.check_removable(connection, self._scope, there.id)
        await linked_threads.purge(connection, self._scope, stored_names(there), live=there.deleted_at is None)
        await queries.run_all("purge_", connection, params)
        await remove_deleted(connection, params)
        if await queries.purge.one(connection, params) is None:
            raise missing(session_id)

    _purge = writes_heavily(_purge_there)


class Sessions(Blocking[AsyncSessions]):
    """The sessions of one tenant."""

    create = blocking(AsyncSessions.create)
    upsert = blocking(AsyncSessions.upsert)
    get = blocking(AsyncSessions.get)
    find = blocking(AsyncSessions.find)
    list = blocking(AsyncSessions.list)
    count = blocking(AsyncSessions.count)
    update = blocking(AsyncSessions.update)
    delete = blocking(AsyncSessions.delete)
    restore = blocking(AsyncSessions.restore)
    purge = blocking(AsyncSessions.purge)
    prune = blocking(AsyncSessions.prune)
    buffered = blocking_as(AsyncSessions.buffered, blocking_session_of)


async def find_session(connection: Connection, scope: scopes.Scope, session_id: str) -> Session | None:
    """One session by id, deleted or not; for other stores too."""
    row = await queries.get.one(connection, scope.params(id=parse_id(session_id, "session id")))
    return None if row is None else _session(connection, row)


def _session(connection: Connection, row: Row) -> Session:
    return mapper(Session, connection.dialect)([row])[0]


async def _check_expected(connection: Connection, params: Mapping[str, Any], expected: Session | None) -> None:
    """Hold a session until the transaction ends, if it is still as it was read."""
    there = None if expected is None else await queries.lock.one(connection, params)
    # Everything is compared, not only the time: two changes can happen within one tick of the clock.
    if there is not None and _session(connection, there) != expected:
        raise Conflict(f"session {params['id']} has been changed since; read it again")
