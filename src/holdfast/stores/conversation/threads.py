"""What belongs to a session by its key alone, because whoever stores it knows of no session.

The A2A tasks whose context is a session's key belong to it. So do graph checkpoints, flows and memories of crews whose thread is
``thread_of`` the key; threads of other names are their owners' business. They need no session, and may come before it. When the
user's session of that key is deleted they are hidden under its id, so that the key starts afresh; they come back when it
is restored, and go for good when it is purged.
"""

from __future__ import annotations

from typing import Any

from ...core.queries import Queries
from ...core.scope import Scope
from ...engines.protocol import Connection
from ..execution.checkpoints import piece_log
from ..execution.checkpoints.reading import queries as checkpoint_queries

PREFIX = "session:"
_HIDDEN = "deleted:"

queries = Queries(__package__, "threads.sql")


def thread_of(key: str) -> str:
    """The thread that belongs to the session with this key, and is deleted, restored and purged with it."""
    return PREFIX + key


async def hide(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Hide what belongs to a session: its ``id``, ``identifier`` and ``user_id`` as they are stored."""
    params = _names(scope, session)
    await queries.run_all("hide_", connection, {**params, "now_at": scope.clock.now_us()})


async def show(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Bring back what was hidden with a session.

    Raises:
        AlreadyExists: something else has its name by now.
    """
    await queries.run_all("show_", connection, _names(scope, session))


async def purge(connection: Connection, scope: Scope, session: dict[str, Any], *, live: bool) -> None:
    """Remove what belongs to a session, live or deleted, for good."""
    if live:
        await hide(connection, scope, session)
    params = _names(scope, session)
    await queries.run_all("purge_", connection, params)
    at = {**params, "thread_id": params["hidden"]}
    log = await piece_log.lock(connection, at)
    if log is not None:
        whole = {**at, "thread": log.thread}
        await checkpoint_queries.delete_all.all(connection, whole)
        await checkpoint_queries.delete_all_writes.all(connection, whole)
        await piece_log.delete_thread(connection, scope, log)


def _names(scope: Scope, session: dict[str, Any]) -> dict[str, Any]:
    key = session["identifier"]
    return scope.params(
        **session,
        deleted_with=session["id"],
        thread_id=thread_of(key),
        hidden=f"{_HIDDEN}{session['id']}:{key}",
    )
