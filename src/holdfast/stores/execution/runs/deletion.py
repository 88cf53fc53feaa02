"""Deleting a run: one transaction removes its own rows; rows shared with its session stay."""

from __future__ import annotations

from typing import Any

from ....core.actor_context import ActorContext
from ....core.queries import Queries
from ....core.scope import Scope
from ....engines.protocol import Connection
from ....errors import Conflict
from ....ids import parse as parse_id
from ...objects.activity import log_change
from . import states
from .states import FINAL, lock_run, run_not_found, run_of

queries = Queries(__package__, "deletion.sql")


async def delete(connection: Connection, scope: Scope, acting: ActorContext, run_id: str) -> None:
    """Delete a run that has ended.

    Raises:
        NotFound: the run does not exist, or its session is deleted.
        Conflict: it has not ended, the run that has started it has not, or a part of the stores must keep it.
    """
    params = scope.params(run_id=parse_id(run_id, "run id"))
    row = await states.queries.get.one(connection, params)
    if row is None:
        raise run_not_found(run_id)
    await _check_parent(connection, scope, run_of(connection, row).parent_run_id)
    run = await lock_run(connection, scope, run_id)
    if run.status not in FINAL:
        raise Conflict(f"run {run.id} is {run.status}: cancel it first, or wait until it has ended", reason="status")
    for dependent in scope.session_dependents:
        await dependent.check_run_removable(connection, scope, run.id, run.session_id)
    for dependent in scope.session_dependents:
        await dependent.purge_run(connection, scope, run.id)
    await queries.run_all("delete_", connection, params)
    details: dict[str, Any] = {"session_id": run.session_id, "agent": run.agent, "status": run.status}
    await log_change(connection, scope, acting, "run.deleted", "run", run.id, details)


async def _check_parent(connection: Connection, scope: Scope, parent_id: str | None) -> None:
    """Check that no run still needs the outcome: its call would start the same work a second time.

    The parent is locked before the child, as everywhere.
    """
    row = None if parent_id is None else await states.queries.lock.one(connection, scope.params(run_id=parent_id))
    parent = None if row is None else run_of(connection, row[:-1])
    if parent is not None and parent.status not in FINAL:
        raise Conflict(
            f"run {parent.id}, which has started this run, is {parent.status}: cancel it first, or wait until it has ended",
            reason="parent_active",
        )
