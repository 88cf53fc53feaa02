"""Sessions: conversations, found by id or by key.

An ETag identifies the state of a session; a change with ``If-Match`` is made only if the session has not changed since it was
read.
"""

from __future__ import annotations

from datetime import timedelta
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta

from holdfast.errors import AlreadyExists, Conflict, NotFound
from holdfast.types import AsyncSessions, PrunedSessions, Session

from ..idempotency import IdempotencyKey, chosen_id, retry_id
from ..operations import Header, operation
from ..pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from ..problems import PreconditionFailed
from ..schemas import Metadata, NewSession, SessionChange, SessionPage, Uuid, encode, present_fields
from ..state import Service

_ALL = "/v1/tenants/{tenant}/sessions"
_BY_KEY = _ALL + "/by-key/{key}"
_ONE = _ALL + "/{session_id}"

_MAX_SECONDS = 10**11
"""More seconds than any time that can be represented."""

SessionUser = Annotated[str | None, Meta(min_length=1, description="The user of the session.")]


IfMatch = Annotated[
    str | None,
    Header("If-Match"),
    Meta(description="The ETag that the object must have; otherwise nothing is changed."),
]


def session_etag(session: Session) -> str:
    """Return the ETag of a session. Like ``expected``, it compares all fields."""
    return f'"{blake2b(encode(session), digest_size=16).hexdigest()}"'


@operation("GET", _ALL)
async def list_sessions(
    service: Service,
    *,
    tenant: str,
    user: str | None = None,
    agent: str | None = None,
    metadata: Annotated[
        Metadata | None, Meta(description="A JSON object whose keys must all have these values.")
    ] = None,
    where: Where = None,
    deleted: Annotated[bool, Meta(description="List deleted sessions instead of live ones.")] = False,
    limit: Limit = PAGE_ROWS,
    cursor: Cursor = None,
) -> SessionPage:
    """List sessions, the most recently used first."""
    page = await service.tenant(tenant).sessions.list(
        user=user,
        agent=agent,
        metadata=metadata,
        where=filters(where, Session),
        deleted=deleted,
        limit=limit,
        cursor=cursor,
    )
    return SessionPage(page, page.next)


@operation("POST", _ALL, status=201, raises=[AlreadyExists, Conflict], etag=session_etag)
async def create_session(
    service: Service, *, tenant: str, body: NewSession, idempotency_key: IdempotencyKey = None
) -> Session:
    """Create a session. It is refused if the user has a live session with its key; `PUT` by key finds or creates one."""
    id = chosen_id(service, body.id, idempotency_key)
    with retry_id(id):
        return await service.tenant(tenant).sessions.create(**{**present_fields(body), "id": id})


@operation("POST", _ALL + "/prune")
async def prune_sessions(
    service: Service,
    *,
    tenant: str,
    idle_s: Annotated[
        int | None, Meta(ge=0, le=_MAX_SECONDS, description="Seconds without use after which a session is removed.")
    ] = None,
    archives_s: Annotated[
        int | None,
        Meta(ge=0, le=_MAX_SECONDS, description="Seconds after which originals and deleted messages are removed."),
    ] = None,
    limit: Annotated[int, Meta(ge=1, description="Maximum number of sessions, and of originals, to remove.")] = 1_000,
) -> PrunedSessions:
    """Permanently remove old data. Repeat the request while `more` is true; an interrupted request can be repeated too."""
    idle = None if idle_s is None else timedelta(seconds=idle_s)
    archives = None if archives_s is None else timedelta(seconds=archives_s)
    return await service.tenant(tenant).sessions.prune(idle=idle, archives=archives, limit=limit)


@operation("GET", _BY_KEY, raises=[NotFound, Conflict], etag=session_etag)
async def find_session(service: Service, *, tenant: str, key: str, user: SessionUser = None) -> Session:
    """Find the live session with a key. Without a user, the key must be unique among all users."""
    session = await service.tenant(tenant).sessions.find(key, user=user)
    if session is None:
        raise NotFound(f"session with key {key!r} does not exist", noun="session", key=key)
    return session


@operation("PUT", _BY_KEY, etag=session_etag)
async def upsert_session(
    service: Service, *, tenant: str, key: str, body: SessionChange, user: SessionUser = None
) -> Session:
    """Create the user's live session with a key, or change its fields that are in the body."""
    return await service.tenant(tenant).sessions.upsert(key, user=user, **present_fields(body))


@operation("GET", _ONE, raises=[NotFound], etag=session_etag)
async def get_session(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    deleted: Annotated[bool, Meta(description="Also return a deleted session.")] = False,
) -> Session:
    """Get one session."""
    return await service.tenant(tenant).sessions.get(session_id, deleted=deleted)


@operation("PATCH", _ONE, raises=[NotFound, PreconditionFailed], etag=session_etag)
async def update_session(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    body: SessionChange,
    if_match: IfMatch = None,
) -> Session:
    """Change the fields of a session that are in the body; `metadata` replaces the whole object."""
    sessions = service.tenant(tenant).sessions
    expected = await _expected(sessions, session_id, if_match)
    try:
        return await sessions.update(session_id, expected=expected, **present_fields(body))
    except Conflict as error:
        raise PreconditionFailed(str(error)) from error


@operation("DELETE", _ONE, status=204, raises=[NotFound, PreconditionFailed])
async def delete_session(service: Service, *, tenant: str, session_id: Uuid, if_match: IfMatch = None) -> None:
    """Delete a session with everything below it. Its key becomes available immediately; `restore` undoes it."""
    sessions = service.tenant(tenant).sessions
    expected = await _expected(sessions, session_id, if_match)
    try:
        await sessions.delete(session_id, expected=expected)
    except Conflict as error:
        raise PreconditionFailed(str(error)) from error


@operation("POST", _ONE + "/restore", raises=[NotFound, Conflict], etag=session_etag)
async def restore_session(service: Service, *, tenant: str, session_id: Uuid) -> Session:
    """Restore a deleted session unchanged, unless another session has taken its key."""
    return await service.tenant(tenant).sessions.restore(session_id)


@operation("POST", _ONE + "/purge", status=204, raises=[NotFound])
async def purge_session(service: Service, *, tenant: str, session_id: Uuid) -> None:
    """Permanently remove a session, deleted or not, with everything below it."""
    await service.tenant(tenant).sessions.purge(session_id)


async def _expected(sessions: AsyncSessions, session_id: str, if_match: str | None) -> Session | None:
    """Return the session that ``If-Match`` names, or ``None`` if any state is acceptable."""
    if if_match is None or if_match.strip() == "*":
        return None
    session = await sessions.get(session_id)
    if session_etag(session) not in [etag.strip() for etag in if_match.split(",")]:
        raise PreconditionFailed(f"session {session_id} no longer has the ETag {if_match}; read it again")
    return session
