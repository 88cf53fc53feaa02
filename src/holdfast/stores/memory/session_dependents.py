"""Crew memories that belong to a session by its thread id."""

from __future__ import annotations

from ...core.queries import Params, Queries
from ...core.scope import Scope
from ...core.session_dependents import SessionDependent
from ...engines.protocol import Connection

queries = Queries(__package__, "session_dependents.sql")


class MemoriesOfSession(SessionDependent):
    """Hides, shows and purges crew memories with their session."""

    async def hide(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Hide the memories of a session by moving them to a thread id made of the session's id."""
        await queries.run_all("hide_", connection, names)

    async def show(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Show the memories again under their thread id."""
        await queries.run_all("show_", connection, names)

    async def purge(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Delete the memories of a session."""
        await queries.run_all("purge_", connection, names)
