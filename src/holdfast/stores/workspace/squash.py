"""Squashing: a layer that lies on others is written down as a whole, so that nothing of them is kept that it does not need.

Deleting a snapshot leaves its layer where others lie on it, with all that it holds. The capture or the sweep that deletes it lets
the lowest layer that a snapshot still needs take over: it holds all that its tree needs, in small steps, and then, in one
transaction, lies on nothing any more. Its tree is the same, and so is whatever lies on it. A process that dies in between leaves
a layer that holds more than it must, and loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.objects import Packed
from ...core.queries import Queries
from ...core.scope import Scope
from ...engines.protocol import Connection, Engine, Row
from ...errors import Corrupt, NotFound, Stale
from ...trees.entries import Difference, objects_of
from ..objects import objects, removal
from . import layers
from .snapshots import AsyncSnapshots

_FIRST_ID = "00000000-0000-0000-0000-000000000000"
HELD_BATCH = 100
"""Objects that are held in one transaction."""
DEAD_PART = 8
"""A capture squashes when files of more than the tree's size divided by this are kept that no snapshot needs."""

queries = Queries(__package__, "squash.sql")


class Squasher:
    """The layers of one tenant, squashed where that frees something."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)

    async def all(self, *, always: bool = False) -> int:
        """Squash every layer that lies on one that no snapshot needs, if that can free anything; how many layers went.

        ``always`` also where it takes more than it frees: what is below must go, whatever that costs.
        """
        gone, row = 0, await self._after(_FIRST_ID)
        while row is not None:
            try:
                gone += await self._squash(row, always)
            except (Corrupt, NotFound, Stale):
                pass  # somebody is busy here, or it cannot be read; the next sweep looks again
            row = await self._after(str(row[0]))
        return gone

    async def below(self, layer_id: str, tree_bytes: int) -> None:
        """Squash the layers below one of a tree of this size, if enough is kept there that no snapshot needs.

        So a capture that makes a snapshot go costs no more than what changed in the tree, on average.
        """
        params = self._scope.params(layer_id=layer_id)
        chain = await self._engine.read(lambda connection: queries.chain.all(connection, params))
        needed = next((number for number, row in enumerate(chain) if row[5]), 0)
        dead = sum(int(row[4]) for row in chain[1 : needed + 1])
        if needed and dead * DEAD_PART >= tree_bytes:
            try:
                await self._squash(chain[needed], always=False)
            except (Corrupt, NotFound, Stale):
                pass  # as in ``all``

    async def _after(self, layer_id: str) -> Row | None:
        params = self._scope.params(after_id=layer_id, limit=1)
        return await self._engine.read(lambda connection: queries.hollow.one(connection, params))

    async def _squash(self, row: Row, always: bool) -> int:
        layer_id = str(row[0])
        tree, _ = await self._snapshots._layer_tree(layer_id)
        whole = Difference([*tree.entries.values()], [], tree.ignore)
        manifest = layers.manifest_of(whole)
        params = self._scope.params(parent_layer_id=str(row[1]))
        below = await self._engine.read(lambda connection: queries.below.one(connection, params))
        if not always and (below is None or int(below[0]) <= manifest.length):
            return 0  # the list of what is in the tree would take more than all there is to gain
        await self._hold(layer_id, sorted(objects_of(whole.entries)))
        released: set[bytes] = set()
        gone = await self._engine.write(lambda connection: self._replace(connection, row, manifest, released))
        await removal.remove_unheld(self._engine, self._scope, released)
        return gone

    async def _hold(self, layer_id: str, digests: Sequence[bytes]) -> None:
        """Hold what the tree needs; whatever is below holds it too, so nothing of it can go meanwhile."""
        for start in range(0, len(digests), HELD_BATCH):
            await self._hold_some(layer_id, digests[start : start + HELD_BATCH])

    async def _hold_some(self, layer_id: str, some: Sequence[bytes]) -> None:
        async def hold(connection: Connection) -> None:
            await layers.lock(connection, self._scope, layer_id)
            await objects.hold(connection, self._scope, some, holder=layers.holder_of(layer_id))

        await self._engine.write(hold)

    async def _replace(self, connection: Connection, row: Row, manifest: Packed, released: set[bytes]) -> int:
        layer_id, parent_id, old, depth = str(row[0]), str(row[1]), bytes(row[2]), int(row[3])
        params = self._scope.params(layer_id=layer_id, holder=layers.holder_of(layer_id), depth=depth)
        there = await queries.look.one(connection, params)
        if there is None or (there[0], bytes(there[1]), there[2]) != (parent_id, old, depth):
            raise Stale("the layer was changed meanwhile")
        released.clear()  # the transaction may be run again
        released.add(old)
        await objects.release(connection, params, [old])
        await objects.keep(connection, self._scope, [manifest], holder=params["holder"])
        await queries.make_whole.all(connection, {**params, "manifest": manifest.digest})
        await queries.lift.all(connection, params)
        await queries.lift_snapshots.all(connection, params)
        gone = await layers.collect_from(connection, self._scope, parent_id, released)
        await queries.count_own.all(connection, params)
        return gone
