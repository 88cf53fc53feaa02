"""Runs, checkpoints, flows and A2A tasks that belong to a session, by its id or by the name of its thread."""

from __future__ import annotations

from ...core.queries import Params, Queries
from ...core.scope import Scope
from ...core.session_dependents import SessionDependent
from ...engines.protocol import Connection
from .checkpoints import piece_log
from .checkpoints.reader import queries as checkpoint_queries
from .runs.states import dequeue

queries = Queries(__package__, "session_dependents.sql")


class ExecutionOfSession(SessionDependent):
    """Rows that are hidden, restored and purged with their session; a run is hidden because it is read through its session."""

    async def is_active(self, connection: Connection, scope: Scope, session_id: str) -> bool:
        """Return whether the session has a run that has not ended."""
        return await queries.active_run.one(connection, scope.params(id=session_id)) is not None

    async def hide(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Hide tasks, checkpoints and flows under the session's id."""
        await queries.run_all("hide_", connection, names)

    async def show(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Restore the names of hidden tasks, checkpoints and flows.

        Raises:
            AlreadyExists: one of the names is taken now.
        """
        await queries.run_all("show_", connection, names)

    async def purge(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Remove all rows of the session, with its runs and their queue entries."""
        await dequeue(connection, scope, [row[0] for row in await queries.run_ids.all(connection, names)])
        await queries.run_all("purge_", connection, names)
        for user in {names["user_id"]: None, names["service_user_id"]: None}:
            key = {**names, "user_id": user, "thread_id": names["hidden"]}
            log = await piece_log.lock(connection, key)
            if log is not None:
                thread = {**key, "thread": log.thread}
                await checkpoint_queries.delete_all.all(connection, thread)
                await checkpoint_queries.delete_all_writes.all(connection, thread)
                await piece_log.delete_thread(connection, scope, log)
