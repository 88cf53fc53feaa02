"""Sessions and events. The id of a session is its key; the ``data`` of an event is text and is stored unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha1
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from holdfast import Filter, NewAgent, column
from holdfast.declared.rows import agent_id
from holdfast.errors import AlreadyExists, Conflict, Forbidden, InvalidInput, NotFound
from holdfast.types import Message, Session

from ..schemas import encode, parse_time
from . import encryption, redaction
from .guest_access import GuestAccess, guest_access
from .request import KagentRequest, route, success

KIND = "kagent.event"
PAGE = 1_000
"""The type of an agent that was registered without one."""


class _NewSession(Struct):
    """A session to find or create."""

    id: str | None = None
    user_id: str | None = None
    agent_ref: str | None = None
    name: str | None = None
    source: str | None = None


class _SessionChange(Struct):
    """New values of a session's fields."""

    name: str | None = None
    agent_ref: str | None = None


class _NewEvent(Struct):
    """An event to append."""

    data: Any
    id: str | None = None


class _WireSession(Struct, frozen=True, omit_defaults=True):
    """A session in a response."""

    id: str
    user_id: str
    created_at: datetime
    updated_at: datetime
    agent_id: str = ""
    name: str = ""
    source: str = ""
    deleted_at: datetime | None = None
    share_token: str | UnsetType = UNSET
    share_read_only: bool | UnsetType = UNSET


class _WireEvent(Struct, frozen=True):
    """An event in a response."""

    id: str
    session_id: str
    user_id: str
    created_at: datetime
    updated_at: datetime
    data: str


class _WireSessionWithEvents(Struct, frozen=True, omit_defaults=True):
    """A session with its events, in a response."""

    session: _WireSession
    events: list[_WireEvent]
    read_only: bool = False


_NEW = msgspec.json.Decoder(_NewSession)
_CHANGE = msgspec.json.Decoder(_SessionChange)
_EVENT = msgspec.json.Decoder(_NewEvent)


@route("POST", "/api/sessions")
async def create_session(request: KagentRequest) -> Response:
    """Create the user's session with this id, or return the existing one with its events unchanged."""
    body = request.body(_NEW)
    user = body.user_id or request.user
    agent = None if not body.agent_ref else await ensure_agent(request, body.agent_ref)
    metadata = {name: value for name, value in (("name", body.name), ("source", body.source)) if value}
    session = await request.tenant.sessions.upsert(
        body.id or request.service.ids.new(), user=user, agent=agent, metadata=metadata or None
    )
    return success(wire_session(session), "Successfully created session", 201)


@route("GET", "/api/sessions")
async def list_sessions(request: KagentRequest) -> Response:
    """List the user's sessions, the most recently used first."""
    sessions = [wire_session(session) for session in await _all_sessions(request)]
    return success(sessions, "Successfully listed sessions")


@route("GET", "/api/sessions/agent/{namespace}/{name}")
async def list_sessions_of_agent(request: KagentRequest) -> Response:
    """List the user's sessions with an agent and those shared with the user, the most recently used first."""
    agent = agent_id(f"{request.names['namespace']}/{request.names['name']}")
    own = await _all_sessions(request, agent)
    sessions = [wire_session(session) for session in own if session.metadata.get("source") != "agent"]
    for share in await request.tenant.session_shares.used_by(request.user):
        session = await request.tenant.sessions.get(share.session_id)
        if session.agent == agent and session.user != request.user:
            token = UNSET if share.token is None else share.token
            sessions.append(wire_session(session, share_token=token, share_read_only=share.read_only))
    sessions.sort(key=lambda session: session.updated_at, reverse=True)
    return success(sessions, "Successfully listed sessions")


@route("GET", "/api/sessions/{session_id}")
async def get_session(request: KagentRequest) -> Response:
    """Get a session with its events in the requested order; secrets are hidden from guests."""
    guest = await guest_access(request, writing=False)
    session = await session_of(request, guest)
    events = [_wire_event(request, message, session, guest) for message in await _events(request, session)]
    data = _WireSessionWithEvents(wire_session(session), events, guest is not None and guest.read_only)
    return success(data, "Successfully retrieved session")


