"""The names of a session: its key, user and agent, in the caller's and in the stored form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core import scope as scopes
from ...core import text
from ...errors import Conflict, NotFound
from ...ids import parse as parse_id
from ...limits import Limits
from . import linked_threads
from .keys import SessionKey

if TYPE_CHECKING:
    from .sessions import Session


def new_session(
    scope: scopes.Scope,
    *,
    key: str | SessionKey | None,
    user: str | None,
    agent: str | None,
    metadata: Mapping[str, Any] | None,
    id: str | None = None,
) -> dict[str, Any]:
    """Return the parameters of a new session.

    Raises:
        InvalidInput: an argument is not valid.
    """
    new_id = scope.ids.new() if id is None else parse_id(id, "session id")
    return scope.params_now(
        id=new_id,
        identifier=new_id if key is None else stored_key(key, scope.limits),
        user_id="" if user is None else scopes.name(user, "user", scope.limits),
        agent_id="" if agent is None else scopes.name(agent, "agent", scope.limits),
        metadata=scopes.metadata(metadata, scope.limits),
    )


def stored_key(key: str | SessionKey, limits: Limits) -> str:
    """Return the stored form of a key."""
    return scopes.name(str(key) if isinstance(key, SessionKey) else key, "key", limits, limit="key_bytes")


def stored_names(session: Session) -> dict[str, Any]:
    """Return the names of a session as parameters."""
    return {
        "id": session.id,
        "identifier": text.escape(session.key),
        "user_id": text.escape(session.user),
        "identifier_rank": linked_threads.OWN_KEY if session.is_unique else session.id,
    }


def missing(session_id: str) -> NotFound:
    """Return the error for a session that does not exist."""
    return NotFound(f"session {session_id} does not exist", noun="session", key=session_id)


def of_user(user: str | None) -> str:
    """Return the user's part of an error message."""
    return f" of the user {user!r}" if user else ""


def check_repeated(session: Session, params: Mapping[str, Any]) -> Session:
    """Return the session with an id, if a repeated ``create`` would have stored the same.

    Raises:
        Conflict: it is another session.
    """
    expected = [text.unescape(params[name]) for name in ("identifier", "user_id", "agent_id")]
    is_unique = params["identifier_rank"] == linked_threads.OWN_KEY
    is_same = expected == [session.key, session.user, session.agent] and session.is_unique == is_unique
    if session.deleted_at is not None or not is_same:
        raise Conflict(f"another session has the id {session.id}", reason="id_taken")
    return session
