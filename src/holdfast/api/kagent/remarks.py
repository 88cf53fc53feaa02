"""Feedback as kagent takes it: about a number, or about nothing in particular."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import Remark

from .exchange import Ask, enveloped, route

PAGE = 1_000


class NewFeedback(Struct):
    """What somebody thinks."""

    feedback_text: str
    is_positive: bool = False
    issue_type: Literal["instructions", "factual", "incomplete", "tool"] | None = None
    message_id: int | None = None


class FeedbackShown(Struct, frozen=True):
    """Feedback as kagent shows it."""

    id: str
    user_id: str
    is_positive: bool
    feedback_text: str
    issue_type: str | None
    message_id: int | None
    created_at: datetime
    updated_at: datetime


_NEW = msgspec.json.Decoder(NewFeedback)


@route("POST", "/api/feedback")
async def create_feedback_of_kagent(ask: Ask) -> Response:
    """Say what one thinks."""
    body = ask.body(_NEW)
    made = await ask.tenant.remarks.create(
        body.feedback_text,
        is_positive=body.is_positive,
        issue_type=body.issue_type,
        message_number=body.message_id,
        user=ask.user,
    )
    return enveloped(_shown(made), "Feedback submitted successfully")


@route("GET", "/api/feedback")
async def list_feedback_of_kagent(ask: Ask) -> Response:
    """What the user has said, the oldest first."""
    found: list[Remark] = []
    cursor: str | None = None
    while True:
        page = await ask.tenant.remarks.list(user=ask.user, limit=PAGE, cursor=cursor)
        found += page
        if page.next is None:
            break
        cursor = page.next
    return enveloped([_shown(each) for each in found], "Successfully listed feedback")


def _shown(remark: Remark) -> FeedbackShown:
    return FeedbackShown(
        remark.id,
        remark.user,
        remark.is_positive,
        remark.feedback_text,
        remark.issue_type or None,
        remark.message_number,
        remark.created_at,
        remark.created_at,
    )