@route("PUT", "/api/sessions/{session_id}")
@route("PATCH", "/api/sessions/{session_id}")
async def update_session(request: KagentRequest) -> Response:
    """Change the name or the agent of a session."""
    session = await session_of(request, await guest_access(request, writing=True))
    body = request.body(_CHANGE)
    if not body.name and not body.agent_ref:
        raise InvalidInput("the request changes nothing: send name, agent_ref or both")
    agent = None if not body.agent_ref else await ensure_agent(request, body.agent_ref)
    metadata = {**session.metadata, "name": body.name} if body.name else None
    changed = await request.tenant.sessions.update(session.id, agent=agent, metadata=metadata)
    return success(wire_session(changed), "Successfully updated session")


@route("DELETE", "/api/sessions/{session_id}")
async def delete_session(request: KagentRequest) -> Response:
    """Delete a session with everything that belongs to it. If it does not exist, nothing happens. Its id can be used again."""
    guest = await guest_access(request, writing=True)
    if guest is not None:
        raise Forbidden("only the owner of a session can delete it", reason="not_owner")
    session = await request.tenant.sessions.find(request.names["session_id"], user=request.user)
    if session is not None:
        await request.tenant.sessions.delete(session.id)
    return success({}, "Session deleted successfully")


@route("POST", "/api/sessions/{session_id}/restore")
async def restore_session(request: KagentRequest) -> Response:
    """Restore the last deleted session with this id, with everything that belonged to it."""
    key = column("key").eq(request.names["session_id"])
    deleted = await request.tenant.sessions.list(user=request.user, where=[key], deleted=True)
    if not deleted:
        id = request.names["session_id"]
        raise NotFound(f"deleted session {id!r} does not exist", noun="session", key=id)
    last = max(deleted, key=lambda session: (session.deleted_at, session.id))
    restored = await request.tenant.sessions.restore(last.id)
    return success(wire_session(restored), "Session restored successfully")


@route("POST", "/api/sessions/{session_id}/events")
async def append_event(request: KagentRequest) -> Response:
    """Append an event. Repeating it with the same content changes nothing; other content with the same id is refused."""
    guest = await guest_access(request, writing=True)
    session = await session_of(request, guest)
    if request.agent and session.agent and request.agent != agent_id(session.agent):
        raise Forbidden(
            f"this session belongs to agent {session.agent!r}, not to {request.agent!r}", reason="other_agent"
        )
    body = request.body(_EVENT)
    data = body.data if isinstance(body.data, str) else encode(body.data).decode()
    id = body.id or request.service.ids.new()
    message = await _append(request, session, id, data)
    return success(_wire_event(request, message, session, guest), "Event added to session successfully", 201)


@route("DELETE", "/api/sessions/{session_id}/events/{event_id}")
async def delete_event(request: KagentRequest) -> Response:
    """Delete an event with its feedback. If it does not exist, nothing happens."""
    session = await session_of(request, await guest_access(request, writing=True))
    await request.tenant.messages.delete(session.id, [message_id(session, request.names["event_id"])])
    return success({}, "Event deleted successfully")


@route("POST", "/api/sessions/{session_id}/events/{event_id}/restore")
async def restore_event(request: KagentRequest) -> Response:
    """Restore a deleted event at its position, with its feedback."""
    guest = await guest_access(request, writing=True)
    session = await session_of(request, guest)
    id = message_id(session, request.names["event_id"])
    if not await request.tenant.messages.restore(session.id, [id]):
        event_id = request.names["event_id"]
        raise NotFound(f"deleted event {event_id!r} does not exist", noun="event", key=event_id)
    return success(
        _wire_event(request, await request.tenant.messages.get(id), session, guest), "Event restored successfully"
    )


