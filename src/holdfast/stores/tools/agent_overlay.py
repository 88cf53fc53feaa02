"""Records for all agents, and records of one agent that shadow those of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import Struct

from ...core.blocking import blocking
from ...core.overlay import OverlayTable
from ...core.paging import Page
from ...core.records import AsyncSecretRecords, SecretRecords
from ...core.records.record_rows import R
from ...core.records.secrets import wrap_secrets
from ...core.records.store import C, N
from ...core.store import reads
from ...engines.protocol import Connection
from ...errors import NotFound
from ..agents.agents import has_agent
from ..objects.activity import Audited


class AsyncAgentOverlay(Audited, AsyncSecretRecords[R, N, C]):
    """Base of stores whose records apply to one agent, or to all agents if their field ``agent`` is empty.

    A subclass sets ``overlay``; its condition selects the records that are used, or that hide others.
    """

    overlay: ClassVar[OverlayTable[Any]]

    @reads
    async def resolve(self, connection: Connection, name: str, agent: str = "") -> R | None:
        """Return the enabled record of this name that an agent uses: its own or else the one for all agents; or ``None``.

        Raises:
            NotFound: the agent does not exist.
        """
        return await self._used(connection, name, agent)

    @reads
    async def effective(
        self, connection: Connection, agent: str = "", *, limit: int | None = None, cursor: str | None = None
    ) -> Page[R]:
        """List the enabled records that an agent uses, by name; without an agent, those for all agents. With ``limit``, a page.

        Raises:
            NotFound: the agent does not exist.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        levels = await self._levels(connection, agent)
        page = await self.overlay.union(connection, self._scope, levels, limit=limit, cursor=cursor)
        return Page(self._enabled(page), page.next)

    async def _used(self, connection: Connection, name: str, agent: str) -> R | None:
        levels = await self._levels(connection, agent)
        row = await self.overlay.first(connection, self._scope, name, levels)
        return next(iter(self._enabled([row] if row is not None else [])), None)

    async def _levels(self, connection: Connection, agent: str) -> list[str]:
        """Return the levels to look through, after checking that the agent exists."""
        if agent == "":
            return [""]
        params = self.overlay.params({"agent": agent}, self._scope.limits)
        if not await has_agent(connection, self._scope.params(id=params["agent_id"])):
            raise NotFound(f"agent {agent!r} does not exist", noun="agent", key=agent)
        return [agent, ""]

    def _enabled(self, rows: list[R]) -> list[R]:
        enabled: list[Any] = [row for row in rows if row.is_enabled]  # type: ignore[attr-defined]
        return [*wrap_secrets(enabled, self.declared, self.secrets, self._scope)]

    async def _after_save(self, connection: Connection, given: Struct, row: R) -> Sequence[str]:
        self._check(given, row)
        return ()

    def _check(self, given: Struct, row: R) -> None:
        """Check the fields of a saved record against each other; an error undoes the change.

        Raises:
            InvalidInput: it is not valid.
        """


class AgentOverlay(SecretRecords[R, N, C]):
    """Base of stores whose records apply to one agent or to all agents, for synchronous programs."""

    resolve = blocking(AsyncAgentOverlay[R, N, C].resolve)
    effective = blocking(AsyncAgentOverlay[R, N, C].effective)
