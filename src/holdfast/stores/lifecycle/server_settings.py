"""Settings shared by all processes on one database: retention defaults, and the lease of the process that does
periodic work.

A default stored here takes precedence over the limits a process was started with. So a command that is given
``--snapshots-per-run`` sets the number for every other command, and no two processes can disagree about which
snapshots to remove.
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
"""The key in the table; written by earlier releases, so it stays."""
LEADER = "leader"
_MAX_NUMBER = 2**31

queries = Queries(__package__, "server_settings.sql")


class AsyncServerSettings(Store):
    """Settings and leases shared by all processes on one database."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    async def set_snapshots_per_run(self, number: int) -> None:
        """Set the number of snapshots kept for a run, for every tenant and run without a policy of its own.

        Raises:
            InvalidInput: ``number`` is not a positive integer.
        """
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < _MAX_NUMBER:
            raise InvalidInput(
                f"snapshots_per_run must be a positive integer, not {number!r}", field="snapshots_per_run"
            )
        if await self._get(SNAPSHOTS_PER_RUN) != str(number):
            await self._set(SNAPSHOTS_PER_RUN, str(number))

    @writes
    async def lead(self, connection: Connection, holder: str, *, lease_s: int) -> bool:
        """Take or renew the leader's lease for ``lease_s`` seconds; return whether this process is the leader now."""
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
        """Give up the leader's lease, so that another process can take it at once."""
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
    """Settings and leases shared by all processes on one database."""

    set_snapshots_per_run = blocking(AsyncServerSettings.set_snapshots_per_run)
    lead = blocking(AsyncServerSettings.lead)
    resign = blocking(AsyncServerSettings.resign)
