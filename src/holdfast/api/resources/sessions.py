"""Sessions: conversations, found by id or by key.

An ETag stands for a session as it was read; a change that brings it along in ``If-Match`` is made only if nothing has changed
since.
"""

from __future__ import annotations

from datetime import timedelta
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta

from holdfast.errors import AlreadyExists, Conflict, NotFound
from holdfast.types import AsyncSessions, PrunedSessions, Session

from ..idempotency import IdempotencyKey, chosen_id, settled_by
from ..operations import Header, operation
from ..pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from ..problems import NoLongerSo
from ..schemas import Metadata, NewSession, SessionChange, SessionPage, Uuid, encode, given
from ..state import Service

_ALL = "/v1/tenants/{tenant}/sessions"
_BY_KEY = _ALL + "/by-key/{key}"
_ONE = _ALL + "/{session_id}"

_MAX_SECONDS = 10**11
"""More than all of the time that can be written down."""

Whose = Annotated[str | None, Meta(min_length=1, description="The user whose session it is.")]


IfMatch = Annotated[
    str | None, Header("If-Match"), Meta(description="The ETag it must still have; otherwise nothing is changed.")
]


def session_etag(session: Session) -> str:
    """What a session's state is called in HTTP: all of it counts, as it does in ``expected``."""
    return f'"{blake2b(encode(session), digest_size=16).hexdigest()}"'


@operation("GET", _ALL)
async def list_sessions(
    service: Service,
    *,
    tenant: str,
    user: str | None = None,
    agent: str | None = None,
    metadata: Annotated[Metadata | None, Meta(description="A JSON object: each key must have this value.")] = None,
    where: Where = None,
    deleted: Annotated[bool, Meta(description="Those that were deleted, instead of the live ones.")] = False,
    limit: Limit = PAGE_ROWS,
    cursor: Cursor = None,
) -> SessionPage:
    """Sessions, the one used last first."""
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
    """Start a session. A key that the user has a live session under is refused; to find or make it, put it by its key."""
    id = chosen_id(service, body.id, idempotency_key)
    with settled_by(id):
        return await service.tenant(tenant).sessions.create(**{**given(body), "id": id})


@operation("POST", _ALL + "/prune")
async def prune_sessions(
    service: Service,
    *,
    tenant: str,
    idle_s: Annotated[
        int | None, Meta(ge=0, le=_MAX_SECONDS, description="Seconds without use after which a session goes.")
    ] = None,
    archives_s: Annotated[
        int | None,
        Meta(ge=0, le=_MAX_SECONDS, description="Seconds after which originals and deleted messages go."),
    ] = None,
    limit: Annotated[int, Meta(ge=1, description="How many sessions, and how many originals, go at most.")] = 1_000,
) -> PrunedSessions:
    """Remove, for good, what is old. Ask again while there is `more`; a request that was cut off can simply be repeated."""
    idle = None if idle_s is None else timedelta(seconds=idle_s)
    archives = None if archives_s is None else timedelta(seconds=archives_s)
    return await service.tenant(tenant).sessions.prune(idle=idle, archives=archives, limit=limit)


@operation("GET", _BY_KEY, raises=[NotFound, Conflict], etag=session_etag)
async def find_session(service: Service, *, tenant: str, key: str, user: Whose = None) -> Session:
    """The live session under a key. Without a user, the key must be enough to tell which."""
    found = await service.tenant(tenant).sessions.find(key, user=user)
    if found is None:
        raise NotFound(f"there is no session with the key {key!r} here")
    return found


@operation("PUT", _BY_KEY, etag=session_etag)
async def upsert_session(
    service: Service, *, tenant: str, key: str, body: SessionChange, user: Whose = None
) -> Session:
    """The user's live session under a key, made if it is not there. What is given replaces what was there."""
    return await service.tenant(tenant).sessions.upsert(key, user=user, **given(body))


@operation("GET", _ONE, raises=[NotFound], etag=session_etag)
async def get_session(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    deleted: Annotated[bool, Meta(description="Also if it was deleted.")] = False,
) -> Session:
    """One session."""
    return await service.tenant(tenant).sessions.get(session_id, deleted=deleted)


@operation("PATCH", _ONE, raises=[NotFound, NoLongerSo], etag=session_etag)
async def update_session(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    body: SessionChange,
    if_match: IfMatch = None,
) -> Session:
    """Change what is given; `metadata` replaces the whole object."""
    sessions = service.tenant(tenant).sessions
    expected = await _expected(sessions, session_id, if_match)
    try:
        return await sessions.update(session_id, expected=expected, **given(body))
    except Conflict as error:
        raise NoLongerSo(str(error)) from error


@operation("DELETE", _ONE, status=204, raises=[NotFound, NoLongerSo])
async def delete_session(service: Service, *, tenant: str, session_id: Uuid, if_match: IfMatch = None) -> None:
    """Hide a session and everything below it. Its key is free at once, and `restore` undoes it."""
    sessions = service.tenant(tenant).sessions
    expected = await _expected(sessions, session_id, if_match)
    try:
        await sessions.delete(session_id, expected=expected)
    except Conflict as error:
        raise NoLongerSo(str(error)) from error


@operation("POST", _ONE + "/restore", raises=[NotFound, Conflict], etag=session_etag)
async def restore_session(service: Service, *, tenant: str, session_id: Uuid) -> Session:
    """Bring a deleted session back as it was, unless its key was taken meanwhile."""
    return await service.tenant(tenant).sessions.restore(session_id)


@operation("POST", _ONE + "/purge", status=204, raises=[NotFound])
async def purge_session(service: Service, *, tenant: str, session_id: Uuid) -> None:
    """Remove a session, deleted or not, with everything below it, for good."""
    await service.tenant(tenant).sessions.purge(session_id)


async def _expected(sessions: AsyncSessions, session_id: str, if_match: str | None) -> Session | None:
    """The session as the caller knows it, or nothing if it may be as it is."""
    if if_match is None or if_match.strip() == "*":
        return None
    found = await sessions.get(session_id)
    if session_etag(found) not in [each.strip() for each in if_match.split(",")]:
        raise NoLongerSo(f"session {session_id} is no longer {if_match}; read it again")
    return found
