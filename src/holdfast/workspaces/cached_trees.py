"""Cached trees: the last known tree of each directory, with the states of its files.

They are cached in this process, and the file states also in a file beside the database. A directory without a cached
tree is read completely.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from ..core.scope import Scope
from ..engines.protocol import Engine
from ..errors import NotFound
from ..offload import work
from ..stores.workspace.snapshot_rows import Snapshot
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees import stat_cache
from ..trees.scan import ScanResult
from ..trees.stat_cache import CachedTree

MAX_CACHED_TREES = 8
"""Maximum number of trees cached in memory."""


class CachedTrees:
    """The cached trees of one tenant's directories."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)

    def in_memory(self, root: str) -> CachedTree | None:
        """Return the last tree of a directory that this process has cached."""
        return self._in_process.get(self._key(root))

    async def find(self, root: str) -> CachedTree | None:
        """Return the last cached tree of a directory, from memory or from the file beside the database."""
        return self.in_memory(root) or await self._saved(root)

    def remember(self, root: str, cached_tree: CachedTree) -> None:
        """Cache a tree in this process, replacing the last one of its directory."""
        key, cached_trees = self._key(root), self._in_process
        cached_trees.pop(key, None)
        cached_trees[key] = cached_tree
        while len(cached_trees) > MAX_CACHED_TREES:
            cached_trees.pop(next(iter(cached_trees)), None)

    async def save(self, root: str, before: CachedTree | None, snapshot: Snapshot, scanned: ScanResult) -> None:
        """Cache the tree of a directory that was just captured, also in the file beside the database."""
        await work(self._engine, lambda: self._save(root, before, snapshot, scanned))

    async def of_layer(self, snapshot_id: str, layer_id: str) -> CachedTree | None:
        """Return a layer's tree without file states; ``None`` if the layer was removed."""
        try:
            tree, depth = await self._snapshots._layer_tree(layer_id)
        except NotFound:
            return None
        size = await work(self._engine, lambda: sum(entry.size for entry in tree.entries.values()))
        return CachedTree(snapshot_id, layer_id, depth, tuple(tree.ignore), tree.entries, {}, size)

    async def _saved(self, root: str) -> CachedTree | None:
        """Return the cached tree of which a file beside the database has the states."""
        place = self._place(root)
        cached = await work(self._engine, lambda: stat_cache.load(place)) if place is not None else None
        if cached is None:
            return None
        cached_tree = await self.of_layer(cached.snapshot_id, cached.layer_id)
        if cached_tree is None:
            return None
        return structs.replace(cached_tree, stats=stat_cache.matching_stats(cached.stats, cached_tree.entries))

    def _save(self, root: str, before: CachedTree | None, snapshot: Snapshot, scanned: ScanResult) -> None:
        cached_tree = CachedTree(
            snapshot.id,
            snapshot.layer_id,
            snapshot.depth,
            tuple(scanned.difference.ignore),
            scanned.entries,
            scanned.stats,
            snapshot.tree_bytes,
        )
        self.remember(root, cached_tree)
        place = self._place(root)
        is_kept = before is not None and before.stats is scanned.stats and before.layer_id == snapshot.layer_id
        # A capture before a rewind is about to change, so its states are not worth writing.
        if place is not None and not is_kept and snapshot.kind != "dirty":
            stat_cache.save(place, cached_tree)

    @property
    def _in_process(self) -> dict[tuple[str, str], CachedTree]:
        cached_trees: dict[tuple[str, str], CachedTree] = self._scope.shared.setdefault("workspaces", {})
        return cached_trees

    def _key(self, root: str) -> tuple[str, str]:
        return self._scope.stored_tenant, root

    def _place(self, root: str) -> Path | None:
        folder = self._scope.caches
        return None if folder is None else stat_cache.path_of(folder, self._scope.tenant, root)
