"""Sessions and events. A session is found by its id, which is its key; an event's ``data`` is text and stays what it was."""

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
from holdfast.errors import AlreadyExists, Conflict, Forbidden, InvalidInput, NotFound
from holdfast.types import Message, Session

from ..schemas import encode, moment
from . import encryption, redaction
from .guest_access import Visit, visit
from .request import Ask, agent_id, enveloped, route

KIND = "kagent.event"
PAGE = 1_000
AGENT_TYPE = "kagent"
"""The type of an agent that was registered without one."""


class NewSession(Struct):
    """A session to start, or to find if it is there."""

    id: str | None = None
    user_id: str | None = None
    agent_ref: str | None = None
    name: str | None = None
    source: str | None = None


class SessionChange(Struct):
    """What is to replace what was there."""

    name: str | None = None
    agent_ref: str | None = None


class NewEvent(Struct):
    """An event to append."""

    data: Any
    id: str | None = None


class SessionShown(Struct, frozen=True, omit_defaults=True):
    """A session as kagent shows it."""

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


class EventShown(Struct, frozen=True):
    """An event as kagent shows it."""

    id: str
    session_id: str
    user_id: str
    created_at: datetime
    updated_at: datetime
    data: str


class SessionWithEvents(Struct, frozen=True, omit_defaults=True):
    """A session and what happened in it."""

    session: SessionShown
    events: list[EventShown]
    read_only: bool = False


_NEW = msgspec.json.Decoder(NewSession)
_CHANGE = msgspec.json.Decoder(SessionChange)
_EVENT = msgspec.json.Decoder(NewEvent)


@route("POST", "/api/sessions")
async def create_session(ask: Ask) -> Response:
    """The user's session with this id, made if it is not there; its events stay."""
    body = ask.body(_NEW)
    user = body.user_id or ask.user
    agent = None if not body.agent_ref else await registered(ask, body.agent_ref)
    given = {name: value for name, value in (("name", body.name), ("source", body.source)) if value}
    session = await ask.tenant.sessions.upsert(
        body.id or ask.service.ids.new(), user=user, agent=agent, metadata=given or None
    )
    return enveloped(shown(session), "Successfully created session", 201)


@route("GET", "/api/sessions")
async def list_sessions(ask: Ask) -> Response:
    """The user's sessions, the one used last first."""
    return enveloped([shown(each) for each in await _all(ask)], "Successfully listed sessions")


@route("GET", "/api/sessions/agent/{namespace}/{name}")
async def list_sessions_of_agent(ask: Ask) -> Response:
    """The user's sessions with an agent and those that were shared with them, the one used last first."""
    agent = agent_id(f"{ask.names['namespace']}/{ask.names['name']}")
    found = [shown(each) for each in await _all(ask, agent) if each.metadata.get("source") != "agent"]
    for link in await ask.tenant.session_shares.used_by(ask.user):
        session = await ask.tenant.sessions.get(link.session_id)
        if session.agent == agent and session.user != ask.user:
            token = UNSET if link.token is None else link.token
            found.append(shown(session, share_token=token, share_read_only=link.read_only))
    found.sort(key=lambda each: each.updated_at, reverse=True)
    return enveloped(found, "Successfully listed sessions")


@route("GET", "/api/sessions/{session_id}")
async def get_session(ask: Ask) -> Response:
    """A session with its events in the order in which they were appended, or from the end; a guest sees no secrets."""
    guest = await visit(ask, writing=False)
    session = await found_session(ask, guest)
    events = [_event(ask, each, session, guest) for each in await _events(ask, session)]
    data = SessionWithEvents(shown(session), events, guest is not None and guest.read_only)
    return enveloped(data, "Successfully retrieved session")


@route("PUT", "/api/sessions/{session_id}")
@route("PATCH", "/api/sessions/{session_id}")
async def update_session(ask: Ask) -> Response:
    """Give a session another name or another agent."""
    session = await found_session(ask, await visit(ask, writing=True))
    body = ask.body(_CHANGE)
    if not body.name and not body.agent_ref:
        raise InvalidInput("say what to change: name, agent_ref or both")
    agent = None if not body.agent_ref else await registered(ask, body.agent_ref)
    metadata = {**session.metadata, "name": body.name} if body.name else None
    changed = await ask.tenant.sessions.update(session.id, agent=agent, metadata=metadata)
    return enveloped(shown(changed), "Successfully updated session")


@route("DELETE", "/api/sessions/{session_id}")
async def delete_session(ask: Ask) -> Response:
    """Hide a session and all that belongs to it; one that is not there is gone already. Its id can be used again."""
    guest = await visit(ask, writing=True)
    if guest is not None:
        raise Forbidden("only the owner of a session may delete it")
    session = await ask.tenant.sessions.find(ask.names["session_id"], user=ask.user)
    if session is not None:
        await ask.tenant.sessions.delete(session.id)
    return enveloped({}, "Session deleted successfully")


@route("POST", "/api/sessions/{session_id}/restore")
async def restore_session(ask: Ask) -> Response:
    """Bring the session that was deleted last under this id back, with all that belonged to it."""
    key = column("key").eq(ask.names["session_id"])
    deleted = await ask.tenant.sessions.list(user=ask.user, where=[key], deleted=True)
    if not deleted:
        raise NotFound(f"there is no deleted session {ask.names['session_id']!r}")
    last = max(deleted, key=lambda each: (each.deleted_at, each.id))
    return enveloped(shown(await ask.tenant.sessions.restore(last.id)), "Session restored successfully")


