"""What driving a run tells its caller, and what it hands to whoever carries out commands."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

EndStatus = Literal["completed", "failed", "paused", "waiting", "cancelled", "released", "fenced", "busy"]
EventKind = Literal["asking", "token", "reply", "waiting", "calling", "called", "step", "compacted", "ended"]


class Ending(Struct, frozen=True):
    """How driving a run came to an end.

    ``completed``, ``failed`` and ``cancelled`` are the run's own ends; ``paused`` goes on at ``pause_until``, ``waiting`` when
    somebody resumes it, ``released`` as soon as anybody claims it. ``fenced``: somebody else drives it now. ``busy``: somebody
    else held it from the beginning. ``text`` is what the model said last.
    """

    status: EndStatus
    run_id: str
    iteration: int
    stop_reason: str | None = None
    error: str | None = None
    pause_until: datetime | None = None
    text: str = ""


class Event(Struct, frozen=True):
    """Something that happened while a run was driven. Events are told, not kept: after a crash some are told again."""

    kind: EventKind
    run_id: str
    iteration: int
    data: Any = None


class Failure(Struct, frozen=True):
    """A model that raised instead of answering."""

    error: Exception


class ToMake(Struct, frozen=True):
    """A call that is begun in the ledger and to be made now."""

    id: str
    name: str
    input: Any
    attempt: int
