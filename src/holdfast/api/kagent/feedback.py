"""Feedback as kagent takes it. About a message it is kept with the message and goes with it; otherwise it stands by itself.

kagent types ``message_id`` as a number although its messages have ids that are text. Both are taken: text is the id of an event,
and a number is the place of a message in the session that ``session_id`` names. A number without a session says nothing about
which message is meant, and is only kept.
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

from .request import Ask, enveloped, route
from .sessions import message_id

T = TypeVar("T")

PAGE = 1_000
SESSIONS_SEARCHED = 100
"""Sessions, those used last, in which an event is looked for when feedback does not say in which it is."""


class NewFeedback(Struct):
    """What somebody thinks."""

    feedback_text: str
    is_positive: bool = False
    issue_type: Literal["instructions", "factual", "incomplete", "tool"] | None = None
    message_id: int | str | None = None
    session_id: str | None = None


class FeedbackShown(Struct, frozen=True):
    """Feedback as kagent shows it."""

    id: str
    user_id: str
    is_positive: bool
    feedback_text: str
    issue_type: str | None
    message_id: int | str | None
    created_at: datetime
    updated_at: datetime


_NEW = msgspec.json.Decoder(NewFeedback)


@route("POST", "/api/feedback")
async def create_feedback_of_kagent(ask: Ask) -> Response:
    """Say what one thinks; about the same message again, it replaces what one thought before."""
    body = ask.body(_NEW)
    about = await _message(ask, body)
    if about is None:
        new = NewGeneralFeedback(
            feedback_text=body.feedback_text,
            is_positive=body.is_positive,
            issue_type=body.issue_type or "",
            message_number=body.message_id if isinstance(body.message_id, int) else None,
            user=ask.user,
        )
        general = await ask.tenant.general_feedback.create(new)
        return enveloped(_shown(general, general.message_number), "Feedback submitted successfully")
    if not body.feedback_text:
        raise InvalidInput("feedback_text must not be empty")
    feedback = await ask.tenant.feedback.upsert(
        about,
        user=ask.user,
        is_positive=body.is_positive,
        feedback_text=body.feedback_text,
        issue_type=body.issue_type,
        metadata={"message_id": body.message_id},
    )
    return enveloped(_shown(feedback, body.message_id), "Feedback submitted successfully")


@route("GET", "/api/feedback")
async def list_feedback_of_kagent(ask: Ask) -> Response:
    """What the user has said, the oldest first."""
    own = [column("user").eq(ask.user)]
    general = await _all(lambda cursor: ask.tenant.general_feedback.list(where=own, limit=PAGE, cursor=cursor))
    given = await _all(lambda cursor: ask.tenant.feedback.list(user=ask.user, limit=PAGE, cursor=cursor))
    found = [_shown(each, each.message_number) for each in general]
    found += [_shown(each, each.metadata.get("message_id", each.message_id)) for each in given]
    found.sort(key=lambda each: each.created_at)
    return enveloped(found, "Successfully listed feedback")


async def _all(page_of: Callable[[str | None], Coroutine[Any, Any, Page[T]]]) -> list[T]:
    found: list[T] = []
    page = await page_of(None)
    while True:
        found += page
        if page.next is None:
            return found
        page = await page_of(page.next)


async def _message(ask: Ask, body: NewFeedback) -> str | None:
    """The id of the message that feedback is about, or ``None`` if it names none.

    Raises:
        NotFound: it names one that the user does not have.
    """
    if body.session_id is None and not isinstance(body.message_id, str):
        return None
    sessions = await _sessions(ask, body.session_id)
    if isinstance(body.message_id, int):
        place = body.message_id
        for message in await ask.tenant.messages.list(sessions[0].id, after=max(place, 1) - 1, limit=1):
            if message.seq == place:
                return message.id
    elif body.message_id is None:
        return None
    for session in sessions:
        for id in (message_id(session, str(body.message_id)), str(body.message_id)):
            if await _is_in(ask, session, id):
                return id
    raise NotFound(f"there is no message {body.message_id!r}; session_id says in which session it is")


async def _sessions(ask: Ask, key: str | None) -> Sequence[Session]:
    if key is None:
        return await ask.tenant.sessions.list(user=ask.user, limit=SESSIONS_SEARCHED)
    session = await ask.tenant.sessions.find(key, user=ask.user)
    if session is None:
        raise NotFound("Session not found")
    return [session]


async def _is_in(ask: Ask, session: Session, id: str) -> bool:
    try:
        return (await ask.tenant.messages.get(id)).session_id == session.id
    except (NotFound, InvalidInput):
        return False


def _shown(given: GeneralFeedback | Feedback, about: int | str | None) -> FeedbackShown:
    return FeedbackShown(
        given.id,
        given.user,
        given.is_positive,
        given.feedback_text,
        given.issue_type or None,
        about,
        given.created_at,
        given.updated_at,
    )