@route("POST", "/api/sessions/{session_id}/events")
async def append_event(ask: Ask) -> Response:
    """Append an event. The same event again is the same event; another one with its id is refused."""
    guest = await visit(ask, writing=True)
    session = await found_session(ask, guest)
    if ask.agent and session.agent and ask.agent != agent_id(session.agent):
        raise Forbidden(f"this session belongs to the agent {session.agent!r}, not to {ask.agent!r}")
    body = ask.body(_EVENT)
    data = body.data if isinstance(body.data, str) else encode(body.data).decode()
    id = body.id or ask.service.ids.new()
    message = await _appended(ask, session, id, data)
    return enveloped(_event(ask, message, session, guest), "Event added to session successfully", 201)


@route("DELETE", "/api/sessions/{session_id}/events/{event_id}")
async def delete_event(ask: Ask) -> Response:
    """Hide an event with the feedback on it; one that is not there is gone already."""
    session = await found_session(ask, await visit(ask, writing=True))
    await ask.tenant.messages.delete(session.id, [message_id(session, ask.names["event_id"])])
    return enveloped({}, "Event deleted successfully")


@route("POST", "/api/sessions/{session_id}/events/{event_id}/restore")
async def restore_event(ask: Ask) -> Response:
    """Bring a deleted event back to its place, with the feedback on it."""
    guest = await visit(ask, writing=True)
    session = await found_session(ask, guest)
    id = message_id(session, ask.names["event_id"])
    if not await ask.tenant.messages.restore(session.id, [id]):
        raise NotFound(f"there is no deleted event {ask.names['event_id']!r}")
    return enveloped(_event(ask, await ask.tenant.messages.get(id), session, guest), "Event restored successfully")


async def found_session(ask: Ask, guest: Visit | None) -> Session:
    """The session that is asked for, as its owner or as a guest.

    Raises:
        NotFound: there is none.
    """
    user = ask.user if guest is None else guest.user
    session = await ask.tenant.sessions.find(ask.names["session_id"], user=user)
    if session is None:
        raise NotFound("Session not found")
    return session


async def registered(ask: Ask, reference: str, agent_type: str = AGENT_TYPE) -> str:
    """The id of an agent, which is registered if nobody has heard of it yet."""
    id = agent_id(reference)
    if await ask.tenant.agents.find(id) is None:
        try:
            await ask.tenant.agents.create(NewAgent(name=reference, id=id, agent_type=agent_type))
        except AlreadyExists:
            return id
    return id


def message_id(session: Session, event_id: str) -> str:
    """The id of the message that is an event: the same for the same event of the same session."""
    name = event_id.encode("utf-8", "surrogatepass")  # which uuid5 would refuse; for all other text it is the same
    return str(UUID(bytes=sha1(UUID(session.id).bytes + name, usedforsecurity=False).digest()[:16], version=5))


def shown(
    session: Session, *, share_token: str | UnsetType = UNSET, share_read_only: bool | UnsetType = UNSET
) -> SessionShown:
    """A session as kagent shows it."""
    name, source = session.metadata.get("name"), session.metadata.get("source")
    return SessionShown(
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


async def _all(ask: Ask, agent: str | None = None) -> Sequence[Session]:
    found: list[Session] = []
    cursor: str | None = None
    while True:
        page = await ask.tenant.sessions.list(user=ask.user, agent=agent, limit=PAGE, cursor=cursor)
        found += page
        if page.next is None:
            return found
        cursor = page.next


async def _events(ask: Ask, session: Session) -> Sequence[Message]:
    """The events that are asked for; a limit from 0 down is none."""
    limit = ask.number("limit", 0)
    newest_first = ask.query.get("order", "desc").lower() != "asc"
    where: list[Filter] = []
    if after := ask.query.get("after"):
        where.append(column("created_at").gt(moment(after.replace(" ", "+"))))
    found: list[Message] = []
    cursor: str | None = None
    while True:
        rows = PAGE if limit <= 0 else min(PAGE, limit - len(found))
        page = await ask.tenant.messages.list(
            session.id, where=where, newest_first=newest_first, limit=rows, cursor=cursor
        )
        found += [each for each in page if each.kind == KIND]
        if page.next is None or 0 < limit <= len(found):
            return found
        cursor = page.next


async def _appended(ask: Ask, session: Session, id: str, data: str) -> Message:
    """The event, appended now or before: encrypted, the same text is never the same twice."""
    message, content = message_id(session, id), encryption.sealed(ask.tenant.encryption, id, data)
    try:
        return await ask.tenant.messages.append(session.id, kind=KIND, content=content, id=message)
    except Conflict:
        if "sealed" not in content:
            raise
        there = await ask.tenant.messages.get(message)
        stored = encryption.opened(ask.tenant.encryption, there.content) if there.kind == KIND else None
        if stored not in ((id, data), (id, redaction.storable(data))):
            raise
        return there


def _event(ask: Ask, message: Message, session: Session, guest: Visit | None) -> EventShown:
    id, data = encryption.opened(ask.tenant.encryption, message.content)
    data = data if guest is None else redaction.showable(data)
    return EventShown(id, session.key, session.user, message.created_at, message.updated_at, data)
