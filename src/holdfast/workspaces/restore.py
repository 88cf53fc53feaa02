"""Restoring a directory to a snapshot: the wanted tree is compared with the current one, and only differences are
written.

If the tree of the directory was cached, the restored tree replaces it in the cache, so that the next capture reads only
the paths that were restored or that changed since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set

from ..core import objects as bodies
from ..core.scope import Scope
from ..engines.protocol import Engine
from ..errors import Conflict, InvalidInput, NotFound, Stale
from ..offload import work
from ..stores.objects import packs
from ..stores.objects.packs import InPack
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees import current_state, restore, validation
from ..trees.current_state import CurrentState
from ..trees.entries import Tree, TreeEntry
from ..trees.ignore_rules import IgnoreRules, in_root
from ..trees.prefetch import ObjectBodies
from ..trees.restore import RestorePlan, RestoreResult
from ..trees.stat_cache import CachedTree
from ..trees.walk import Stat
from .cached_trees import CachedTrees
from .readahead import drive
from .snapshot_tree import SnapshotTree, SnapshotTrees

TRIES = 3
"""How often a directory is examined again because it changed while it was being restored."""
Advance = Callable[[int], None]
THREADS_FROM, MAX_THREADS = 4, 4
"""Objects from which threads are started, and the maximum number of threads."""


class Restorer:
    """Restores for one tenant. File access, which takes time, goes through ``work``."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._trees = SnapshotTrees(engine, self._snapshots)
        self._cached_trees = CachedTrees(engine, scope)

    async def into(self, snapshot_id: str, root: str, *, replace: bool, advance: Advance) -> RestoreResult:
        """Restore a directory, which is created if it does not exist, to a snapshot.

        Raises:
            NotFound: the snapshot does not exist.
            Conflict: the directory is not empty, and ``replace`` is false.
            InvalidInput: the snapshot contains entries that must not be written.
            Stale: another process keeps changing the directory.
        """
        target = await self._trees.of(snapshot_id)
        await work(self._engine, lambda: _prepare(root, replace))
        return await self.restore_to(root, target, advance=advance)

    async def restore_to(self, root: str, target: SnapshotTree, *, advance: Advance) -> RestoreResult:
        """Restore a directory to a tree, whatever it contains.

        Raises:
            InvalidInput: the tree contains entries that must not be written.
            Stale: another process keeps changing the directory.
        """
        cached_tree = await self._cached_trees.find(root)
        apart = None if cached_tree is None else await self._apart(target, cached_tree)
        for _ in range(TRIES):
            current = await work(self._engine, lambda: self._read_directory(root, target.tree, cached_tree))
            among = None if apart is None or current.apart is None else apart | current.apart
            try:
                result = await self._apply(root, target, current.entries, among=among, advance=advance)
            except Stale as error:
                stale = error
                continue
            self._remember(root, target, cached_tree, among)
            return result
        raise stale

    async def _apart(self, target: SnapshotTree, cached_tree: CachedTree) -> Set[str] | None:
        """Return the only paths in which a tree differs from the cached tree, or ``None`` if that is unknown."""
        try:
            return target.paths_apart(await self._trees.manifests(cached_tree.snapshot_id))
        except NotFound:
            return None  # the snapshot of the cached tree was removed since

    async def restore_from(
        self, root: str, target: SnapshotTree, cached_tree: CachedTree, *, advance: Advance
    ) -> RestoreResult:
        """Restore a directory that matches a cached tree; paths that no longer match it are not touched.

        Raises:
            InvalidInput: the tree contains entries that must not be written.
            Stale: something has changed since the tree was cached.
        """
        among = await self._apart(target, cached_tree)
        result = await self._apply(
            root, target, cached_tree.entries, among=among, advance=advance, expected=cached_tree.stats
        )
        self._remember(root, target, cached_tree, among)
        return result

    def _remember(
        self, root: str, target: SnapshotTree, cached_tree: CachedTree | None, among: Set[str] | None
    ) -> None:
        """Cache the restored directory, without the states of the paths that differed and of their directories."""
        if cached_tree is None or among is None or cached_tree.ignore != tuple(target.tree.ignore):
            return
        stats = dict(cached_tree.stats)
        for path in among:
            stats.pop(path, None)
            stats.pop(path.rpartition("/")[0], None)
        self._cached_trees.remember(root, target.cached_tree(stats))

    async def _apply(
        self,
        root: str,
        target: SnapshotTree,
        existing: Mapping[str, TreeEntry],
        *,
        among: Set[str] | None,
        advance: Advance,
        expected: Mapping[str, Stat] | None = None,
    ) -> RestoreResult:
        """Write the wanted tree. If only certain paths can differ, no others are compared: ``among``."""
        wanted = target.tree.entries
        plan = await work(self._engine, lambda: self._plan(wanted, existing, among))
        if not plan.count:
            return RestoreResult()
        steps = restore.restore(root, plan, wanted, expected=expected, advance=advance)
        return await drive(self._engine, steps, self.contents)

    async def contents(self, digests: Sequence[bytes]) -> ObjectBodies:
        """Return objects by their digests.

        Raises:
            NotFound: one does not exist.
            Corrupt: one is damaged.
        """

        async def read() -> ObjectBodies:
            items = await self._snapshots._fetch(digests)
            in_packs = [item for item in items if isinstance(item, InPack)]
            packed_bodies = await packs.read_stored(self._engine, self._scope, in_packs) if in_packs else {}
            bodies_by_digest = {
                digest: item for digest, item in zip(digests, items, strict=True) if isinstance(item, bytes)
            }
            return bodies_by_digest | await work(self._engine, lambda: _unpack_all(in_packs, packed_bodies))

        return await packs.retry_moved(read)

    def _plan(
        self, wanted: Mapping[str, TreeEntry], existing: Mapping[str, TreeEntry], among: Set[str] | None
    ) -> RestorePlan:
        changed = validation.check(wanted, self._scope.limits, known=existing, among=among)
        return restore.plan(wanted, existing, changed, among=among)

    def _read_directory(self, root: str, tree: Tree, cached_tree: CachedTree | None) -> CurrentState:
        return current_state.read_directory(
            root, tree, now=IgnoreRules(in_root(root)), limits=self._scope.limits, cached_tree=cached_tree
        )


def _unpack_all(items: Sequence[InPack], packed_bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Decompress objects, in parallel: decompression takes the time, and releases the interpreter lock."""

    def unpack(item: InPack) -> bytes:
        return bodies.unpack(item.digest, item.codec, packed_bodies[item.digest])

    if len(items) < THREADS_FROM:
        return {item.digest: unpack(item) for item in items}
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="holdfast-unpack") as pool:
        return dict(zip((item.digest for item in items), pool.map(unpack, items), strict=True))


def _prepare(root: str, replace: bool) -> None:
    try:
        os.makedirs(root, exist_ok=True)
        with os.scandir(root) as listing:
            is_empty = next(listing, None) is None
    except OSError as error:
        raise InvalidInput(f"cannot restore to {root!r}: {error.strerror or error}", field="path") from error
    if not is_empty and not replace:
        raise Conflict(
            f"directory {root!r} is not empty: restore into an empty directory, or pass replace=True",
            reason="not_empty",
        )
