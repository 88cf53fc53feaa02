"""Finishes a pending rewind of a run before the loop does anything else."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.types import Rewind, Run

from . import commands as do
from .commands import CommandGenerator


def finish_pending_rewind(run: Run, path: str | os.PathLike[str] | None) -> CommandGenerator[str | None]:
    """Finish a pending rewind of a run. Return ``None``, or the reason why the run cannot continue.

    A loop without a workspace cannot finish a rewind that has files to restore. It pauses and releases the run, which then waits
    until another process restores the files and resumes it: the model must not be asked about files of another step.
    """
    pending: Sequence[Rewind] = yield do.PendingRewinds(run.id)
    if not pending:
        return None
    if path is not None or pending[0].target_snapshot is None:
        yield do.FinishRewind(run.id, path)
        return None
    yield do.PauseRun(run.id, run.epoch, None)
    return f"this loop has no workspace, and rewind {pending[0].id} is pending: {pending[0].pending_reason}"
