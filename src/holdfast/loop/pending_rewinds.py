"""Bringing the files of a run to where it is, before anything else, if it was rewound."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

from holdfast.types import Rewind, Run

from . import commands as do
from .commands import Command


def bring_files(run: Run, path: str | os.PathLike[str] | None) -> Generator[Command, Any, str | None]:
    """Finish a rewind of a run that is pending. Returns ``None``, or why the run cannot go on here.

    A loop without a workspace cannot finish one that has files. It lets go of the run, which then waits until somebody brings the
    files back and resumes it: the model must not be asked about files of another step.
    """
    pending: Sequence[Rewind] = yield do.PendingRewinds(run.id)
    if not pending:
        return None
    if path is not None or pending[0].target_snapshot is None:
        yield do.FinishRewind(run.id, path)
        return None
    yield do.PauseRun(run.id, run.epoch, None)
    return f"this loop has no workspace, and rewind {pending[0].id} is pending: {pending[0].pending_reason}"
