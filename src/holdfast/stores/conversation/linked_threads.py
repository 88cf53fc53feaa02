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

PREFIX = "session:"
_HIDDEN = "deleted:"
OWN_KEY = "~"
"""The ``identifier_rank`` of a session that has its key to itself."""
SERVICE_USER = "admin@kagent.dev"
"""The user that kagent's apps act as when they name none."""

queries = Queries(__package__, "linked_threads.sql")


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
    for dependent in scope.session_dependents:
        await dependent.hide(connection, scope, params)


async def show(connection: Connection, scope: Scope, session: dict[str, Any]) -> None:
    """Bring back what was hidden with a session.

    Raises:
        Conflict: something else has its name by now.
    """
    try:
        for dependent in scope.session_dependents:
            await dependent.show(connection, scope, _names(scope, session))
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
    for dependent in scope.session_dependents:
        await dependent.purge(connection, scope, _names(scope, session))


async def check_removable(connection: Connection, scope: Scope, session_id: str) -> None:
    """Ask everything that follows a session whether it may be removed for good.

    Raises:
        Conflict: it must be kept.
    """
    for dependent in scope.session_dependents:
        await dependent.check_removable(connection, scope, session_id)


async def is_active(connection: Connection, scope: Scope, session_id: str) -> bool:
    """Whether something is under way in a session."""
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
