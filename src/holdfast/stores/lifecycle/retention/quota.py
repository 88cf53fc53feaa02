"""What the snapshots of a tenant take, and how room is made.

What counts is content: the stored bytes of the bodies that the files of the snapshots consist of, each once, however many
snapshots need it. So what must go is found from the other end: first comes what has to stay, then the others, the newest first,
as long as what they need beside that fits. What is older than the first that does not fit goes. Only trees that fit are ever
remembered, so memory is bounded by the quota and not by how many snapshots there are.

A snapshot that went may leave a layer on which others lie: those are squashed (``workspace.squashing``), so that what no snapshot
needs any longer is kept by nothing.
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
"""Snapshots looked at at once."""
Place = tuple[int, str]
"""When a snapshot was taken, in microseconds, and its id: its place among all."""
_END: Place = (253_402_300_799_999_999, "ffffffff-ffff-ffff-ffff-ffffffffffff")

queries = Queries(__package__, "retention.sql", Hold)


class QuotaUsage(Struct, frozen=True):
    """What stays takes so much; what is not newer than ``cut`` and may go must."""

    used_bytes: int
    cut: Place | None
    quota_bytes: int

    @property
    def over_bytes(self) -> int:
        """What takes more than the quota, although nothing is left that may go."""
        return max(0, self.used_bytes - self.quota_bytes)


class _Seen(Struct, frozen=True):
    """A snapshot as it is looked at."""

    layer_id: str
    place: Place
    stays: bool


async def measure(engine: Engine, scope: Scope, *, without: Sequence[str] = ()) -> QuotaUsage | None:
    """How much a tenant's snapshots take when it fits into the quota, and what must go for it; without some that went.

    ``None`` if all objects of the tenant together fit, so that nothing had to be looked at.
    """
    quota = await engine.read(lambda connection: _quota(connection, scope))
    if quota is None:
        return None
    needs = _Needs(engine, scope)
    await needs.take_all(without)
    cut = await needs.take_newest(without, quota)
    return QuotaUsage(needs.total, cut, quota)


async def removable(
    engine: Engine, scope: Scope, cut: Place, limit: int, *, without: Sequence[str] = ()
) -> Sequence[tuple[str, int]]:
    """Some of what may go and is not newer, the oldest first, as ids and sizes."""
    params = scope.params(cut_at=cut[0], cut_id=cut[1], limit=limit)

    async def read(connection: Connection) -> Sequence[tuple[str, int]]:
        rows = await queries.up_to.all(connection, params, _without(connection, without, params))
        return [(row[0], int(row[1])) for row in rows]

    return await engine.read(read)


class _Needs:
    """Bodies that are needed, and what they take."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._bodies: set[bytes] = set()
        self._layers: set[str] = set()
        self.total = 0

    async def take_all(self, without: Sequence[str]) -> None:
        """Take what has to stay."""
        before: Place | None = _END
        while before is not None:
            page, before = await self._page(before, without)
            for each in page:
                if each.stays:
                    await self._take(each.layer_id, None)

    async def take_newest(self, without: Sequence[str], quota: int) -> Place | None:
        """Take the others, the newest first, as long as they fit; the first that does not."""
        before: Place | None = _END
        while before is not None:
            page, before = await self._page(before, without)
            for each in page:
                if not each.stays and not await self._take(each.layer_id, quota):
                    return each.place
        return None

    async def _take(self, layer_id: str, quota: int | None) -> bool:
        """Take what one needs, if all of it fits."""
        if layer_id in self._layers:
            return quota is None or self.total <= quota
        try:
            tree, _ = await self._snapshots._layer_tree(layer_id)
        except (Corrupt, NotFound):
            return (
                quota is None or self.total <= quota
            )  # what cannot be read is for verify to say, and costs what it may
        new = objects_of([*tree.entries.values()]) - self._bodies
        size = await self._engine.read(lambda connection: self._size(connection, layer_id, new)) if new else 0
        if quota is not None and self.total + size > quota:
            return False
        self._bodies |= new
        self._layers.add(layer_id)
        self.total += size
        return True

    async def _size(self, connection: Connection, layer_id: str, wanted: set[bytes]) -> int:
        rows = await queries.sizes.all(connection, self._scope.params(layer_id=layer_id))
        return sum({bytes(digest): int(size) for digest, size in rows if bytes(digest) in wanted}.values())

    async def _page(self, before: Place, without: Sequence[str]) -> tuple[list[_Seen], Place | None]:
        params = self._scope.params(before_at=before[0], before_id=before[1], limit=PAGE)

        async def read(connection: Connection) -> list[_Seen]:
            rows = await queries.newest.all(connection, params, _without(connection, without, params))
            native = connection.dialect.native_time
            return [_Seen(layer_id, (to_us(at) if native else at, id), bool(stays)) for id, layer_id, at, stays in rows]

        page = await self._engine.read(read)
        return page, page[-1].place if len(page) == PAGE else None


async def _quota(connection: Connection, scope: Scope) -> int | None:
    """The quota in bytes; ``None`` if everything fits."""
    policy = await rules.policy_of(connection, scope)
    row = await queries.stored_bytes.one(connection, scope.params())
    quota = policy.quota_mib * MIB
    return None if row is None or int(row[0]) <= quota else quota


def _without(connection: Connection, ids: Sequence[str], params: dict[str, Any]) -> str:
    if not ids:
        return ""
    params["gone"] = id_list(ids, connection.dialect)
    return f"\n  AND NOT ({any_of(connection.dialect, 's.id', 'gone', 'uuid')})"
