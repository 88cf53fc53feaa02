"""General feedback: users' opinions of an agent's work that are not about a stored message.

Feedback on a message is stored with its message (``feedback``). General feedback is independent of messages; it may carry a
``message_number`` that the caller chose, to refer to a message.
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
    """A user's opinion. ``issue_type`` is empty if there is no problem."""

    id: Annotated[Id, Key()]
    user: Annotated[str, Key(), Column("user_id"), Limited("name_bytes"), Filterable()]
    is_positive: Annotated[bool, Filterable()]
    feedback_text: Annotated[str, Limited("text_bytes", empty=False), Searchable()]
    issue_type: Annotated[IssueType | Literal[""], Filterable()]
    message_number: Annotated[int | None, Filterable()]
    created_at: datetime
    updated_at: datetime


class NewGeneralFeedback(Struct, frozen=True):
    """General feedback to create."""

    feedback_text: str
    is_positive: bool
    issue_type: IssueType | Literal[""] = ""
    message_number: int | None = None
    user: str = ""
    id: str | UnsetType = UNSET


class GeneralFeedbackChange(Struct, frozen=True):
    """The fields of general feedback to change."""

    feedback_text: str | UnsetType = UNSET
    is_positive: bool | UnsetType = UNSET
    issue_type: IssueType | Literal[""] | UnsetType = UNSET
    message_number: int | UnsetType | None = UNSET


class AsyncGeneralFeedbackStore(AsyncRecords[GeneralFeedback, NewGeneralFeedback, GeneralFeedbackChange]):
    """The general feedback of one tenant's users, oldest first. The user is part of the key."""

    table, noun, nouns = "general_feedback", "general feedback", "general feedback"


class GeneralFeedbackStore(Records[GeneralFeedback, NewGeneralFeedback, GeneralFeedbackChange]):
    """The general feedback of one tenant's users, oldest first. The user is part of the key."""
