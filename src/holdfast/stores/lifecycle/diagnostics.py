"""Diagnostics: find and repair defects in a tenant's objects, packs and snapshots.

``look`` changes nothing. ``repair`` does what a prune and a sweep would have done in time: it removes data that
nothing needs. Lost data cannot be restored; it is reported and left unchanged.
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
"""Snapshots read at once."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class DamagedSnapshot(Struct, frozen=True):
    """A snapshot that cannot be restored as captured."""

    id: str
    reason: str


class DiagnosticReport(Struct, frozen=True, kw_only=True):
    """The defects found. Only missing and damaged data is harmful; everything else merely takes space."""

    orphan_packs: Sequence[str] = ()
    """Pack files without a row in the database, left by a process that was killed."""
    unsealed_packs: Sequence[str] = ()
    """Pack files whose objects were never committed."""
    missing_packs: Sequence[str] = ()
    """Pack files that contain objects and do not exist."""
    unheld_objects: int = 0
    """Number of objects that nothing references, and that will be removed."""
    dangling_refs: int = 0
    """Number of references to objects that do not exist."""
    loose_layers: int = 0
    """Number of layers left by snapshots that were removed together with their runs."""
    damaged_snapshots: Sequence[DamagedSnapshot] = ()
    pending_rewinds: int = 0
    """Rewinds in progress or interrupted: ``holdfast workspace`` finishes them."""

    @property
    def is_sound(self) -> bool:
        """Whether no data was lost."""
        return not (self.missing_packs or self.dangling_refs or self.damaged_snapshots)

    @property
    def is_tidy(self) -> bool:
        """Whether there is nothing to repair."""
        return not (self.orphan_packs or self.unsealed_packs or self.unheld_objects or self.loose_layers)


queries = Queries(__package__, "diagnostics.sql")


class AsyncDiagnostics(TenantStore):
    """Diagnostics of one tenant's objects, packs and snapshots."""

    @only_reads
    async def look(self) -> DiagnosticReport:
        """Report defects. Every snapshot is read, so this takes time.

        Raises:
            Unavailable: the storage of packs cannot be reached.
        """
        orphans, unsealed, missing = await self._check_packs()
        counts = await self._engine.read(self._counts)
        damaged = await self._find_damaged(frozenset(missing))
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
        """Remove data that nothing needs, as far as possible now, and report the defects that are left.

        An object without references is removed one hour after it was first seen without any: a writer that has just
        stored it must have time to reference it.

        Raises:
            Unavailable: the storage of packs cannot be reached.
        """
        while await AsyncSnapshots(self._engine, self._scope).collect():
            pass
        await AsyncObjects(self._engine, self._scope).prune()
        return await self.look()

    async def _check_packs(self) -> tuple[list[str], list[str], list[str]]:
        if self._scope.packs is None:
            return [], [], []
        folder = places.folder_of(self._scope.tenant)
        # List the files first, then the rows: a file without a row by then will never get one.
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
        counts = []
        for query in (queries.unheld, queries.dangling, queries.loose, queries.rewinds):
            row = await query.one(connection, self._scope.params())
            counts.append(0 if row is None else int(row[0]))
        return counts

    async def _find_damaged(self, missing: frozenset[str]) -> list[DamagedSnapshot]:
        damaged: list[DamagedSnapshot] = []
        after = _FIRST_ID
        while True:
            page = await self._page(after)
            for snapshot_id, layer_id in page:
                reason = await self._defect_of(layer_id, missing)
                if reason is not None:
                    damaged.append(DamagedSnapshot(snapshot_id, reason))
            if len(page) < PAGE:
                return damaged
            after = page[-1][0]

    async def _page(self, after: str) -> Sequence[Row]:
        params = self._scope.params(after_id=after, limit=PAGE)
        return await self._engine.read(lambda connection: queries.snapshots.all(connection, params))

    async def _defect_of(self, layer_id: str, missing: frozenset[str]) -> str | None:
        """Return the defect of a tree, or ``None``. The content of objects is not read: ``objects.verify`` does
        that.
        """
        try:
            tree, _ = await AsyncSnapshots(self._engine, self._scope)._layer_tree(layer_id)
        except HoldfastError as error:
            return str(error)
        params = self._scope.params(layer_id=layer_id)
        rows = await self._engine.read(lambda connection: queries.bodies.all(connection, params))
        available = {bytes(digest) for digest, pack in rows if pack not in missing}
        missing_bodies = objects_of([*tree.entries.values()]) - available
        return f"{len(missing_bodies):,} of the objects it needs do not exist" if missing_bodies else None


class Diagnostics(Blocking[AsyncDiagnostics]):
    """Diagnostics of one tenant's objects, packs and snapshots."""

    look = blocking(AsyncDiagnostics.look)
    repair = blocking(AsyncDiagnostics.repair)
