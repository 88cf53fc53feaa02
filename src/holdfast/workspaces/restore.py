"""Bringing a directory to a snapshot: what is wanted is compared with what is there, and only the difference is written."""

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
from .capture import Capturer
from .readahead import drive
from .snapshot_tree import SnapshotTree, SnapshotTrees

TRIES = 3
"""How often a directory is looked at again because it changed while it was restored."""
Advance = Callable[[int], None]
THREADS_FROM, MAX_THREADS = 4, 4
"""Objects from which on threads are worth starting, and how many are."""


class Restorer:
    """Restores for one tenant. What takes files, and therefore time, goes through ``work``."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._targets = SnapshotTrees(engine, self._snapshots)
        self._capturing = Capturer(engine, scope)

    async def into(self, snapshot_id: str, root: str, *, replace: bool, advance: Advance) -> RestoreResult:
        """Bring a directory, which is made if it is not there, to a snapshot.

        Raises:
            NotFound: there is no such snapshot.
            Conflict: there is something in the directory, and it is not to be replaced.
            InvalidInput: the snapshot has something in it that must not be written.
            Stale: somebody goes on changing the directory.
        """
        target = await self._targets.of(snapshot_id)
        await work(self._engine, lambda: _made(root, replace))
        return await self.bring(root, target, advance=advance)

    async def bring(self, root: str, target: SnapshotTree, *, advance: Advance) -> RestoreResult:
        """Bring a directory to a tree, whatever is in it.

        Raises:
            InvalidInput: the tree has something in it that must not be written.
            Stale: somebody goes on changing the directory.
        """
        picture = await self._capturing.known(root)
        apart = None if picture is None else await self._apart(target, picture)
        for _ in range(TRIES):
            there = await work(self._engine, lambda: self._look(root, target.tree, picture))
            among = None if apart is None or there.apart is None else apart | there.apart
            try:
                done = await self._apply(root, target, there.entries, among=among, advance=advance)
            except Stale as error:
                stale = error
                continue
            self._remember(root, target, picture, among)
            return done
        raise stale

    async def _apart(self, target: SnapshotTree, picture: CachedTree) -> Set[str] | None:
        """The only paths in which a tree differs from its picture, if that is known."""
        try:
            return target.paths_apart(await self._targets.manifests(picture.snapshot_id))
        except NotFound:
            return None  # the snapshot that the picture shows was removed since

    async def bring_from(
        self, root: str, target: SnapshotTree, picture: CachedTree, *, advance: Advance
    ) -> RestoreResult:
        """Bring a directory to a tree that is just as in a picture: what is not is not touched.

        Raises:
            InvalidInput: the tree has something in it that must not be written.
            Stale: something has changed since the picture was made.
        """
        among = await self._apart(target, picture)
        done = await self._apply(root, target, picture.entries, among=among, advance=advance, expected=picture.stats)
        self._remember(root, target, picture, among)
        return done

    def _remember(self, root: str, target: SnapshotTree, picture: CachedTree | None, among: Set[str] | None) -> None:
        """The directory is as the target now. Of what differed, and of where that lies, nothing is known any longer."""
        if picture is None or among is None or picture.ignore != tuple(target.tree.ignore):
            return
        stats = dict(picture.stats)
        for path in among:
            stats.pop(path, None)
            stats.pop(path.rpartition("/")[0], None)
        self._capturing.remember(root, target.picture(stats))

    async def _apply(
        self,
        root: str,
        target: SnapshotTree,
        there: Mapping[str, TreeEntry],
        *,
        among: Set[str] | None,
        advance: Advance,
        expected: Mapping[str, Stat] | None = None,
    ) -> RestoreResult:
        """Make what is wanted of what is there. Where it is known that only these paths differ: ``among``."""
        wanted = target.tree.entries
        plan = await work(self._engine, lambda: self._plan(wanted, there, among))
        if not plan.count:
            return RestoreResult()
        steps = restore.restore(root, plan, wanted, expected=expected, advance=advance)
        return await drive(self._engine, steps, self.contents)

    async def contents(self, digests: Sequence[bytes]) -> ObjectBodies:
        """Objects by their digests.

        Raises:
            NotFound: one is not here.
            Corrupt: one is not what it was.
        """

        async def read() -> ObjectBodies:
            found = await self._snapshots._fetch(digests)
            out = [each for each in found if isinstance(each, InPack)]
            stored = await packs.read_stored(self._engine, self._scope, out) if out else {}
            there = {digest: each for digest, each in zip(digests, found, strict=True) if isinstance(each, bytes)}
            return there | await work(self._engine, lambda: _unpacked(out, stored))

        return await packs.retry_moved(read)

    def _plan(
        self, wanted: Mapping[str, TreeEntry], there: Mapping[str, TreeEntry], among: Set[str] | None
    ) -> RestorePlan:
        changed = validation.check(wanted, self._scope.limits, known=there, among=among)
        return restore.plan(wanted, there, changed, among=among)

    def _look(self, root: str, tree: Tree, picture: CachedTree | None) -> CurrentState:
        return current_state.read_directory(
            root, tree, now=IgnoreRules(in_root(root)), limits=self._scope.limits, picture=picture
        )


def _unpacked(wanted: Sequence[InPack], stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Objects as they were, several at once: unpacking is what takes time, and needs no interpreter."""

    def unpack(each: InPack) -> bytes:
        return bodies.unpack(each.digest, each.codec, stored[each.digest])

    if len(wanted) < THREADS_FROM:
        return {each.digest: unpack(each) for each in wanted}
    from concurrent.futures import ThreadPoolExecutor  # not before it is needed: it takes its time to load

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="holdfast-unpack") as pool:
        return dict(zip((each.digest for each in wanted), pool.map(unpack, wanted), strict=True))


def _made(root: str, replace: bool) -> None:
    try:
        os.makedirs(root, exist_ok=True)
        with os.scandir(root) as there:
            is_empty = next(there, None) is None
    except OSError as error:
        raise InvalidInput(f"{root!r} cannot be restored to: {error.strerror or error}") from error
    if not is_empty and not replace:
        raise Conflict(f"there is something in {root!r}: restore into an empty directory, or say replace")
