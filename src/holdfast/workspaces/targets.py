"""What a directory is to be brought to: the tree of a snapshot, and the differences it consists of, by which two are compared."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..engines.protocol import Engine
from ..stores.platform import packs
from ..stores.workspace import layers
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees import manifests
from ..trees.entries import Tree
from .capturing import work


class Target(Struct, frozen=True):
    """A tree, and the differences that it consists of."""

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


class Targets:
    """The trees of one tenant's snapshots."""

    def __init__(self, engine: Engine, snapshots: AsyncSnapshots) -> None:
        self._engine, self._snapshots = engine, snapshots

    async def of(self, snapshot_id: str) -> Target:
        """What a snapshot is.

        Raises:
            NotFound: there is no such snapshot.
        """
        found = await self.manifests(snapshot_id)
        return Target(await work(self._engine, lambda: layers.tree_of(found)), found)

    async def manifests(self, snapshot_id: str) -> Sequence[bytes]:
        """What a snapshot consists of, one difference on the other.

        Raises:
            NotFound: there is no such snapshot.
        """

        async def read() -> Sequence[bytes]:
            return await self._snapshots._out_of_packs(await self._snapshots._manifests(snapshot_id))

        return await packs.settled(read)
