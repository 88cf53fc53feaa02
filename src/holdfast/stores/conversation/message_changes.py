"""Finding and changing one message, and keeping its session's counters in step."""

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
from .tokens import counted

queries = Queries(__package__, "message_changes.sql", Message)


async def find(connection: Connection, scope: scopes.Scope, message_id: str, query: Query | None = None) -> Message:
    """One message of a live session.

    Raises:
        NotFound: there is none.
    """
    row = await (query or queries.get).one(connection, scope.params(id=parse_id(message_id, "message id")))
    if row is None:
        raise NotFound(f"there is no message {message_id} here")
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
    """Change what is not ``None``, in the transaction that is open.

    Raises:
        NotFound: there is no such message in a live session.
        InvalidInput: something about it is not acceptable.
    """
    # Every writer locks the session first and the message second. So the message is read again after the session is locked.
    session_id = (await find(connection, scope, message_id)).session_id
    head = await lock_head(connection, scope.params(session_id=session_id))
    before = await find(connection, scope, message_id, queries.lock)
    stored = None if content is None else stored_content(content, before.kind, scope.limits)
    if stored is not None and token_count is None:
        token_count = counted(scope, content, stored)
    params = scope.params_now(
        id=before.id,
        session_id=session_id,
        content=stored,
        metadata=None if metadata is None else scopes.metadata(metadata, scope.limits),
        token_count=None if token_count is None else tokens(token_count),
        is_preserved=None if is_preserved is None else flag(is_preserved, "is_preserved"),
    )
    row = await queries.update.one(connection, params)
    if row is None:
        raise NotFound(f"there is no message {message_id} here")
    after = mapper(Message, connection.dialect)([row[:-1]])[0]
    more_tokens = after.token_count - before.token_count if views.shows(head.view, row[-1]) else 0
    await recount(connection, params, removed=0, more_tokens=more_tokens)
    if content is not None:
        await requeue(connection, params, [after.id], only_these=True)
    return after


async def recount(connection: Connection, params: dict[str, Any], *, removed: int, more_tokens: int) -> None:
    """Update the counters of a session after a change.

    Raises:
        NotFound: the session was deleted meanwhile.
    """
    params.update(removed=removed, more_tokens=more_tokens)
    if await queries.recount.one(connection, params) is None:
        raise NotFound(f"there is no session {params['session_id']} here")
