"""Sessions: conversations, found by id or by key.

A key is a name chosen by the caller. At most one live session of a user has a key to itself; any number of sessions created with
``unique=False`` share a key. Deleting hides a session and all of its rows, frees its key, and can be undone with ``restore``;
``purge`` removes it permanently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Struct

from ...clock import to_us
from ...core import actor_context, text
from ...core import scope as scopes
from ...core.actor_context import ActorContext
from ...core.blocking import Blocking, blocking, blocking_as
from ...core.filters import Filter
from ...core.paging import Page, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import Column, mapper
from ...core.store import TenantStore, in_steps, reads, writes, writes_in_thread, writes_with_actor
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
from .session_names import check_repeated, missing, new_session, of_user, stored_key, stored_names


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
    """Whether it does not share its key with other sessions."""


UPSERT_TRIES = 3
"""How often an upsert tries to update its session and else to create it."""
queries = Queries(__package__, "sessions.sql", Session)


class AsyncSessions(TenantStore):
    """The sessions of one tenant."""

    def __init__(self, engine: Engine, scope: scopes.Scope) -> None:
        super().__init__(engine, scope)
        self._buffers = BufferCache(engine, scope)

    @writes_with_actor
    async def create(
        self,
        connection: Connection,
        acting: ActorContext,
        *,
        key: str | SessionKey | None = None,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        unique: bool = True,
    ) -> Session:
        """Create a session. Without a key, its id is its key; without a user or agent, the acting ones are used.

        With ``unique=False`` the session shares its key with any number of others of the same user. With an ``id``
        the call can be repeated: the same id with the same key, user, agent and ``unique`` returns the stored
        session.

        Raises:
            AlreadyExists: the user has a live session with this key.
            Conflict: another session has this id.
        """
        user = acting.user if user is None else user
        agent = acting.agent if agent is None else agent
        params = new_session(self._scope, key=key, user=user, agent=agent, metadata=metadata, id=id)
        if not isinstance(unique, bool):
            raise InvalidInput(f"unique must be true or false, not {unique!r}", field="unique")
        params["identifier_rank"] = linked_threads.OWN_KEY if unique else params["id"]
        await register_tenant(connection, params)
        row = await queries.create.one(connection, params)
        if row is not None:
            return _session(connection, row)
        if id is not None and (existing := await queries.get.one(connection, params)) is not None:
            return check_repeated(_session(connection, existing), params)
        stored = text.unescape(params["identifier"])
        raise AlreadyExists(
            f"a live session with the key {stored!r}{of_user(user)} exists;"
            " find it, upsert it, or share the key with unique=False",
            noun="session",
            key=stored,
        )

    @writes_with_actor
    async def upsert(
        self,
        connection: Connection,
        acting: ActorContext,
        key: str | SessionKey,
        *,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """Update the user's live session that has this key to itself, or create it. Given arguments replace the stored values;
        its messages stay.

        Without a user, it is the session of the acting user. The acting agent is only used when the
        session is created: an existing session keeps its agent unless ``agent`` is given.

        Raises:
            InvalidInput: the key is not valid.
        """
        stored_key(key, self._scope.limits)
        user = acting.user if user is None else user
        new_agent = acting.agent if agent is None else agent
        new = new_session(self._scope, key=key, user=user, agent=new_agent, metadata=metadata)
        new["identifier_rank"] = linked_threads.OWN_KEY
        changes = {**new, "agent_id": None if agent is None else new["agent_id"]}
        changes["metadata"] = None if metadata is None else new["metadata"]
        # Other callers may create or delete the session between the two statements.
        for _ in range(UPSERT_TRIES):
            row = await queries.update_by_key.one(connection, changes)
            if row is None:
                await register_tenant(connection, new)
                row = await queries.create.one(connection, new)
            if row is not None:
                return _session(connection, row)
        raise Unavailable(f"other callers keep creating and deleting the session with the key {str(key)!r}; retry")

    @reads
    async def get(self, connection: Connection, session_id: Id, *, deleted: bool = False) -> Session:
        """Return one session; a deleted one only with ``deleted=True``.

        Raises:
            NotFound: it does not exist.
        """
        session = await find_session(connection, self._scope, session_id)
        if session is None or (session.deleted_at is not None and not deleted):
            raise missing(session_id)
        return session

    @reads
    async def find(self, connection: Connection, key: str | SessionKey, *, user: str | None = None) -> Session | None:
        """Return the live session with this key, or ``None``: the one that has the key to itself or, of those that share it,
        the one with the highest id, which is the newest unless callers choose ids; ``list`` with a filter on the key returns
        all. Without a user, the key must belong to one user only.

        Raises:
            Conflict: several users have a session with this key, and no user was given.
        """
        limits = self._scope.limits
        params = self._scope.params(identifier=stored_key(key, limits))
        if user is not None:
            params["user_id"] = scopes.name(user, "user", limits)
            rows = await queries.find.all(connection, params, index="sessions_by_identifier")
            return _session(connection, rows[0]) if rows else None
        rows = await queries.find_of_anybody.all(connection, params, index="sessions_by_identifier")
        if rows and rows[0][-1]:
            raise Conflict(f"several users have a session with the key {str(key)!r}: pass user=", reason="ambiguous")
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
        """List sessions, the most recently used first. With ``limit``, a page; its ``next`` is the cursor of the next page.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = session_lists.compile_filters(user, agent, metadata, where, params, connection.dialect, limits)
        clause += session_lists.after_clause(cursor, params, connection.dialect)
        if deleted:
            rows = await queries.list_deleted.all(connection, params, clause)
        else:
            index = "sessions_by_user" if user else "sessions_by_agent" if agent else "sessions_by_recency"
            rows = await queries.list.all(connection, params, clause, index)
        sessions = mapper(Session, connection.dialect)(rows)
        return page(
            sessions, limit, limits, "sessions", lambda last: encode_cursor("sessions", to_us(last.updated_at), last.id)
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
        """Return the number of live sessions that match."""
        params = self._scope.params()
        limits, dialect = self._scope.limits, connection.dialect
        clause = session_lists.compile_filters(user, agent, metadata, where, params, dialect, limits)
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
        """Change the given fields; ``metadata`` replaces the whole object. With ``expected``, only if the session is unchanged.

        Raises:
            NotFound: no live session has this id.
            Conflict: the session differs from ``expected``.
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
        """Hide a session and all of its rows. Its key is free at once; ``restore`` undoes it. With ``expected``, only if the
        session is unchanged. Its buffer is dropped, including unsaved changes.

        Raises:
            NotFound: no live session has this id.
            Conflict: the session differs from ``expected``.
        """
        await self._delete(session_id, expected)
        self._buffers.drop(parse_id(session_id, "session id"))

    @writes
    async def restore(self, connection: Connection, session_id: Id) -> Session:
        """Restore a deleted session unchanged. A live session is returned as it is.

        Raises:
            NotFound: the session does not exist.
            Conflict: another session has its key, or rows hidden with it were stored again in the meantime.
        """
        session = await find_session(connection, self._scope, session_id)
        if session is None:
            raise missing(session_id)
        if session.deleted_at is None:
            return session
        async with connection.savepoint():
            try:
                row = await queries.restore.one(connection, self._scope.params(id=session.id))
            except AlreadyExists:
                key = f"{session.key!r}{of_user(session.user)}"
                raise Conflict(f"another session has taken the key {key}", reason="key_taken") from None
            await linked_threads.show(connection, self._scope, stored_names(session))
        if row is None:
            raise Conflict(f"session {session_id} was changed by another caller; try again", reason="changed")
        return _session(connection, row)

    async def purge(self, session_id: Id) -> None:
        """Remove a session, deleted or not, and all of its rows permanently. Its buffer is dropped.

        Raises:
            NotFound: the session does not exist.
            Conflict: a hold protects it: see ``retention``.
        """
        await self._purge(session_id)
        self._buffers.drop(parse_id(session_id, "session id"))

    @in_steps
    async def prune(
        self, *, idle: timedelta | None = None, archives: timedelta | None = None, limit: int | None = None
    ) -> PrunedSessions:
        """Permanently remove sessions, deleted or not, that were not used for longer than ``idle``, with all of their rows; and
        of other sessions the originals and the deleted messages that were archived longer ago than ``archives``.

        Sessions with a hold or an unfinished run are kept. Every batch is a transaction of its own: after an
        interruption another call continues. ``limit`` bounds the number of sessions, and of originals and deleted messages.

        Raises:
            InvalidInput: no age was given, an age is not a time from 0 on, or the limit is not a number from 1 on.
        """
        return await prune(
            self._engine, self._scope, idle, archives, limit, purge=self._purge_session, drop=self._buffers.drop
        )

    async def buffered(
        self, key: str | SessionKey, *, user: str | None = None, agent: str | None = None
    ) -> AsyncBufferedSession:
        """Open the user's live session with this key in memory: messages added to it are written by its ``save`` and **lost
        with the process until then**. If the session does not exist, ``save`` creates it.

        As long as this handle keeps the buffer (see ``Limits.buffered_sessions``), the same key returns the same buffer, without
        reading again. An ``agent`` replaces the session's. Without a user, it is the session of the acting user; the acting
        agent is only used if the session is new.

        Raises:
            LimitExceeded: all buffers that the handle keeps have unsaved changes, or the session has more than
                ``buffered_messages``.
        """
        limits, acting = self._scope.limits, actor_context.now(self._scope)
        user = acting.user if user is None else user
        stored_user = "" if user is None else scopes.name(user, "user", limits)
        new_agent = None if agent is None else text.unescape(scopes.name(agent, "agent", limits))
        return async_session_of(await self._buffers.open(stored_key(key, limits), stored_user, new_agent, acting.agent))

    @writes
    async def _delete(self, connection: Connection, session_id: str, expected: Session | None) -> None:
        params = self._scope.params_now(id=parse_id(session_id, "session id"))
        await _check_expected(connection, params, expected)
        row = await queries.delete.one(connection, params)
        if row is None:
            raise missing(session_id)
        names = {"id": params["id"], "identifier": row[0], "user_id": row[1], "identifier_rank": row[2]}
        await linked_threads.hide(connection, self._scope, names)

    async def _purge_session(self, connection: Connection, session_id: str) -> None:
        params = self._scope.params(id=parse_id(session_id, "session id"))
        session = await find_session(connection, self._scope, session_id)
        if session is None:
            raise missing(session_id)
        await linked_threads.check_removable(connection, self._scope, session.id)
        await linked_threads.purge(connection, self._scope, stored_names(session), live=session.deleted_at is None)
        await queries.run_all("purge_", connection, params)
        await remove_deleted(connection, params)
        if await queries.purge.one(connection, params) is None:
            raise missing(session_id)

    _purge = writes_in_thread(_purge_session)


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
    """Return a session by id, deleted or not; also used by other stores."""
    row = await queries.get.one(connection, scope.params(id=parse_id(session_id, "session id")))
    return None if row is None else _session(connection, row)


def _session(connection: Connection, row: Row) -> Session:
    return mapper(Session, connection.dialect)([row])[0]


async def _check_expected(connection: Connection, params: Mapping[str, Any], expected: Session | None) -> None:
    """Lock a session until the transaction ends, if it is unchanged since the caller read it."""
    row = None if expected is None else await queries.lock.one(connection, params)
    # Everything is compared, not only the time: two changes can happen within one tick of the clock.
    if row is not None and _session(connection, row) != expected:
        raise Conflict(f"session {params['id']} was changed since it was read; read it again", reason="changed")
