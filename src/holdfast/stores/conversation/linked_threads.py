"""Rows that belong to a session only by its key, because the frameworks that store them do not know sessions.

A2A tasks whose context is a session's key belong to it. So do graph checkpoints, flows and crew memories whose thread is
``thread_of`` the key; threads with other names belong to no session. They do not need a session, and may be stored before it.
When the user's session with that key is deleted they are hidden under its id, so that the key can be used afresh; restoring the
session restores them, and purging it removes them permanently.

kagent's LangGraph and CrewAI apps cannot name a user: they store everything as ``SERVICE_USER``. That user's rows under the
key are hidden with the session as well, unless another live session has the same key and may be their owner. A session
that shares its key owns nothing by name.
"""

from __future__ import annotations

from typing import Any

from ...core import text
from ...core.queries import Queries
from ...core.scope import Scope
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict

PREFIX = "session:"
_HIDDEN = "deleted:"
OWN_KEY = "~"
"""The ``identifier_rank`` of a session that does not share its key."""
SERVICE_USER = "admin@kagent.dev"
"""The user of kagent's apps when they name none."""

queries = Queries(__package__, "linked_threads.sql")


def thread_of(key: str) -> str:
    """Return the thread that belongs to the session with this key: it is deleted, restored and purged with the session."""
    return PREFIX + key


async def hide(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Hide the rows of a session, given its ``id``, ``identifier``, ``user_id`` and ``identifier_rank`` in their stored form."""
    if session["identifier_rank"] != OWN_KEY:
        return
    params = _names(scope, session)
    if await queries.same_key.one(connection, params) is not None:
        params["service_user_id"] = params["user_id"]
    for dependent in scope.session_dependents:
        await dependent.hide(connection, scope, params)


async def show(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Restore the rows that were hidden with a session.

    Raises:
        Conflict: their name was taken in the meantime.
    """
    try:
        for dependent in scope.session_dependents:
            await dependent.show(connection, scope, _names(scope, session))
    except AlreadyExists:
        user = f" of the user {text.unescape(session['user_id'])!r}" if session["user_id"] else ""
        raise Conflict(
            f"a task, checkpoint, flow or memory was stored under the key {text.unescape(session['identifier'])!r}{user}"
            " after the session was deleted; delete it first",
            reason="data_under_key",
        ) from None


async def purge(connection: Connection, scope: Scope, session: dict[str, Any], *, live: bool) -> None:
    """Remove the rows of a session, live or deleted, permanently."""
    if live:
        await hide(connection, scope, session)
    for dependent in scope.session_dependents:
        await dependent.purge(connection, scope, _names(scope, session))


async def check_removable(connection: Connection, scope: Scope, session_id: str) -> None:
    """Check with all dependents of a session that it may be removed permanently.

    Raises:
        Conflict: it must be kept.
    """
    for dependent in scope.session_dependents:
        await dependent.check_removable(connection, scope, session_id)


async def is_active(connection: Connection, scope: Scope, session_id: str) -> bool:
    """Return whether work is in progress in a session."""
    for dependent in scope.session_dependents:
        if await dependent.is_active(connection, scope, session_id):
            return True
    return False


def _names(scope: Scope, session: dict[str, Any]) -> dict[str, Any]:
    key = session["identifier"]
    return scope.params(
        **session,
        service_user_id=SERVICE_USER,
        now_at=scope.clock.now_us(),
        deleted_with=session["id"],
        thread_id=thread_of(key),
        hidden=f"{_HIDDEN}{session['id']}:{key}",
    )
