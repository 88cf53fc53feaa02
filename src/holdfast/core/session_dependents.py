"""Session dependents: the rows that are hidden, restored and purged together with a session, or deleted with one of its runs.

Runs, checkpoints, tasks and memories belong to sessions, but their stores build on the store of sessions, so it cannot import
them; nor can the store of runs import that of snapshots. Each package of ``stores/`` that has such rows implements
``SessionDependent``; ``stores/wiring.py`` lists the implementations, and the list is passed in the ``Setting``. Every method is
called in the transaction that changes the session or the run.
"""

from __future__ import annotations

from ..engines.protocol import Connection
from .queries import Params
from .scope import Scope


class SessionDependent:
    """Rows that belong to sessions. Override the methods that apply.

    ``names`` are query parameters: ``tenant_id``, the session's ``id``, ``identifier`` (its key), ``user_id``,
    ``service_user_id``, ``thread_id`` (the thread named after the key), ``hidden`` (the name of that thread while the session is
    deleted), ``deleted_with`` (the session's id as text) and ``now_at``.
    """

    async def check_removable(self, connection: Connection, scope: Scope, session_id: str) -> None:
        """Raise if a session must not be purged.

        Raises:
            Conflict: it must be kept.
        """

    async def is_active(self, connection: Connection, scope: Scope, session_id: str) -> bool:
        """Return whether work is in progress in a session, so that it is not idle."""
        return False

    async def hide(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Hide the rows of a session that is being deleted."""

    async def show(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Show the rows again, because the session is being restored.

        Raises:
            AlreadyExists: their name was taken in the meantime.
        """

    async def purge(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Remove the rows of a session that is being purged. They have been hidden before."""

    async def check_run_removable(self, connection: Connection, scope: Scope, run_id: str, session_id: str) -> None:
        """Raise if a run must not be deleted.

        Raises:
            Conflict: it must be kept, or work on it is not finished.
        """

    async def purge_run(self, connection: Connection, scope: Scope, run_id: str) -> None:
        """Remove the rows of a run that is being deleted."""
