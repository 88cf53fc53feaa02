"""Feedback. If it is about a message, it is stored with the message and deleted with it; otherwise as general feedback.

kagent declares ``message_id`` as a number although the ids of its messages are text. Both are accepted: text is the id of an
event, and a number is the position of a message in the session ``session_id``. A number without a session does not identify a
message, and is only stored.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import NewGeneralFeedback, Page, column
from holdfast.errors import InvalidInput, NotFound
from holdfast.types import Feedback, GeneralFeedback, Session

from .request import KagentRequest, route, success
from .sessions import message_id

T = TypeVar("T")

PAGE = 1_000
SESSIONS_SEARCHED = 100
"""The number of most recent sessions that are searched for an event if the feedback names no session."""


class _NewFeedback(Struct):
    """Feedback to store."""

    feedback_text: str
    is_positive: bool = False
    issue_type: Literal["instructions", "factual", "incomplete", "tool"] | None = None
    message_id: int | str | None = None
    session_id: str | None = None


class _WireFeedback(Struct, frozen=True):
    """Feedback in a response."""

    id: str
    user_id: str
    is_positive: bool
    feedback_text: str
    issue_type: str | None
    message_id: int | str | None
    created_at: datetime
    updated_at: datetime


_NEW = msgspec.json.Decoder(_NewFeedback)


@route("POST", "/api/feedback")
async def create_feedback_of_kagent(request: KagentRequest) -> Response:
    """Store feedback, replacing earlier feedback of the user about the same message."""
    body = request.body(_NEW)
    about = await _message_about(request, body)
    if about is None:
        new = NewGeneralFeedback(
            feedback_text=body.feedback_text,
            is_positive=body.is_positive,
            issue_type=body.issue_type or "",
            message_number=body.message_id if isinstance(body.message_id, int) else None,
            user=request.user,
        )
        general = await request.tenant.general_feedback.create(new)
        return success(_wire_feedback(general, general.message_number), "Feedback submitted successfully")
    if not body.feedback_text:
        raise InvalidInput("feedback_text must not be empty", field="feedback_text")
    feedback = await request.tenant.feedback.upsert(
        about,
        user=request.user,
        is_positive=body.is_positive,
        feedback_text=body.feedback_text,
        issue_type=body.issue_type,
        metadata={"message_id": body.message_id},
    )
    return success(_wire_feedback(feedback, body.message_id), "Feedback submitted successfully")


@route("GET", "/api/feedback")
async def list_feedback_of_kagent(request: KagentRequest) -> Response:
    """List the user's feedback, the oldest first."""
    own = [column("user").eq(request.user)]
    general = await _all_rows(lambda cursor: request.tenant.general_feedback.list(where=own, limit=PAGE, cursor=cursor))
    about_messages = await _all_rows(
        lambda cursor: request.tenant.feedback.list(user=request.user, limit=PAGE, cursor=cursor)
    )
    listed = [_wire_feedback(row, row.message_number) for row in general]
    listed += [_wire_feedback(row, row.metadata.get("message_id", row.message_id)) for row in about_messages]
    listed.sort(key=lambda feedback: feedback.created_at)
    return success(listed, "Successfully listed feedback")


async def _all_rows(page_of: Callable[[str | None], Coroutine[Any, Any, Page[T]]]) -> list[T]:
    rows: list[T] = []
    page = await page_of(None)
    while True:
        rows += page
        if page.next is None:
            return rows
        page = await page_of(page.next)


async def _message_about(request: KagentRequest, body: _NewFeedback) -> str | None:
    """Return the id of the message that the feedback is about, or ``None`` if it names none.

    Raises:
        NotFound: the user has no such message.
    """
    if body.session_id is None and not isinstance(body.message_id, str):
        return None
    sessions = await _sessions(request, body.session_id)
    if isinstance(body.message_id, int):
        position = body.message_id
        for message in await request.tenant.messages.list(sessions[0].id, after=max(position, 1) - 1, limit=1):
            if message.seq == position:
                return message.id
    elif body.message_id is None:
        return None
    for session in sessions:
        for id in (message_id(session, str(body.message_id)), str(body.message_id)):
            if await _is_message_of(request, session, id):
                return id
    raise NotFound(
        f"message {body.message_id!r} does not exist; session_id can name its session",
        noun="message",
        key=str(body.message_id),
    )


async def _sessions(request: KagentRequest, key: str | None) -> Sequence[Session]:
    if key is None:
        return await request.tenant.sessions.list(user=request.user, limit=SESSIONS_SEARCHED)
    session = await request.tenant.sessions.find(key, user=request.user)
    if session is None:
        raise NotFound("Session not found", noun="session", key=key)
    return [session]


async def _is_message_of(request: KagentRequest, session: Session, id: str) -> bool:
    try:
        return (await request.tenant.messages.get(id)).session_id == session.id
    except (NotFound, InvalidInput):
        return False


def _wire_feedback(row: GeneralFeedback | Feedback, about: int | str | None) -> _WireFeedback:
    return _WireFeedback(
        row.id,
        row.user,
        row.is_positive,
        row.feedback_text,
        row.issue_type or None,
        about,
        row.created_at,
        row.updated_at,
    )
