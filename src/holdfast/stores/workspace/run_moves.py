"""Moves of a run between its steps: the check that a rewind may move it, and the change of its row."""

from __future__ import annotations

from typing import Any

from ...clock import to_us
from ...core import text
from ...core.rows import mapper
from ...core.scope import Scope
from ...engines.protocol import Connection
from ...errors import Conflict
from ..execution.runs.states import Run, check_holder, run_of, update_queue
from . import retention_rules
from .rewind_rows import Rewind, queries


async def check_movable(
    connection: Connection, scope: Scope, run: Run, epoch: int | None, *, after_waiting: bool
) -> Rewind | None:
    """Check that a run can be moved; return the rewind that waits for a worker, if that is allowed
    (``after_waiting``).

    Raises:
        Fenced: another worker has claimed the run since.
        Conflict: a worker drives the run, or another run of its session; or an earlier rewind is not finished.
    """
    if epoch is not None:
        check_holder(run, epoch)
    elif run.status == "running":
        raise Conflict(
            f"run {run.id} is held by {run.holder}: pause or cancel it first, or give its epoch", reason="run_held"
        )
    params = scope.params(run_id=run.id, session_id=run.session_id)
    pending = mapper(Rewind, connection.dialect)(await queries.pending_of.all(connection, params))
    waiting = pending[0] if pending and after_waiting and pending[0].waits_for_worker else None
    if pending and waiting is None:
        raise Conflict(
            f"rewind {pending[0].id} of run {run.id} is not finished: call workspaces.finish_rewinds first",
            reason="not_finished",
        )
    other = await queries.others.one(connection, params)
    if other is not None:
        raise Conflict(
            f"run {other[0]} of the same session is being driven: pause or cancel it first", reason="session_in_use"
        )
    return waiting


async def move(connection: Connection, scope: Scope, run: Run, epoch: int | None, **changes: Any) -> Run:
    """Move a run to another step. A lease holder keeps its lease; otherwise the run waits without a holder."""
    is_held = epoch is not None
    columns = {
        "status": "running" if is_held else "waiting",
        "new_epoch": run.epoch if is_held else run.epoch + 1,
        "attempts": 0,
        "lease_holder": text.escape(run.holder) if is_held else "",
        "lease_ms": run.lease_ms if is_held else 0,
        "lease_until_at": to_us(run.lease_until) if is_held and run.lease_until else None,
        "pause_until_at": None,
        "stop_reason": None,
        "error": None,
        "finished_at": None,
        **changes,
    }
    if columns["status"] in ("running", "waiting"):  # it has not ended, whatever its former outcome
        columns |= {"pause_until_at": None, "stop_reason": None, "error": None, "finished_at": None}
    row = await queries.put_run.one(connection, scope.params(run_id=run.id, epoch=run.epoch, **columns))
    assert row is not None  # the row is locked until the transaction ends
    moved = run_of(connection, row)
    if not is_held:
        await retention_rules.keep_end(connection, scope, run, moved.epoch)
    await update_queue(connection, scope, moved, scope.clock.now_us())
    return moved
