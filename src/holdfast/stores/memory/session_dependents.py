"""Crew memories that belong to a session by the name of its thread."""

from __future__ import annotations

from ...core.queries import Params, Queries
from ...core.scope import Scope
from ...core.session_dependents import SessionDependent
from ...engines.protocol import Connection

queries = Queries(__package__, "session_dependents.sql")


class MemoriesOfSession(SessionDependent):
    """Hidden, shown and removed with their session."""

    async def hide(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Hide them under the session's id."""
        await queries.run_all("hide_", connection, names)

    async def show(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Give them back their thread."""
        await queries.run_all("show_", connection, names)

    async def purge(self, connection: Connection, scope: Scope, names: Params) -> None:
        """Remove them."""
        await queries.run_all("purge_", connection, names)
