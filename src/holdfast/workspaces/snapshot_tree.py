"""What a directory is to be brought to: the tree of a snapshot, and the differences it consists of, by which two are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..engines.protocol import Engine
from ..offload import work
from ..stores.objects import packs
from ..stores.workspace import layers
from ..stores.workspace.snapshots import AsyncSnapshots, Snapshot
from ..trees import manifests
from ..trees.entries import Tree
from ..trees.stat_cache import CachedTree
from ..trees.walk import Stat


class SnapshotTree(Struct, frozen=True):
    """A tree, and the differences that it consists of."""

    snapshot: Snapshot
    tree: Tree
    manifests: Sequence[bytes]

    def paths_apart(self, other: Sequence[bytes]) -> set[str]:
        """The paths in which another tree can differ: those of the differences that they do not have in common."""
        common = 0
        while common < min(len(self.manifests), len(other)) and self.manifests[common] == other[common]:
            common += 1
        found: set[str] = set()
        for body in (*self.manifests[common:], *other[common:]):
            difference = manifests.read(body)
            found.update(difference.removed)
            found.update(entry.path for entry in difference.entries)
        return found

    def picture(self, stats: Mapping[str, Stat]) -> CachedTree:
        """A directory that was brought here, of which so much is known."""
        ignore, snapshot = tuple(self.tree.ignore), self.snapshot
        depth = len(self.manifests) - 1
        return CachedTree(snapshot.id, snapshot.layer_id, depth, ignore, self.tree.entries, stats, snapshot.tree_bytes)


class SnapshotTrees:
    """The trees of one tenant's snapshots."""

    def __init__(self, engine: Engine, snapshots: AsyncSnapshots) -> None:
        self._engine, self._snapshots = engine, snapshots

    async def of(self, snapshot_id: str) -> SnapshotTree:
        """What a snapshot is.

        Raises:
            NotFound: there is no such snapshot.
        """
        snapshot, found = await self._read(snapshot_id)
        return SnapshotTree(snapshot, await work(self._engine, lambda: layers.tree_of(found)), found)

    async def manifests(self, snapshot_id: str) -> Sequence[bytes]:
        """What a snapshot consists of, one difference on the other.

        Raises:
            NotFound: there is no such snapshot.
        """
        return (await self._read(snapshot_id))[1]

    async def _read(self, snapshot_id: str) -> tuple[Snapshot, Sequence[bytes]]:
        async def read() -> tuple[Snapshot, Sequence[bytes]]:
            snapshot, found = await self._snapshots._manifests(snapshot_id)
            return snapshot, await self._snapshots._out_of_packs(found)

        return await packs.retry_moved(read)
