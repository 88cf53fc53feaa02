"""Capturing a directory as a snapshot.

The directory is compared with a cached tree: its last capture, with the states of its files. Only changed files are
read. New content is packed, and written to packs if packs are configured, during the walk. Then one transaction
records the snapshot and everything it needs, so that it is whole or absent. Trees are cached in memory, and the file
states also in files beside the database; without them a capture reads everything, and still stores only new content.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct

from ..core.objects import Packed
from ..core.scope import Scope
from ..engines.protocol import Connection, Engine
from ..errors import InvalidInput, Stale
from ..ids import parse as parse_id
from ..offload import work
from ..stores.execution.runs import states
from ..stores.objects import packs, removal
from ..stores.workspace import layers, snapshots
from ..stores.workspace import retention_rules as rules
from ..stores.workspace.layers import LayerPart, NewLayer
from ..stores.workspace.snapshot_rows import NewSnapshot, Snapshot, SnapshotKind, kind_of, parse_step
from ..stores.workspace.snapshots import AsyncSnapshots
from ..stores.workspace.squash import Squasher
from ..trees import ignore_rules
from ..trees.entries import Difference, objects_of
from ..trees.ignore_rules import DEFAULT_IGNORE, IgnoreRules
from ..trees.overlay import UpperScan
from ..trees.scan import Scan, ScanResult
from ..trees.stat_cache import CachedTree
from ..trees.walk import SkippedEntry
from .cached_trees import CachedTrees

if TYPE_CHECKING:
    from ..trees.archives import ArchiveReader

T = TypeVar("T")
TRIES = 3
"""How often a capture is tried when a snapshot it is based on was removed in the meantime."""
MAX_HELD = 64 * 1024 * 1024
"""Bytes kept in memory although they are written to a pack."""


class CaptureResult(Struct, frozen=True):
    """The result of one capture."""

    snapshot: Snapshot
    changed: int
    """Number of entries that are new, or differ from the previous snapshot."""
    removed: int
    skipped: Sequence[SkippedEntry] = ()
    """Paths that are not in the snapshot although they are not ignored: pipes, sockets, devices, and unreadable
    files."""
    unsettled: Sequence[str] = ()
    """Files that changed each time they were read; the snapshot has the last content read."""


class CaptureRequest(Struct, frozen=True):
    """The checked arguments of a capture."""

    run_id: str
    root: str
    step: int | None
    kind: SnapshotKind
    ignore: Sequence[str]
    ignore_defaults: bool
    id: str


class _Before(Struct, frozen=True):
    """The snapshot that has the id of a capture already, and the run's last snapshot."""

    done: Snapshot | None
    last: Snapshot | None


def capture_request(
    scope: Scope,
    run_id: str,
    path: str | os.PathLike[str],
    *,
    step: int | None,
    kind: SnapshotKind,
    ignore: Sequence[str],
    ignore_defaults: bool,
    id: str | None,
) -> CaptureRequest:
    """Check the arguments of a capture.

    Raises:
        InvalidInput: an argument is invalid.
    """
    return CaptureRequest(
        run_id=parse_id(run_id, "run id"),
        root=root_of(path),
        step=None if step is None else parse_step(step),
        kind=kind_of(kind),
        ignore=IgnoreRules(ignore).patterns,
        ignore_defaults=ignore_defaults,
        id=scope.ids.new() if id is None else parse_id(id, "snapshot id"),
    )


