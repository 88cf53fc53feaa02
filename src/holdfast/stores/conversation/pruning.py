"""Pruning: removing idle sessions, old originals of compactions, and messages deleted long ago.

The work is done in batches, each in its own transaction, so that other writers do not wait long. The remaining work follows
from the stored rows: after an interruption, another call continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from ...clock import MINUTE_US
from ...core.checks import whole_number
from ...core.queries import Queries, Query
from ...core.scope import Scope
from ...engines.protocol import Connection, Engine
from ...errors import Conflict, InvalidInput
from . import linked_threads

BATCH_SESSIONS = 100
"""The most sessions that one transaction removes."""
BATCH_ROWS = 10_000
"""The number of messages or originals after which a transaction ends; a session is always removed as a whole."""
_FIRST = "00000000-0000-0000-0000-000000000000"

queries = Queries(__package__, "pruning.sql")

Purge = Callable[[Connection, str], Awaitable[None]]
"""Removes one session and all of its rows, in the current transaction."""


class PrunedSessions(Struct, frozen=True):
    """The number of rows that were removed."""

    sessions: int = 0
    originals: int = 0
    """Originals in archives; their compactions can no longer be rolled back."""
    deleted_messages: int = 0
    """Messages that can no longer be restored."""
    kept: int = 0
    """Idle sessions that were kept, because of a hold or an unfinished run."""
    more: bool = False
    """Whether the limit was reached before everything was removed."""


class _Batch(Struct, frozen=True):
    """The result of one transaction, and where the next one starts; ``None`` at the end."""

    ids: list[str]
    kept: int
    next: tuple[int, str] | None


async def prune(
    engine: Engine,
    scope: Scope,
    idle: timedelta | None,
    archives: timedelta | None,
    limit: int | None,
    *,
    purge: Purge,
    drop: Callable[[str], None],
) -> PrunedSessions:
    """Remove idle sessions, and old originals and deleted messages; ``drop`` is called with the id of each removed session.

    Raises:
        InvalidInput: no age was given, an age is not a time from 0 on, or the limit is not a number from 1 on.
    """
    session_age, archive_age = _age_us(idle, "idle"), _age_us(archives, "archives")
    if session_age is None and archive_age is None:
        raise InvalidInput(
            "give an age: idle= for sessions, archives= for originals and deleted messages", field="idle"
        )
    if limit is not None:
        whole_number(limit, "limit", minimum=1)
    sessions, archived = PrunedSessions(), PrunedSessions()
    if session_age is not None:
        sessions = await _prune_sessions(engine, scope, session_age, limit, purge, drop)
    if archive_age is not None:
        archived = await _prune_archives(engine, scope, archive_age, limit)
    return PrunedSessions(
        sessions.sessions,
        archived.originals,
        archived.deleted_messages,
        sessions.kept + archived.kept,
        sessions.more or archived.more,
    )


def _age_us(value: timedelta | None, what: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise InvalidInput(f"{what} must be a timedelta from 0 on, not {value!r}", field=what)
    return value // timedelta(microseconds=1)


async def _prune_sessions(
    engine: Engine, scope: Scope, age: int, limit: int | None, purge: Purge, drop: Callable[[str], None]
) -> PrunedSessions:
    """Remove sessions that have been idle for longer than an age, live sessions first and then deleted ones."""
    cutoff = max(0, scope.clock.now_us() - age)
    count = kept = 0
    for query, index in ((queries.idle_live, "sessions_by_recency"), (queries.idle_deleted, "sessions_deleted")):
        after: tuple[int, str] | None = (0, _FIRST)
        while after is not None:
            room = BATCH_SESSIONS if limit is None else min(BATCH_SESSIONS, limit - count)
            if room <= 0:
                return PrunedSessions(sessions=count, kept=kept, more=True)
            params = scope.params(
                cutoff_at=cutoff,
                cutoff_minute=cutoff // MINUTE_US,
                after_minute=after[0],
                after_id=after[1],
                limit=room,
            )
            batch = await engine.write(
                partial(_purge_batch, scope=scope, query=query, index=index, params=params, purge=purge)
            )
            for id in batch.ids:
                drop(id)
            count, kept, after = count + len(batch.ids), kept + batch.kept, batch.next
    return PrunedSessions(sessions=count, kept=kept)


async def _prune_archives(engine: Engine, scope: Scope, age: int, limit: int | None) -> PrunedSessions:
    """Remove originals and deleted messages that are older than an age; ``limit`` bounds their number."""
    cutoff, after = max(0, scope.clock.now_us() - age), _FIRST
    originals = deleted = kept = 0
    while True:
        params = scope.params(cutoff_at=cutoff, after_id=after, limit=BATCH_SESSIONS)
        sessions = await engine.read(partial(queries.archives.all, params=params))
        for (id,) in sessions:
            while True:
                room = BATCH_ROWS if limit is None else min(BATCH_ROWS, limit - originals - deleted)
                if room <= 0:
                    return PrunedSessions(originals=originals, deleted_messages=deleted, kept=kept, more=True)
                batch_params = scope.params(cutoff_at=cutoff, id=id, limit=room)
                removed = await engine.write(partial(_remove_batch, scope=scope, params=batch_params))
                if removed is None:
                    kept += 1
                    break
                originals, deleted = originals + removed[0], deleted + removed[1]
                if sum(removed) < room:
                    break
        if len(sessions) < BATCH_SESSIONS:
            return PrunedSessions(originals=originals, deleted_messages=deleted, kept=kept)
        after = sessions[-1][0]


async def _purge_batch(
    connection: Connection, *, scope: Scope, query: Query, index: str, params: dict[str, Any], purge: Purge
) -> _Batch:
    rows = await query.all(connection, params, index=index)
    purged: list[str] = []
    messages = kept = 0
    for id, minute, count in rows:
        try:
            await linked_threads.check_removable(connection, scope, id)
            is_idle = await queries.lock_idle.one(connection, {**params, "id": id}) is not None
            if not is_idle or await linked_threads.is_active(connection, scope, id):
                raise Conflict("the session is in use")
        except Conflict:
            kept += 1
            continue
        await purge(connection, id)
        purged.append(id)
        messages += count
        if messages >= BATCH_ROWS:
            return _Batch(purged, kept, (minute, id))
    last = (rows[-1][1], rows[-1][0]) if len(rows) == params["limit"] else None
    return _Batch(purged, kept, last)


async def _remove_batch(connection: Connection, *, scope: Scope, params: dict[str, Any]) -> tuple[int, int] | None:
    """Return how many originals and deleted messages of a session were removed, or ``None`` if a hold protects it."""
    try:
        await linked_threads.check_removable(connection, scope, params["id"])
    except Conflict:
        return None
    originals = await queries.remove_originals.all(connection, params)
    room = params["limit"] - len(originals)
    deleted = await queries.remove_deleted.all(connection, {**params, "limit": room}) if room else []
    return len(originals), len(deleted)
