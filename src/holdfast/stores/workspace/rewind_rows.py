"""Row types of rewinds, with the state of the run before the rewind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ...clock import to_us
from ...core import text
from ...core.checks import MAX_NUMBER, whole_number
from ...core.queries import Queries
from ...errors import Conflict
from ...ids import Id
from ..execution.runs import states
from ..execution.runs.states import Run

RewindStatus = Literal["rewinding", "rewound", "redoing", "redone"]
OPEN: frozenset[RewindStatus] = frozenset({"rewinding", "redoing"})


class Rewind(Struct, frozen=True):
    """A run taken from one step back to another.

    ``snapshot`` is the target of the directory, ``dirty`` its state before. In the states ``rewinding`` and
    ``redoing`` the directory has not been restored yet, and ``pending_reason`` says why. Without a ``path``, the
    worker that next claims the run restores its workspace to the snapshot.
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
    def target_snapshot(self) -> str | None:
        """The snapshot that the directory must still be restored to, or ``None``."""
        return {"rewinding": self.snapshot, "redoing": self.dirty}.get(self.status)

    @property
    def waits_for_worker(self) -> bool:
        """Whether the next worker restores its workspace to the wanted snapshot; until then no files are changed."""
        return self.status in OPEN and self.path is None and self.snapshot is not None


class RunBefore(Struct, frozen=True):
    """The state of a run before a rewind. Times are in microseconds."""

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
    """A rewind with the data needed to undo it."""

    rewind: Rewind
    anchor: str
    """Identifies the step that ``to_step`` was."""
    before: RunBefore
    children: Sequence[tuple[str, str]]
    """Child runs that were detached, and the calls that had started them."""


queries = Queries(__package__, "rewinds.sql", Rewind, Run)


def run_before(run: Run) -> RunBefore:
    """Return the current state of a run."""
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
    """Return the columns that restore a run's earlier state, except its status, which is restored with the directory."""
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
    """Return whether a run takes the status it had before a rewind, now that the rewind is undone."""
    if run.status == "waiting":
        return before.status not in ("running", "waiting")
    return before.finished_at is not None and run.finished_at is None  # it had ended, so no worker resumes it


def pending_reason(path: str | None, snapshot: str | None) -> str:
    """Return why a rewind that was just begun is pending."""
    if snapshot is None:
        return "not finished yet"
    where = (
        "the worker that next claims the run restores its workspace" if path is None else f"{path} is being restored"
    )
    return text.escape(f"{where} to snapshot {snapshot}")


def _us(at: datetime | None) -> int | None:
    return None if at is None else to_us(at)


def check_same(rewind: Rewind, run_id: str, step: int) -> Rewind:
    """Return an existing rewind if it is the one requested again.

    Raises:
        Conflict: it is another rewind.
    """
    if (rewind.run_id, rewind.to_step) != (run_id, step):
        raise Conflict(
            f"rewind {rewind.id} already exists, of run {rewind.run_id} to step {rewind.to_step}",
            reason="other_content",
        )
    return rewind


def parse_step(step: int) -> int:
    """Check the number of a step given by the caller.

    Raises:
        InvalidInput: it is not a valid step number.
    """
    return whole_number(step, "to_step", maximum=MAX_NUMBER - 1)