async def session_of(request: KagentRequest, guest: GuestAccess | None) -> Session:
    """Return the requested session, for its owner or a guest.

    Raises:
        NotFound: the session does not exist.
    """
    user = request.user if guest is None else guest.user
    session = await request.tenant.sessions.find(request.names["session_id"], user=user)
    if session is None:
        raise NotFound("Session not found", noun="session", key=request.names["session_id"])
    return session


async def ensure_agent(request: KagentRequest, reference: str) -> str:
    """Return the id of an agent. Register it if it does not exist, and restore it if it was deleted."""
    id, agents = agent_id(reference), request.tenant.agents
    if not await agents.by_ids([id]):
        try:
            await agents.create(NewAgent(id=id, display_name=reference))
        except AlreadyExists as taken:  # it was deleted, or another request has registered it
            try:
                await agents.restore(id)
            except NotFound:  # the id is the key of another agent
                raise taken from None
    return id


def message_id(session: Session, event_id: str) -> str:
    """Return the id of an event's message, which is derived from the session's id and the event's id."""
    name = event_id.encode("utf-8", "surrogatepass")  # uuid5 rejects surrogates; for other text the result is the same
    return str(UUID(bytes=sha1(UUID(session.id).bytes + name, usedforsecurity=False).digest()[:16], version=5))


def wire_session(
    session: Session, *, share_token: str | UnsetType = UNSET, share_read_only: bool | UnsetType = UNSET
) -> _WireSession:
    """Convert a session to kagent's format."""
    name, source = session.metadata.get("name"), session.metadata.get("source")
    return _WireSession(
        session.key,
        session.user,
        session.created_at,
        session.updated_at,
        session.agent,
        name if isinstance(name, str) else "",
        source if isinstance(source, str) else "",
        session.deleted_at,
        share_token,
        share_read_only,
    )


async def _all_sessions(request: KagentRequest, agent: str | None = None) -> Sequence[Session]:
    sessions: list[Session] = []
    cursor: str | None = None
    while True:
        page = await request.tenant.sessions.list(user=request.user, agent=agent, limit=PAGE, cursor=cursor)
        sessions += page
        if page.next is None:
            return sessions
        cursor = page.next


async def _events(request: KagentRequest, session: Session) -> Sequence[Message]:
    """Return the requested events. A limit of 0 or less is ignored."""
    limit = request.number("limit", 0)
    newest_first = request.query.get("order", "desc").lower() != "asc"
    where: list[Filter] = []
    if after := request.query.get("after"):
        where.append(column("created_at").gt(parse_time(after.replace(" ", "+"))))
    events: list[Message] = []
    cursor: str | None = None
    while True:
        rows = PAGE if limit <= 0 else min(PAGE, limit - len(events))
        page = await request.tenant.messages.list(
            session.id, where=where, newest_first=newest_first, limit=rows, cursor=cursor
        )
        events += [message for message in page if message.kind == KIND]
        if page.next is None or 0 < limit <= len(events):
            return events
        cursor = page.next


async def _append(request: KagentRequest, session: Session, id: str, data: str) -> Message:
    """Append an event, or return the existing message. Encrypting the same text twice results in different content, so the
    decrypted texts are compared."""
    keys = request.tenant.encryption
    message, content = message_id(session, id), encryption.encrypt_event(keys, id, data)
    try:
        return await request.tenant.messages.append(session.id, kind=KIND, content=content, id=message)
    except Conflict:
        if "sealed" not in content:
            raise
        existing = await request.tenant.messages.get(message)
        event = encryption.decrypt_event(keys, existing.content) if existing.kind == KIND else None
        if event not in ((id, data), (id, redaction.without_request_secrets(data))):
            raise
        return existing


def _wire_event(request: KagentRequest, message: Message, session: Session, guest: GuestAccess | None) -> _WireEvent:
    id, data = encryption.decrypt_event(request.tenant.encryption, message.content)
    data = data if guest is None else redaction.for_guests(data)
    return _WireEvent(id, session.key, session.user, message.created_at, message.updated_at, data)
