"""The tree of a snapshot, with the differences it consists of, by which two trees are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..engines.protocol import Engine
from ..offload import work
from ..stores.objects import packs
from ..stores.workspace import layers
from ..stores.workspace.snapshot_rows import Snapshot
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees import manifests
from ..trees.entries import Tree
from ..trees.stat_cache import CachedTree
from ..trees.walk import Stat


class SnapshotTree(Struct, frozen=True):
    """A snapshot's tree, and its manifests."""

    snapshot: Snapshot
    tree: Tree
    manifests: Sequence[bytes]

    def paths_apart(self, other: Sequence[bytes]) -> set[str]:
        """Return the paths in which another tree may differ: those in the manifests that the two do not share."""
        common = 0
        while common < min(len(self.manifests), len(other)) and self.manifests[common] == other[common]:
            common += 1
        paths: set[str] = set()
        for body in (*self.manifests[common:], *other[common:]):
            difference = manifests.read(body)
            paths.update(difference.removed)
            paths.update(entry.path for entry in difference.entries)
        return paths

    def cached_tree(self, stats: Mapping[str, Stat]) -> CachedTree:
        """Return a cached tree for a directory restored to this snapshot, with the known file states."""
        ignore, snapshot = tuple(self.tree.ignore), self.snapshot
        depth = len(self.manifests) - 1
        return CachedTree(snapshot.id, snapshot.layer_id, depth, ignore, self.tree.entries, stats, snapshot.tree_bytes)


class SnapshotTrees:
    """The trees of one tenant's snapshots."""

    def __init__(self, engine: Engine, snapshots: AsyncSnapshots) -> None:
        self._engine, self._snapshots = engine, snapshots

    async def of(self, snapshot_id: str) -> SnapshotTree:
        """Return the tree of a snapshot.

        Raises:
            NotFound: the snapshot does not exist.
        """
        snapshot, manifest_bodies = await self._read(snapshot_id)
        return SnapshotTree(
            snapshot, await work(self._engine, lambda: layers.tree_of(manifest_bodies)), manifest_bodies
        )

    async def manifests(self, snapshot_id: str) -> Sequence[bytes]:
        """Return the manifests of a snapshot, the lowest first.

        Raises:
            NotFound: the snapshot does not exist.
        """
        return (await self._read(snapshot_id))[1]

    async def _read(self, snapshot_id: str) -> tuple[Snapshot, Sequence[bytes]]:
        async def read() -> tuple[Snapshot, Sequence[bytes]]:
            snapshot, stored_manifests = await self._snapshots._manifests(snapshot_id)
            return snapshot, await self._snapshots._out_of_packs(stored_manifests)

        return await packs.retry_moved(read)
