"""Removing what is old: sessions that nobody uses, the originals that compactions keep, messages that were deleted.

The work is done in batches, each a transaction of its own, so that nobody waits long for the writer. What is left to do follows
from what is there: after an interruption, another call goes on.
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
"""Sessions that one transaction removes at most."""
BATCH_ROWS = 10_000
"""Messages, or originals, after which a transaction ends; a session is removed as a whole, however many it has."""
_FIRST = "00000000-0000-0000-0000-000000000000"

queries = Queries(__package__, "pruning.sql")

Purge = Callable[[Connection, str], Awaitable[None]]
"""Removes one session with everything below it, in the transaction that is open."""


class PrunedSessions(Struct, frozen=True):
    """What was removed."""

    sessions: int = 0
    originals: int = 0
    """Of archives; their compactions can no longer be rolled back."""
    deleted_messages: int = 0
    """That can no longer be restored."""
    kept: int = 0
    """Sessions that are old and stay: they are held, or a run of theirs goes on."""
    more: bool = False
    """Whether the limit was reached before everything was done."""


class _Batch(Struct, frozen=True):
    """What one transaction did, and where the next goes on; ``None`` at the end."""

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
    """Remove sessions that are idle, and what was archived or deleted; ``drop`` is told which sessions are gone.

    Raises:
        InvalidInput: neither age was given, one is not a time from 0 on, or the limit is not a number from 1 on.
    """
    of_sessions, of_archives = _age_us(idle, "idle"), _age_us(archives, "archives")
    if of_sessions is None and of_archives is None:
        raise InvalidInput("say what is old enough: idle= for sessions, archives= for originals and deleted messages")
    if limit is not None:
        whole_number(limit, "limit", least=1)
    gone, put_away = PrunedSessions(), PrunedSessions()
    if of_sessions is not None:
        gone = await _prune_sessions(engine, scope, of_sessions, limit, purge, drop)
    if of_archives is not None:
        put_away = await _prune_archives(engine, scope, of_archives, limit)
    return PrunedSessions(
        gone.sessions,
        put_away.originals,
        put_away.deleted_messages,
        gone.kept + put_away.kept,
        gone.more or put_away.more,
    )


def _age_us(value: timedelta | None, what: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise InvalidInput(f"{what} must be a timedelta from 0 on, not {value!r}")
    return value // timedelta(microseconds=1)


async def _prune_sessions(
    engine: Engine, scope: Scope, age: int, limit: int | None, purge: Purge, drop: Callable[[str], None]
) -> PrunedSessions:
    """Remove sessions that were not used for longer than an age, live ones first and then deleted ones."""
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
                partial(_sessions, scope=scope, query=query, index=index, params=params, purge=purge)
            )
            for id in batch.ids:
                drop(id)
            count, kept, after = count + len(batch.ids), kept + batch.kept, batch.next
    return PrunedSessions(sessions=count, kept=kept)


async def _prune_archives(engine: Engine, scope: Scope, age: int, limit: int | None) -> PrunedSessions:
    """Remove originals, and deleted messages, that are older than an age; ``limit`` is a number of them."""
    cutoff, after = max(0, scope.clock.now_us() - age), _FIRST
    originals = deleted = kept = 0
    while True:
        params = scope.params(cutoff_at=cutoff, after_id=after, limit=BATCH_SESSIONS)
        found = await engine.read(partial(queries.archives.all, params=params))
        for (id,) in found:
            while True:
                room = BATCH_ROWS if limit is None else min(BATCH_ROWS, limit - originals - deleted)
                if room <= 0:
                    return PrunedSessions(originals=originals, deleted_messages=deleted, kept=kept, more=True)
                at = scope.params(cutoff_at=cutoff, id=id, limit=room)
                removed = await engine.write(partial(_archives, scope=scope, params=at))
                if removed is None:
                    kept += 1
                    break
                originals, deleted = originals + removed[0], deleted + removed[1]
                if sum(removed) < room:
                    break
        if len(found) < BATCH_SESSIONS:
            return PrunedSessions(originals=originals, deleted_messages=deleted, kept=kept)
        after = found[-1][0]


async def _sessions(
    connection: Connection, *, scope: Scope, query: Query, index: str, params: dict[str, Any], purge: Purge
) -> _Batch:
    rows = await query.all(connection, params, index=index)
    gone: list[str] = []
    messages = kept = 0
    for id, minute, count in rows:
        try:
            await linked_threads.check_removable(connection, scope, id)
            is_idle = await queries.lock_idle.one(connection, {**params, "id": id}) is not None
            if not is_idle or await linked_threads.is_active(connection, scope, id):
                raise Conflict("it is in use")
        except Conflict:
            kept += 1
            continue
        await purge(connection, id)
        gone.append(id)
        messages += count
        if messages >= BATCH_ROWS:
            return _Batch(gone, kept, (minute, id))
    last = (rows[-1][1], rows[-1][0]) if len(rows) == params["limit"] else None
    return _Batch(gone, kept, last)


async def _archives(connection: Connection, *, scope: Scope, params: dict[str, Any]) -> tuple[int, int] | None:
    """How many originals and deleted messages of a session were removed, or ``None`` if it is held."""
    try:
        await linked_threads.check_removable(connection, scope, params["id"])
    except Conflict:
        return None
    originals = await queries.remove_originals.all(connection, params)
    room = params["limit"] - len(originals)
    deleted = await queries.remove_deleted.all(connection, {**params, "limit": room}) if room else []
    return len(originals), len(deleted)
