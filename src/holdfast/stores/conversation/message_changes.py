"""Lookup and change of one message, which keeps the counters of its session up to date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import scope as scopes
from ...core.queries import Queries, Query
from ...core.rows import mapper
from ...engines.protocol import Connection
from ...errors import NotFound
from ...ids import parse as parse_id
from . import views
from .branches import lock_head
from .contents import stored_content
from .message_log import Message
from .new_entries import flag, tokens
from .search.index import requeue
from .tokens import count_content

queries = Queries(__package__, "message_changes.sql", Message)


async def find(connection: Connection, scope: scopes.Scope, message_id: str, query: Query | None = None) -> Message:
    """Return one message of a live session.

    Raises:
        NotFound: it does not exist.
    """
    row = await (query or queries.get).one(connection, scope.params(id=parse_id(message_id, "message id")))
    if row is None:
        raise NotFound(f"message {message_id} does not exist", noun="message", key=message_id)
    return mapper(Message, connection.dialect)([row])[0]


async def change(
    connection: Connection,
    scope: scopes.Scope,
    message_id: str,
    content: Any,
    metadata: Mapping[str, Any] | None,
    token_count: int | None,
    is_preserved: bool | None,
) -> Message:
    """Change the arguments that are not ``None``, in the current transaction.

    Raises:
        NotFound: no message of a live session has this id.
        InvalidInput: an argument is not valid.
    """
    # Every writer locks the session first and the message second. So the message is read again after the session was locked.
    session_id = (await find(connection, scope, message_id)).session_id
    head = await lock_head(connection, scope.params(session_id=session_id))
    before = await find(connection, scope, message_id, queries.lock)
    encoded = None if content is None else stored_content(content, before.kind, scope.limits)
    if encoded is not None and token_count is None:
        token_count = count_content(scope, content, encoded)
    params = scope.params_now(
        id=before.id,
        session_id=session_id,
        content=encoded,
        metadata=None if metadata is None else scopes.metadata(metadata, scope.limits),
        token_count=None if token_count is None else tokens(token_count),
        is_preserved=None if is_preserved is None else flag(is_preserved, "is_preserved"),
    )
    row = await queries.update.one(connection, params)
    if row is None:
        raise NotFound(f"message {message_id} does not exist", noun="message", key=message_id)
    after = mapper(Message, connection.dialect)([row[:-1]])[0]
    more_tokens = after.token_count - before.token_count if views.shows(head.view, row[-1]) else 0
    await recount(connection, params, removed=0, more_tokens=more_tokens)
    if content is not None:
        await requeue(connection, params, [after.id], only_these=True)
    return after


async def recount(connection: Connection, params: dict[str, Any], *, removed: int, more_tokens: int) -> None:
    """Update the counters of a session after a change.

    Raises:
        NotFound: the session was deleted in the meantime.
    """
    params.update(removed=removed, more_tokens=more_tokens)
    if await queries.recount.one(connection, params) is None:
        raise NotFound(f"session {params['session_id']} does not exist", noun="session", key=params["session_id"])
