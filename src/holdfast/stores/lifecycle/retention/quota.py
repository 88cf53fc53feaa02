"""The space that a tenant's snapshots take, and how it is reduced to the quota.

The quota counts content: the stored bytes of the objects that the files of the snapshots consist of, each object
once, however many snapshots need it. So the snapshots to remove are found from the other end: first come the
snapshots that must stay, then the others, the newest first, as long as the additional objects they need fit.
Everything not newer than the first snapshot that does not fit is removed. Only objects that fit are ever kept in
memory, so memory is bounded by the quota and not by the number of snapshots.

A removed snapshot may leave a layer that other layers are based on: those are squashed (``workspace.squash``), so
that objects no snapshot needs are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ....clock import to_us
from ....core.filters import any_of, id_list
from ....core.queries import Queries
from ....core.scope import Scope
from ....engines.protocol import Connection, Engine
from ....errors import Corrupt, NotFound
from ....trees.entries import objects_of
from ...workspace import retention_rules as rules
from ...workspace.retention_rules import MIB, Hold
from ...workspace.snapshots import AsyncSnapshots

PAGE = 100
"""Snapshots read at once."""
Position = tuple[int, str]
"""The sort key of a snapshot among all: when it was taken, in microseconds, and its id."""
_END: Position = (253_402_300_799_999_999, "ffffffff-ffff-ffff-ffff-ffffffffffff")

queries = Queries(__package__, "retention.sql", Hold)


class QuotaUsage(Struct, frozen=True):
    """The bytes used by the snapshots that stay; removable snapshots not newer than ``cut`` must be removed."""

    used_bytes: int
    cut: Position | None
    quota_bytes: int

    @property
    def over_bytes(self) -> int:
        """Bytes over the quota, although no removable snapshot is left."""
        return max(0, self.used_bytes - self.quota_bytes)


class _Candidate(Struct, frozen=True):
    """A snapshot as read for the calculation."""

    layer_id: str
    position: Position
    stays: bool


async def measure(engine: Engine, scope: Scope, *, without: Sequence[str] = ()) -> QuotaUsage | None:
    """Return the space that a tenant's snapshots take within the quota, and which must be removed; ``without`` are
    ignored.

    Returns ``None`` if all objects of the tenant together fit, so that no snapshot had to be read.
    """
    quota = await engine.read(lambda connection: _quota(connection, scope))
    if quota is None:
        return None
    needs = _Needs(engine, scope)
    await needs.take_all(without)
    cut = await needs.take_newest(without, quota)
    return QuotaUsage(needs.total, cut, quota)


async def removable(
    engine: Engine, scope: Scope, cut: Position, limit: int, *, without: Sequence[str] = ()
) -> Sequence[tuple[str, int]]:
    """Return ids and sizes of at most ``limit`` removable snapshots that are not newer than ``cut``, the oldest
    first.
    """
    params = scope.params(cut_at=cut[0], cut_id=cut[1], limit=limit)

    async def read(connection: Connection) -> Sequence[tuple[str, int]]:
        rows = await queries.up_to.all(connection, params, _without(connection, without, params))
        return [(row[0], int(row[1])) for row in rows]

    return await engine.read(read)


class _Needs:
    """The objects needed by the snapshots that stay, and their total size."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._bodies: set[bytes] = set()
        self._layers: set[str] = set()
        self.total = 0

    async def take_all(self, without: Sequence[str]) -> None:
        """Add the snapshots that must stay."""
        before: Position | None = _END
        while before is not None:
            page, before = await self._page(before, without)
            for snapshot in page:
                if snapshot.stays:
                    await self._take(snapshot.layer_id, None)

    async def take_newest(self, without: Sequence[str], quota: int) -> Position | None:
        """Add the other snapshots, the newest first, as long as they fit; return the first that does not."""
        before: Position | None = _END
        while before is not None:
            page, before = await self._page(before, without)
            for snapshot in page:
                if not snapshot.stays and not await self._take(snapshot.layer_id, quota):
                    return snapshot.position
        return None

    async def _take(self, layer_id: str, quota: int | None) -> bool:
        """Add what one snapshot needs; return whether it fits."""
        if layer_id in self._layers:
            return quota is None or self.total <= quota
        try:
            tree, _ = await self._snapshots._layer_tree(layer_id)
        except (Corrupt, NotFound):
            # An unreadable tree is reported by verify, and counts as nothing here.
            return quota is None or self.total <= quota
        new = objects_of([*tree.entries.values()]) - self._bodies
        size = await self._engine.read(lambda connection: self._size(connection, layer_id, new)) if new else 0
        if quota is not None and self.total + size > quota:
            return False
        self._bodies |= new
        self._layers.add(layer_id)
        self.total += size
        return True

    async def _size(self, connection: Connection, layer_id: str, digests: set[bytes]) -> int:
        rows = await queries.sizes.all(connection, self._scope.params(layer_id=layer_id))
        return sum({bytes(digest): int(size) for digest, size in rows if bytes(digest) in digests}.values())

    async def _page(self, before: Position, without: Sequence[str]) -> tuple[list[_Candidate], Position | None]:
        params = self._scope.params(before_at=before[0], before_id=before[1], limit=PAGE)

        async def read(connection: Connection) -> list[_Candidate]:
            rows = await queries.newest.all(connection, params, _without(connection, without, params))
            native = connection.dialect.native_time
            return [
                _Candidate(layer_id, (to_us(at) if native else at, id), bool(stays)) for id, layer_id, at, stays in rows
            ]

        page = await self._engine.read(read)
        return page, page[-1].position if len(page) == PAGE else None


async def _quota(connection: Connection, scope: Scope) -> int | None:
    """Return the quota in bytes; ``None`` if all objects fit."""
    policy = await rules.policy_of(connection, scope)
    row = await queries.stored_bytes.one(connection, scope.params())
    quota = policy.quota_mib * MIB
    return None if row is None or int(row[0]) <= quota else quota


def _without(connection: Connection, ids: Sequence[str], params: dict[str, Any]) -> str:
    if not ids:
        return ""
    params["gone"] = id_list(ids, connection.dialect)
    return f"\n  AND NOT ({any_of(connection.dialect, 's.id', 'gone', 'uuid')})"
