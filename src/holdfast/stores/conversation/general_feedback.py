"""General feedback: what people think of an agent's work where no message is stored that it could be about.

Feedback on a message is stored with its message (``feedback``). General feedback stands by itself; it may have the number by
which its author's program knows what it is about.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.records import AsyncRecords, Filterable, Key, Limited, Records, Searchable
from ...core.rows import Column
from ...ids import Id
from .feedback import IssueType


class GeneralFeedback(Struct, frozen=True):
    """What a user thinks. ``issue_type`` is empty when nothing is wrong."""

    id: Annotated[Id, Key()]
    user: Annotated[str, Key(), Column("user_id"), Limited("name_bytes"), Filterable()]
    is_positive: Annotated[bool, Filterable()]
    feedback_text: Annotated[str, Limited("text_bytes", empty=False), Searchable()]
    issue_type: Annotated[IssueType | Literal[""], Filterable()]
    message_number: Annotated[int | None, Filterable()]
    created_at: datetime
    updated_at: datetime


class NewGeneralFeedback(Struct, frozen=True):
    """Feedback to store."""

    feedback_text: str
    is_positive: bool
    issue_type: IssueType | Literal[""] = ""
    message_number: int | None = None
    user: str = ""
    id: str | UnsetType = UNSET


class GeneralFeedbackChange(Struct, frozen=True):
    """What to change of general feedback."""

    feedback_text: str | UnsetType = UNSET
    is_positive: bool | UnsetType = UNSET
    issue_type: IssueType | Literal[""] | UnsetType = UNSET
    message_number: int | UnsetType | None = UNSET


class AsyncGeneralFeedbacks(AsyncRecords[GeneralFeedback, NewGeneralFeedback, GeneralFeedbackChange]):
    """The general feedback of one tenant's users, oldest first. The user is part of the key."""

    table, noun, nouns = "general_feedback", "general feedback", "general feedback"


class GeneralFeedbacks(Records[GeneralFeedback, NewGeneralFeedback, GeneralFeedbackChange]):
    """The general feedback of one tenant's users, oldest first. The user is part of the key."""