def root_of(path: object) -> str:
    """Return the absolute path of a directory without symbolic links.

    Raises:
        InvalidInput: it is not a path.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path) or "\0" in str(os.fspath(path)):
        raise InvalidInput(f"the path of a workspace must be a directory, not {str(path)[:80]!r}", field="path")
    return os.path.realpath(os.fsdecode(path))


class Capturer:
    """Captures for one tenant. File access, which takes time, goes through ``work``."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._cached_trees = CachedTrees(engine, scope)

    async def capture(self, request: CaptureRequest) -> CaptureResult:
        """Capture a directory, based on its cached tree as long as that is valid.

        Raises:
            NotFound: the run does not exist in a live session, or the directory does not exist.
            LimitExceeded: the tree is too large.
            Stale: the snapshots it was based on were removed on every try.
        """
        before = await self._engine.read(lambda connection: _before(connection, self._scope, request))
        if before.done is not None:
            return CaptureResult(before.done, 0, 0)
        for turn in range(TRIES):
            try:
                return await self._try(request, before, use_cache=turn == 0)
            except Stale as error:
                stale = error
        raise stale

    async def _try(self, request: CaptureRequest, before: _Before, *, use_cache: bool) -> CaptureResult:
        cached_tree = await self._cached_tree(request, before.last, use_stats=use_cache)
        ignores = await work(self._engine, lambda: _ignores(request))
        scan = Scan(request.root, **self._scan_arguments(cached_tree, ignores, use_stats=True))
        capture, scanned = await self._run_scan(request, cached_tree, scan)
        await self._cached_trees.save(request.root, cached_tree, capture.snapshot, scanned)
        return capture

    async def capture_upper(self, request: CaptureRequest, base: str) -> CaptureResult:
        """Capture the upper directory of an overlay file system, based on a snapshot of the lower one.

        Raises:
            NotFound: the run does not exist in a live session, or the snapshot or directory does not exist.
            InvalidInput: the directory refers to the lower one in a way that cannot be followed.
            LimitExceeded: the tree is too large.
            Stale: the snapshot was removed in the meantime.
        """
        before = await self._engine.read(lambda connection: _before(connection, self._scope, request))
        if before.done is not None:
            return CaptureResult(before.done, 0, 0)
        below = await self._snapshots.get(base)
        cached_tree = await self._cached_trees.of_layer(below.id, below.layer_id)
        if cached_tree is None:
            raise Stale(f"snapshot {base} was removed in the meantime")
        ignores = await work(self._engine, lambda: _ignores(request))
        scan = UpperScan(request.root, **self._scan_arguments(cached_tree, ignores, use_stats=False))
        return (await self._run_scan(request, cached_tree, scan))[0]

    def _scan_arguments(
        self, cached_tree: CachedTree | None, ignores: IgnoreRules, *, use_stats: bool
    ) -> dict[str, Any]:
        """Return the arguments of a scan. Known file states are valid only with the same ignore patterns."""
        is_known = use_stats and cached_tree is not None and cached_tree.ignore == ignores.patterns
        return {
            "entries": cached_tree.entries if cached_tree is not None else {},
            "stats": cached_tree.stats if cached_tree is not None and is_known else {},
            "ignores": ignores,
            "max_depth": self._scope.limits.tree_depth,
            "max_entries": self._scope.limits.tree_entries,
        }

    async def _run_scan(
        self, request: CaptureRequest, cached_tree: CachedTree | None, scan: Scan | ArchiveReader
    ) -> tuple[CaptureResult, ScanResult]:
        parts: list[LayerPart] = []
        held_bytes = 0
        async for packed in _iterate(self._engine, scan.parts()):
            staged = await self._stage(packed, held_bytes=held_bytes)
            held_bytes += sum(len(packed_object.body) for part in staged for packed_object in part.packed)
            parts += staged
        scanned = await work(self._engine, scan.result)
        return await self.record(request, cached_tree, scanned, parts), scanned

    async def record(
        self, request: CaptureRequest, cached_tree: CachedTree | None, scanned: ScanResult, parts: Sequence[LayerPart]
    ) -> CaptureResult:
        """Record a snapshot of a scan, as a difference to a cached tree."""
        limits = self._scope.limits
        limits.check("tree_entries", len(scanned.entries), "the entries of this tree")
        new = NewSnapshot(
            run_id=request.run_id,
            step=request.step,
            kind=request.kind,
            parent_id=cached_tree.snapshot_id if cached_tree else None,
            layer=await work(self._engine, lambda: _layer(cached_tree, scanned, parts, limits.snapshot_depth)),
            entry_count=len(scanned.entries),
            tree_bytes=await work(self._engine, lambda: _tree_bytes(cached_tree, scanned)),
            id=request.id,
        )
        released: set[bytes] = set()
        snapshot, removed = await self._engine.write(lambda connection: _record(connection, self._scope, new, released))
        if removed:
            rules.log_removals(self._scope, removed, "per_run_cap")
            await removal.remove_unheld(self._engine, self._scope, released)
            await Squasher(self._engine, self._scope).below(snapshot.layer_id, snapshot.tree_bytes)
        difference = scanned.difference
        return CaptureResult(
            snapshot, len(difference.entries), len(difference.removed), scanned.skipped, scanned.unsettled
        )

    async def import_archive(self, request: CaptureRequest, unpacking: ArchiveReader) -> CaptureResult:
        """Record the content of an archive.

        Raises:
            NotFound: the run does not exist in a live session.
            InvalidInput: it is not an archive, or contains entries that must not be restored.
            LimitExceeded: its content exceeds a limit.
        """
        before = await self._engine.read(lambda connection: _before(connection, self._scope, request))
        if before.done is not None:
            return CaptureResult(before.done, 0, 0)
        return (await self._run_scan(request, None, unpacking))[0]

    async def _stage(self, packed: Sequence[Packed], *, held_bytes: int) -> list[LayerPart]:
        """Write large objects to a pack, if packs are configured.

        Their bodies are kept in memory as well, up to ``MAX_HELD``: then they can be stored in the database without
        reading the files again, in case another process removes the pack before it is sealed.
        """
        if not packed:
            return []
        if self._scope.packs is None or self._engine.joined:
            return [LayerPart(packed)]
        staged = await packs.stage(self._engine, self._scope, packed)
        least = self._scope.limits.pack_from_bytes
        large = [packed_object for packed_object in packed if packed_object.length >= least]
        if held_bytes + sum(packed_object.length for packed_object in large) > MAX_HELD:
            large = [packed_object.without_body() for packed_object in large]
        small = [packed_object for packed_object in packed if packed_object.length < least]
        return [part for part in (LayerPart(large, staged), LayerPart(small)) if part.packed]

    async def _cached_tree(
        self, request: CaptureRequest, last: Snapshot | None, *, use_stats: bool
    ) -> CachedTree | None:
        """Return the cached tree of a directory, or at least the tree of the run's last snapshot, without file
        states.
        """
        if use_stats:
            cached_tree = await self._cached_trees.find(request.root)
            if cached_tree is not None:
                return cached_tree
        return None if last is None else await self._cached_trees.of_layer(last.id, last.layer_id)


