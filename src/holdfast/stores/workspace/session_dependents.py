"""Snapshots, rewinds and retention settings: they belong to runs, and so to sessions."""

from __future__ import annotations

from ...core.queries import Params, Queries
from ...core.scope import Scope
from ...core.session_dependents import SessionDependent
from ...engines.protocol import Connection
from ...errors import Conflict
from . import retention_rules, snapshots

REASON = "the run was deleted"
"""The reason that the activity log gives for the removal of a snapshot with its run."""

queries = Queries(__package__, "session_dependents.sql")


class WorkspacesOfSession(SessionDependent):
    """Keeps sessions and runs that are held, and removes what belongs to the runs of others."""

    async def check_removable(self, connection: Connection, scope: Scope, session_id: str) -> None:
        """Refuse to remove a session that is held.

        Raises:
            Conflict: a hold exists.
        """
        await retention_rules.check_not_held(connection, scope, session_id=session_id)

    async def purge(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Remove the rows of the session's runs. Their layers are removed by the next sweep."""
        await queries.run_all("purge_", connection, names)

    async def check_run_removable(self, connection: Connection, scope: Scope, run_id: str, session_id: str) -> None:
        """Refuse to remove a run that is held, or whose files are being restored.

        Raises:
            Conflict: a hold exists, or a rewind is not finished.
        """
        await retention_rules.check_not_held(connection, scope, session_id=session_id, run_id=run_id)
        row = await queries.open_rewind.one(connection, scope.params(run_id=run_id))
        if row is not None:
            raise Conflict(
                f"rewind {row[0]} of run {run_id} is not finished: call workspaces.finish_rewinds first",
                reason="not_finished",
            )

    async def purge_run(self, connection: Connection, scope: Scope, run_id: str) -> None:
        """Remove a run's snapshots, with what no other snapshot needs of them, its rewinds and its retention settings."""
        params = scope.params(run_id=run_id)
        ids = [row[0] for row in await queries.snapshots.all(connection, params)]
        await snapshots.delete(connection, scope, ids, reason=REASON)
        await queries.run_all("delete_", connection, params)
