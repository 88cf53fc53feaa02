"""What belongs to a session by its key alone, because whoever stores it knows of no session.

The A2A tasks whose context is a session's key belong to it. So do graph checkpoints, flows and memories of crews whose thread is
``thread_of`` the key; threads of other names are their owners' business. They need no session, and may come before it. When the
user's session of that key is deleted they are hidden under its id, so that the key starts afresh; they come back when it
is restored, and go for good when it is purged.

kagent's LangGraph and CrewAI apps cannot name a user: they store everything as ``SERVICE_USER``. What that user has under the
key goes with the session as well, unless another live session has the same key and may be the one it was stored for. A session
that shares its key owns nothing by name.
"""

from __future__ import annotations

from typing import Any

from ...core import text
from ...core.queries import Queries
from ...core.scope import Scope
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict
from ..execution.checkpoints import piece_log
from ..execution.checkpoints.reading import queries as checkpoint_queries

PREFIX = "session:"
_HIDDEN = "deleted:"
OWN_KEY = "~"
"""The ``identifier_rank`` of a session that has its key to itself."""
SERVICE_USER = "admin@kagent.dev"
"""The user that kagent's apps act as when they name none."""

queries = Queries(__package__, "threads.sql")


def thread_of(key: str) -> str:
    """The thread that belongs to the session with this key, and is deleted, restored and purged with it."""
    return PREFIX + key


async def hide(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Hide what belongs to a session: its ``id``, ``identifier``, ``user_id`` and ``identifier_rank`` as they are stored."""
    if session["identifier_rank"] != OWN_KEY:
        return
    params = _names(scope, session)
    if await queries.same_key.one(connection, params) is not None:
        params["service_user_id"] = params["user_id"]
    await queries.run_all("hide_", connection, {**params, "now_at": scope.clock.now_us()})


async def show(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Bring back what was hidden with a session.

    Raises:
        Conflict: something else has its name by now.
    """
    try:
        await queries.run_all("show_", connection, _names(scope, session))
    except AlreadyExists:
        user = f" of the user {text.unescape(session['user_id'])!r}" if session["user_id"] else ""
        raise Conflict(
            f"a task, checkpoint, flow or memory under the key {text.unescape(session['identifier'])!r}{user} was made again"
            " since the session was deleted; delete that one first"
        ) from None


async def purge(connection: Connection, scope: Scope, session: dict[str, Any], *, live: bool) -> None:
    """Remove what belongs to a session, live or deleted, for good."""
    if live:
        await hide(connection, scope, session)
    params = _names(scope, session)
    await queries.run_all("purge_", connection, params)
    for user in {params["user_id"]: None, params["service_user_id"]: None}:
        at = {**params, "user_id": user, "thread_id": params["hidden"]}
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
        service_user_id=SERVICE_USER,
        deleted_with=session["id"],
        thread_id=thread_of(key),
        hidden=f"{_HIDDEN}{session['id']}:{key}",
    )
