"""What is known of a rewind, and of the run as it was before it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ...clock import to_us
from ...core import text
from ...core.checks import MAX_NUMBER, whole_number
from ...errors import Conflict
from ...ids import Id
from ..execution.runs import states
from ..execution.runs.states import Run

RewindStatus = Literal["rewinding", "rewound", "redoing", "redone"]
OPEN: frozenset[RewindStatus] = frozenset({"rewinding", "redoing"})


class Rewind(Struct, frozen=True):
    """A run taken from one step back to another.

    ``snapshot`` is what the tree is brought to, ``dirty`` what it was before. ``rewinding`` and ``redoing`` say that the tree is
    not there yet, and ``pending_reason`` says why. ``path`` is the directory; without one, the worker that next claims the run
    brings its workspace to the snapshot.
    """

    id: Id
    run_id: Id
    from_step: int
    to_step: int
    status: RewindStatus
    path: str | None
    snapshot: str | None
    dirty: str | None
    pending_reason: str | None
    branch_before: int
    branch_after: int
    created_at: datetime
    finished_at: datetime | None

    @property
    def wanted(self) -> str | None:
        """The snapshot that the tree is to be brought to, if it is not there yet."""
        return {"rewinding": self.snapshot, "redoing": self.dirty}.get(self.status)

    @property
    def waits_for_worker(self) -> bool:
        """Whether the next worker brings its workspace to the wanted snapshot; until then no files are changed."""
        return self.status in OPEN and self.path is None and self.snapshot is not None


class RunBefore(Struct, frozen=True):
    """A run as it was before it was taken back. Times are microseconds."""

    status: states.Status
    iteration: int
    attempts: int
    pause_until: int | None
    stop_reason: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    checkpointed_at: int | None
    finished_at: int | None


class StoredRewind(Struct, frozen=True):
    """A rewind with what is needed to undo it."""

    rewind: Rewind
    anchor: str
    """Which step ``to_step`` was."""
    before: RunBefore
    children: Sequence[tuple[str, str]]
    """Runs below that were let go, and the calls they were started for."""


def run_before(run: Run) -> RunBefore:
    """A run as it is now."""
    return RunBefore(
        run.status,
        run.iteration,
        run.attempts,
        _us(run.pause_until),
        run.stop_reason,
        run.error,
        run.input_tokens,
        run.output_tokens,
        _us(run.checkpointed_at),
        _us(run.finished_at),
    )


def changes(before: RunBefore) -> dict[str, Any]:
    """A run as it was, but for its status: that comes when the tree is there."""
    return {
        "iteration": before.iteration,
        "attempts": before.attempts,
        "pause_until_at": before.pause_until,
        "stop_reason": None if before.stop_reason is None else text.escape(before.stop_reason),
        "error": None if before.error is None else text.escape(before.error),
        "input_tokens": before.input_tokens,
        "output_tokens": before.output_tokens,
        "checkpointed_at": before.checkpointed_at,
        "finished_at": before.finished_at,
    }


def regains_status(run: Run, before: RunBefore) -> bool:
    """Whether a run takes up the status it had before a rewind, now that it is redone."""
    if run.status == "waiting":
        return before.status not in ("running", "waiting")
    return before.finished_at is not None and run.finished_at is None  # it had ended: nobody drives it on


def pending_reason(path: str | None, snapshot: str | None) -> str:
    """Why a rewind that was just begun is pending."""
    if snapshot is None:
        return "not finished yet"
    where = "the worker that next claims the run brings its workspace" if path is None else f"{path} is being brought"
    return text.escape(f"{where} to snapshot {snapshot}")


def _us(at: datetime | None) -> int | None:
    return None if at is None else to_us(at)


def check_same(found: Rewind, run_id: str, step: int) -> Rewind:
    """A rewind that is there already, if it is the one that is asked for again.

    Raises:
        Conflict: it is another.
    """
    if (found.run_id, found.to_step) != (run_id, step):
        raise Conflict(f"there is another rewind {found.id}, of run {found.run_id} to step {found.to_step}")
    return found


def parse_step(step: int) -> int:
    """The number of a step that the caller gave.

    Raises:
        InvalidInput: it is none.
    """
    return whole_number(step, "to_step", maximum=MAX_NUMBER - 1)
