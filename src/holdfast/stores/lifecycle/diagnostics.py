"""Diagnostics: what is not as it should be with a tenant's objects, packs and snapshots, and how it is put right.

``look`` changes nothing. ``repair`` does what a prune and a sweep would have done in time: it removes what nobody needs. What was
lost cannot be made again by anybody; it is named, and left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...clock import MICROSECONDS
from ...core import packs as places
from ...core.blocking import Blocking, blocking
from ...core.queries import Queries
from ...core.store import TenantStore, in_steps, only_reads
from ...engines.protocol import Connection, Row
from ...errors import HoldfastError
from ...trees.entries import objects_of
from ..objects.objects import GRACE_S, AsyncObjects
from ..workspace.snapshots import AsyncSnapshots

PAGE = 100
"""Snapshots looked at at once."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class DamagedSnapshot(Struct, frozen=True):
    """A snapshot that cannot be restored as it was."""

    id: str
    reason: str


class DiagnosticReport(Struct, frozen=True, kw_only=True):
    """What is not as it should be. Nothing of it hurts by itself, except what is missing and damaged."""

    orphan_packs: Sequence[str] = ()
    """Files that no note speaks of: left by somebody who died."""
    unsealed_packs: Sequence[str] = ()
    """Files that were written for something that never came."""
    missing_packs: Sequence[str] = ()
    """Files that objects lie in, and that are not there."""
    unheld_objects: int = 0
    """Objects that nobody needs, and that wait to be removed."""
    dangling_refs: int = 0
    """Objects that somebody needs, and that are not there."""
    loose_layers: int = 0
    """What snapshots left that went with their runs."""
    damaged_snapshots: Sequence[DamagedSnapshot] = ()
    pending_rewinds: int = 0
    """Rewinds that are under way, or were broken off: ``holdfast workspace`` goes on with them."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost."""
        return not (self.missing_packs or self.dangling_refs or self.damaged_snapshots)

    @property
    def is_tidy(self) -> bool:
        """Whether there is nothing to repair."""
        return not (self.orphan_packs or self.unsealed_packs or self.unheld_objects or self.loose_layers)


queries = Queries(__package__, "diagnostics.sql")


class AsyncDiagnostics(TenantStore):
    """Looking after one tenant's objects, packs and snapshots."""

    @only_reads
    async def look(self) -> DiagnosticReport:
        """What is not as it should be. Every snapshot is read, so this takes its time.

        Raises:
            Unavailable: the place where packs are kept cannot be reached.
        """
        orphans, unsealed, missing = await self._packs()
        counts = await self._engine.read(self._counts)
        damaged = await self._damaged(frozenset(missing))
        return DiagnosticReport(
            orphan_packs=tuple(orphans),
            unsealed_packs=tuple(unsealed),
            missing_packs=tuple(missing),
            unheld_objects=counts[0],
            dangling_refs=counts[1],
            loose_layers=counts[2],
            damaged_snapshots=tuple(damaged),
            pending_rewinds=counts[3],
        )

    @in_steps
    async def repair(self) -> DiagnosticReport:
        """Remove what nobody needs, as far as that can be done now, and say what is left.

        Objects that nobody holds go an hour after somebody first saw that: whoever is writing one must have the time to hold it.

        Raises:
            Unavailable: the place where packs are kept cannot be reached.
        """
        while await AsyncSnapshots(self._engine, self._scope).collect():
            pass
        await AsyncObjects(self._engine, self._scope).prune()
        return await self.look()

    async def _packs(self) -> tuple[list[str], list[str], list[str]]:
        if self._scope.packs is None:
            return [], [], []
        folder = places.folder_of(self._scope.tenant)
        # Files first, then notes: what has no note by then never will have one.
        files = {
            path.rpartition("/")[2] for path in await self._scope.packs.names(folder, blocking=self._engine.blocking)
        }
        params = self._scope.params(before_at=self._scope.clock.now_us() - GRACE_S * MICROSECONDS)
        rows = await self._engine.read(lambda connection: queries.packs.all(connection, params))
        noted = {row[0] for row in rows}
        unsealed = [row[0] for row in rows if not row[1] and not row[2] and row[3]]
        missing = [row[0] for row in rows if row[1] and not row[2] and row[0] not in files]
        return sorted(files - noted), unsealed, missing

    async def _counts(self, connection: Connection) -> list[int]:
        found = []
        for query in (queries.unheld, queries.dangling, queries.loose, queries.rewinds):
            row = await query.one(connection, self._scope.params())
            found.append(0 if row is None else int(row[0]))
        return found

    async def _damaged(self, missing: frozenset[str]) -> list[DamagedSnapshot]:
        found: list[DamagedSnapshot] = []
        after = _FIRST_ID
        while True:
            page = await self._page(after)
            for snapshot_id, layer_id in page:
                reason = await self._wrong(layer_id, missing)
                if reason is not None:
                    found.append(DamagedSnapshot(snapshot_id, reason))
            if len(page) < PAGE:
                return found
            after = page[-1][0]

    async def _page(self, after: str) -> Sequence[Row]:
        params = self._scope.params(after_id=after, limit=PAGE)
        return await self._engine.read(lambda connection: queries.snapshots.all(connection, params))

    async def _wrong(self, layer_id: str, missing: frozenset[str]) -> str | None:
        """What is wrong with a tree, if anything is. Bodies are not read: that is for ``objects.verify``."""
        try:
            tree, _ = await AsyncSnapshots(self._engine, self._scope)._layer_tree(layer_id)
        except HoldfastError as error:
            return str(error)
        params = self._scope.params(layer_id=layer_id)
        rows = await self._engine.read(lambda connection: queries.bodies.all(connection, params))
        there = {bytes(digest) for digest, pack in rows if pack not in missing}
        lost = objects_of([*tree.entries.values()]) - there
        return f"{len(lost):,} of the bodies it needs are not there" if lost else None


class Diagnostics(Blocking[AsyncDiagnostics]):
    """Looking after one tenant's objects, packs and snapshots."""

    look = blocking(AsyncDiagnostics.look)
    repair = blocking(AsyncDiagnostics.repair)
