"""What follows a session when it is deleted, restored or purged.

Sessions are deleted, restored and purged together with rows that belong to them: runs, checkpoints, tasks, memories. The stores
of those build on the store of sessions, so it cannot import them. Each part of ``stores/`` that has such rows implements
``SessionDependent``; ``stores/wiring.py`` lists all of them, and the list travels in the ``Setting``. Every method is called in
the transaction that changes the session.
"""

from __future__ import annotations

from ..engines.protocol import Connection
from .queries import Params
from .scope import Scope


class SessionDependent:
    """Rows that belong to sessions. Override what applies.

    ``names`` are parameters for queries: ``tenant_id``, the session's ``id``, ``identifier`` (its key), ``user_id``,
    ``service_user_id``, ``thread_id`` (the thread named after the key), ``hidden`` (the name of that thread while the session is
    deleted), ``deleted_with`` (the session's id as text) and ``now_at``.
    """

    async def check_removable(self, connection: Connection, scope: Scope, session_id: str) -> None:
        """Refuse to have a session purged.

        Raises:
            Conflict: it must be kept.
        """

    async def is_active(self, connection: Connection, scope: Scope, session_id: str) -> bool:
        """Whether something is under way in a session, so that it is not idle."""
        return False

    async def hide(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Hide what belongs to a session that is deleted."""

    async def show(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Show it again, because the session is restored.

        Raises:
            AlreadyExists: something else has taken its name.
        """

    async def purge(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Remove what belongs to a session that is purged. It has been hidden before."""
