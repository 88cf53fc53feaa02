"""What all processes on one database agree on: the defaults of retention, and which of them does the periodic work.

A default that is stored here wins over the limits that a process was started with. So a command that is given
``--snapshots-per-run`` sets it for every other command, and no two of them can disagree about what must go.
"""

from __future__ import annotations

from ...clock import MICROSECONDS
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.queries import Queries
from ...core.store import Store, reads, writes
from ...engines.protocol import Connection, Engine
from ...errors import InvalidInput

SNAPSHOTS_PER_RUN = "checkpoints_per_run"
LEADER = "leader"
_MAX_NUMBER = 2**31

queries = Queries(__package__, "server_settings.sql")


class AsyncServerSettings(Store):
    """The settings and leases that all processes on one database share."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    async def set_snapshots_per_run(self, number: int) -> None:
        """Keep so many snapshots of a run, for every tenant and run that has no policy of its own.

        Raises:
            InvalidInput: it is no whole number from 1 on.
        """
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < _MAX_NUMBER:
            raise InvalidInput(f"snapshots_per_run must be a whole number from 1 on, not {number!r}")
        if await self._get(SNAPSHOTS_PER_RUN) != str(number):
            await self._set(SNAPSHOTS_PER_RUN, str(number))

    @writes
    async def lead(self, connection: Connection, holder: str, *, lease_s: int) -> bool:
        """Become the leader of all processes on this database for so many seconds, or stay it; whether that worked."""
        now, lasts = self._setting.clock.now_us(), lease_s * MICROSECONDS
        params = {
            "name": LEADER,
            "holder": scopes.name(holder, "holder", self._setting.limits),
            "now_at": now,
            "until_at": now + lasts,
            "latest_at": now + 2 * lasts,
        }
        return await queries.lead.one(connection, params) is not None

    @writes
    async def resign(self, connection: Connection, holder: str) -> None:
        """Let another process lead at once."""
        name = scopes.name(holder, "holder", self._setting.limits)
        await queries.resign.all(connection, {"name": LEADER, "holder": name})

    @reads
    async def _get(self, connection: Connection, name: str) -> str | None:
        row = await queries.get.one(connection, {"name": name})
        return None if row is None else str(row[0])

    @writes
    async def _set(self, connection: Connection, name: str, value: str) -> None:
        await queries.set.all(connection, {"name": name, "value": value})


class ServerSettings(Blocking[AsyncServerSettings]):
    """The settings and leases that all processes on one database share."""

    set_snapshots_per_run = blocking(AsyncServerSettings.set_snapshots_per_run)
    lead = blocking(AsyncServerSettings.lead)
    resign = blocking(AsyncServerSettings.resign)
