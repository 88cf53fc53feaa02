"""The events and endings that the loop reports to its caller, and the data it passes to its executor."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

EndStatus = Literal["completed", "failed", "paused", "waiting", "cancelled", "released", "fenced", "busy"]
EventKind = Literal["asking", "token", "reply", "waiting", "calling", "called", "step", "compacted", "ended"]


class Ending(Struct, frozen=True):
    """How driving a run ended.

    ``completed``, ``failed`` and ``cancelled`` are the run's final statuses. A ``paused`` run continues at ``pause_until``, a
    ``waiting`` one when it is resumed, a ``released`` one as soon as a worker claims it. ``fenced``: another process took the run
    over. ``busy``: another process already held it. ``text`` is the text of the model's last reply.
    """

    status: EndStatus
    run_id: str
    iteration: int
    stop_reason: str | None = None
    error: str | None = None
    pause_until: datetime | None = None
    text: str = ""


class Event(Struct, frozen=True):
    """Something that happened while a run was driven. Events are not stored, and some are emitted again after a crash."""

    kind: EventKind
    run_id: str
    iteration: int
    data: Any = None


class ModelFailure(Struct, frozen=True):
    """The error of a model that raised instead of answering."""

    error: Exception


class BegunCall(Struct, frozen=True):
    """A call that is recorded as begun and must be made now."""

    id: str
    name: str
    input: Any
    attempt: int
