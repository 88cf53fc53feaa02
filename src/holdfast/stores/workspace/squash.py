"""Squashing: a layer based on others is stored as a whole tree, so that objects only the lower layers need can be
removed.

Deleting a snapshot leaves its layer, with all its references, if other layers are based on it. The capture or sweep
that deletes it then squashes the lowest layer that a snapshot still needs: in small steps, that layer references all
objects its tree needs, and then, in one transaction, it drops its parent. Its tree and the layers based on it stay
the same. A process that dies in between leaves a layer with more references than necessary, and loses nothing.
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
"""Objects referenced in one transaction."""
DEAD_PART = 8
"""A capture squashes if the files that no snapshot needs exceed the tree's size divided by this."""

queries = Queries(__package__, "squash.sql")


class Squasher:
    """Squashes the layers of one tenant where that frees space."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)

    async def all(self, *, always: bool = False) -> int:
        """Squash every layer based on one that no snapshot needs, if that can free space; return the number of layers
        removed.

        With ``always``, also where the new manifest takes more than is freed: the layers below must be removed at any
        cost.
        """
        removed, row = 0, await self._after(_FIRST_ID)
        while row is not None:
            try:
                removed += await self._squash(row, always)
            except (Corrupt, NotFound, Stale):
                pass  # another process changes it, or it cannot be read; the next sweep tries again
            row = await self._after(str(row[0]))
        return removed

    async def below(self, layer_id: str, tree_bytes: int) -> None:
        """Squash the layers below one of a tree of this size, if they contain enough data that no snapshot needs.

        The threshold makes a capture that removes a snapshot cost, on average, no more than the changes in the tree.
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
            return 0  # the manifest of the whole tree would take more than squashing can free
        await self._hold(layer_id, sorted(objects_of(whole.entries)))
        released: set[bytes] = set()
        removed = await self._engine.write(lambda connection: self._replace(connection, row, manifest, released))
        await removal.remove_unheld(self._engine, self._scope, released)
        return removed

    async def _hold(self, layer_id: str, digests: Sequence[bytes]) -> None:
        """Reference the objects of the tree. The layers below reference them too, so none can be removed in the
        meantime.
        """
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
        current = await queries.look.one(connection, params)
        if current is None or (current[0], bytes(current[1]), current[2]) != (parent_id, old, depth):
            raise Stale("the layer was changed in the meantime")
        released.clear()  # the transaction may run again
        released.add(old)
        await objects.release(connection, params, [old])
        await objects.keep(connection, self._scope, [manifest], holder=params["holder"])
        await queries.make_whole.all(connection, {**params, "manifest": manifest.digest})
        await queries.lift.all(connection, params)
        await queries.lift_snapshots.all(connection, params)
        removed = await layers.collect_from(connection, self._scope, parent_id, released)
        await queries.count_own.all(connection, params)
        return removed