async def _record(
    connection: Connection, scope: Scope, new: NewSnapshot, released: set[bytes] | None = None
) -> tuple[Snapshot, list[Snapshot]]:
    """Record a snapshot, and remove those by which its run then exceeds its number.

    A capture before a rewind removes none: the rewind may need it.
    """
    if released is not None:
        released.clear()  # the transaction may run again
    snapshot = await snapshots.record(connection, scope, new)
    over = await rules.over_cap(connection, scope, snapshot.run_id) if new.kind != "dirty" else []
    if not over:
        return snapshot, []
    return snapshot, await snapshots.delete(connection, scope, over, reason="per_run_cap", released=released)


async def _iterate(engine: Engine, iterator: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that accesses files."""
    try:
        while (item := await work(engine, lambda: next(iterator, None))) is not None:
            yield item
    finally:
        await work(engine, cast("Generator[T]", iterator).close)


async def _before(connection: Connection, scope: Scope, request: CaptureRequest) -> _Before:
    params = scope.params(run_id=request.run_id, id=request.id)
    if await states.queries.get.one(connection, params) is None:
        raise states.run_not_found(request.run_id)
    return _Before(
        await snapshots.find(connection, scope, request.id), await snapshots.latest(connection, scope, request.run_id)
    )


def _ignores(request: CaptureRequest) -> IgnoreRules:
    defaults = DEFAULT_IGNORE if request.ignore_defaults else ()
    return IgnoreRules([*defaults, *ignore_rules.in_root(request.root), *request.ignore])


def _tree_bytes(cached_tree: CachedTree | None, scanned: ScanResult) -> int:
    """Return the size of all files, without adding up unchanged ones."""
    if cached_tree is None:
        return sum(entry.size for entry in scanned.entries.values())
    difference = scanned.difference
    new = sum(entry.size for entry in difference.entries)
    return cached_tree.tree_bytes - _replaced_bytes(cached_tree, difference) + new


def _replaced_bytes(cached_tree: CachedTree, difference: Difference) -> int:
    """Return the size of the files that a difference replaces or removes."""
    entries = cached_tree.entries
    removed = sum(entries[path].size for path in difference.removed)
    return removed + sum(entries[entry.path].size for entry in difference.entries if entry.path in entries)


def _layer(
    cached_tree: CachedTree | None, scanned: ScanResult, parts: Sequence[LayerPart], max_depth: int
) -> NewLayer | str:
    """Return the layer of a tree: the existing one if nothing changed, a difference to it, or a whole one."""
    difference = scanned.difference
    count = len(difference.entries) + len(difference.removed)
    if cached_tree is not None and count == 0 and tuple(difference.ignore) == cached_tree.ignore:
        return cached_tree.layer_id
    if cached_tree is not None and cached_tree.depth < max_depth and count <= len(scanned.entries):
        replaced = _replaced_bytes(cached_tree, difference)
        return NewLayer(layers.manifest_of(difference), cached_tree.layer_id, parts, replaced_bytes=replaced)
    whole = Difference(list(scanned.entries.values()), [], difference.ignore)
    new = {packed.digest for part in parts for packed in part.packed}
    return NewLayer(layers.manifest_of(whole), None, parts, sorted(objects_of(whole.entries) - new))
