"""Capturing a directory tree as a snapshot.

What is in the tree is compared with a picture: what was captured there before, and what was known of its files. Only what is not
as it was is read. New content is packed, and written to packs where packs are kept, while the tree is being walked. Then one
transaction records the snapshot and everything it needs, so that it is whole or absent. Pictures are kept in memory, and what is
known of files also beside the database; without them a capture reads everything, and stores no more for it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, structs

from ..core.objects import Packed
from ..core.scope import Scope
from ..engines.protocol import Connection, Engine
from ..errors import InvalidInput, NotFound, Stale
from ..ids import parse as parse_id
from ..offload import work
from ..stores.execution.runs import states
from ..stores.objects import packs, removal
from ..stores.workspace import layers, snapshots
from ..stores.workspace import retention_rules as rules
from ..stores.workspace.layers import LayerPart, NewLayer
from ..stores.workspace.snapshots import AsyncSnapshots, NewSnapshot, Snapshot, SnapshotKind
from ..stores.workspace.squash import Squasher
from ..trees import ignore_rules, stat_cache
from ..trees.entries import Difference, objects_of
from ..trees.ignore_rules import DEFAULT_IGNORE, IgnoreRules
from ..trees.overlay import UpperScan
from ..trees.scan import Scan, ScanResult
from ..trees.stat_cache import CachedTree
from ..trees.walk import SkippedEntry

if TYPE_CHECKING:
    from ..trees.archives import ArchiveReader

T = TypeVar("T")
TRIES = 3
"""How often a capture is tried when what it counts on was removed meanwhile."""
MAX_HELD = 64 * 1024 * 1024
"""Bytes that are held in memory although they are written to a pack."""
MAX_PICTURES = 8
"""Trees whose pictures are kept in memory."""


class CaptureResult(Struct, frozen=True):
    """What one capture came to."""

    snapshot: Snapshot
    changed: int
    """Entries that are new, or not as they were in the snapshot before."""
    removed: int
    skipped: Sequence[SkippedEntry] = ()
    """What is not in the snapshot although nobody said so, and why: pipes, sockets, devices, and what must not be read."""
    unsettled: Sequence[str] = ()
    """Files that changed each time they were read; they are in the snapshot as they were read last."""


class CaptureRequest(Struct, frozen=True):
    """What is to be captured, and for whom."""

    run_id: str
    root: str
    step: int | None
    kind: SnapshotKind
    ignore: Sequence[str]
    ignore_defaults: bool
    id: str


class _Before(Struct, frozen=True):
    """What is there already under the id of a capture, or the snapshot that it comes after."""

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
    """What a caller asks for.

    Raises:
        InvalidInput: an argument is not what it should be.
    """
    return CaptureRequest(
        run_id=parse_id(run_id, "run id"),
        root=root_of(path),
        step=None if step is None else snapshots.parse_step(step),
        kind=snapshots.kind_of(kind),
        ignore=IgnoreRules(ignore).patterns,
        ignore_defaults=ignore_defaults,
        id=scope.ids.new() if id is None else parse_id(id, "snapshot id"),
    )


def root_of(path: object) -> str:
    """The directory that a path names, in one form.

    Raises:
        InvalidInput: it is no path.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path) or "\0" in str(os.fspath(path)):
        raise InvalidInput(f"the path of a workspace is a directory, not {str(path)[:80]!r}")
    return os.path.realpath(os.fsdecode(path))


class Capturer:
    """Captures for one tenant. What takes files, and therefore time, goes through ``work``."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)

    async def capture(self, wanted: CaptureRequest) -> CaptureResult:
        """Capture a tree; with a picture of it as long as that holds.

        Raises:
            NotFound: there is no such run in a live session, or no such directory.
            LimitExceeded: the tree is too large.
            Stale: what it counts on was removed again and again meanwhile.
        """
        before = await self._engine.read(lambda connection: _before(connection, self._scope, wanted))
        if before.done is not None:
            return CaptureResult(before.done, 0, 0)
        for turn in range(TRIES):
            try:
                return await self._try(wanted, before, use_picture=turn == 0)
            except Stale as error:
                stale = error
        raise stale

    async def _try(self, wanted: CaptureRequest, before: _Before, *, use_picture: bool) -> CaptureResult:
        picture = await self._picture(wanted, before.last, use_stats=use_picture)
        ignores = await work(self._engine, lambda: _ignores(wanted))
        scan = Scan(wanted.root, **self._scanning(picture, ignores, use_stats=True))
        capture, scanned = await self._scanned(wanted, picture, scan)
        await work(self._engine, lambda: self._remember(wanted.root, picture, capture.snapshot, scanned))
        return capture

    async def capture_upper(self, wanted: CaptureRequest, base: str) -> CaptureResult:
        """Capture the upper directory of an overlay file system on a snapshot of what is below it.

        Raises:
            NotFound: there is no such run in a live session, no such snapshot, or no such directory.
            InvalidInput: the directory refers to what is below it in a way that cannot be followed.
            LimitExceeded: the tree is too large.
            Stale: the snapshot was removed meanwhile.
        """
        before = await self._engine.read(lambda connection: _before(connection, self._scope, wanted))
        if before.done is not None:
            return CaptureResult(before.done, 0, 0)
        below = await self._snapshots.get(base)
        picture = await self._drawn(below.id, below.layer_id)
        if picture is None:
            raise Stale(f"the snapshot {base} was removed meanwhile")
        ignores = await work(self._engine, lambda: _ignores(wanted))
        scan = UpperScan(wanted.root, **self._scanning(picture, ignores, use_stats=False))
        return (await self._scanned(wanted, picture, scan))[0]

    def _scanning(self, picture: CachedTree | None, ignores: IgnoreRules, *, use_stats: bool) -> dict[str, Any]:
        """What a scan is told. What is known of files holds only while the same is ignored."""
        is_known = use_stats and picture is not None and picture.ignore == ignores.patterns
        return {
            "entries": picture.entries if picture is not None else {},
            "stats": picture.stats if picture is not None and is_known else {},
            "ignores": ignores,
            "max_depth": self._scope.limits.tree_depth,
            "max_entries": self._scope.limits.tree_entries,
        }

    async def _scanned(
        self, wanted: CaptureRequest, picture: CachedTree | None, scan: Scan | ArchiveReader
    ) -> tuple[CaptureResult, ScanResult]:
        parts: list[LayerPart] = []
        held = 0
        async for packed in _each(self._engine, scan.parts()):
            staged = await self._stage(packed, held=held)
            held += sum(len(each.body) for part in staged for each in part.packed)
            parts += staged
        scanned = await work(self._engine, scan.result)
        return await self.record(wanted, picture, scanned, parts), scanned

    async def record(
        self, wanted: CaptureRequest, picture: CachedTree | None, scanned: ScanResult, parts: Sequence[LayerPart]
    ) -> CaptureResult:
        """Record a snapshot of what was found, as a difference to a picture, and remember it."""
        limits = self._scope.limits
        limits.check("tree_entries", len(scanned.entries), "the entries of this tree")
        new = NewSnapshot(
            run_id=wanted.run_id,
            step=wanted.step,
            kind=wanted.kind,
            parent_id=picture.snapshot_id if picture else None,
            layer=await work(self._engine, lambda: _layer(picture, scanned, parts, limits.snapshot_depth)),
            entry_count=len(scanned.entries),
            tree_bytes=await work(self._engine, lambda: _bytes(picture, scanned)),
            id=wanted.id,
        )
        released: set[bytes] = set()
        snapshot, gone = await self._engine.write(lambda connection: _record(connection, self._scope, new, released))
        if gone:
            rules.log_removals(self._scope, gone, "per_run_cap")
            await removal.remove_unheld(self._engine, self._scope, released)
            await Squasher(self._engine, self._scope).below(snapshot.layer_id, snapshot.tree_bytes)
        difference = scanned.difference
        return CaptureResult(
            snapshot, len(difference.entries), len(difference.removed), scanned.skipped, scanned.unsettled
        )

    async def take_in(self, wanted: CaptureRequest, unpacking: ArchiveReader) -> CaptureResult:
        """Record what is in an archive.

        Raises:
            NotFound: there is no such run in a live session.
            InvalidInput: the archive is none, or has something in it that must not be restored.
            LimitExceeded: it comes to too much.
        """
        before = await self._engine.read(lambda connection: _before(connection, self._scope, wanted))
        if before.done is not None:
            return CaptureResult(before.done, 0, 0)
        return (await self._scanned(wanted, None, unpacking))[0]

    def remembered(self, root: str) -> CachedTree | None:
        """The last picture of a directory that this process has."""
        return self._pictures.get(self._key(root))

    async def known(self, root: str) -> CachedTree | None:
        """The last picture of a directory that is known, here or beside the database."""
        return self.remembered(root) or await self._kept(root)

    def remember(self, root: str, picture: CachedTree) -> None:
        """Keep a picture in the place of the last, in this process."""
        key, pictures = self._key(root), self._pictures
        pictures.pop(key, None)
        pictures[key] = picture
        while len(pictures) > MAX_PICTURES:
            pictures.pop(next(iter(pictures)), None)

    async def _stage(self, packed: Sequence[Packed], *, held: int) -> list[LayerPart]:
        """Write large objects to a pack, where packs are kept.

        Their bodies are held as well, as long as those are not too many: then they can be stored in the database, should
        somebody remove the pack before it is sealed, and need not be read again.
        """
        if not packed:
            return []
        if self._scope.packs is None or self._engine.joined:
            return [LayerPart(packed)]
        staged = await packs.stage(self._engine, self._scope, packed)
        least = self._scope.limits.pack_from_bytes
        large = [each for each in packed if each.length >= least]
        if held + sum(each.length for each in large) > MAX_HELD:
            large = [each.without_body() for each in large]
        small = [each for each in packed if each.length < least]
        return [part for part in (LayerPart(large, staged), LayerPart(small)) if part.packed]

    async def _picture(self, wanted: CaptureRequest, last: Snapshot | None, *, use_stats: bool) -> CachedTree | None:
        """What is known of a tree: all, or at least what the run's last snapshot of it consists of."""
        if use_stats:
            found = await self.known(wanted.root)
            if found is not None:
                return found
        return None if last is None else await self._drawn(last.id, last.layer_id)

    async def _kept(self, root: str) -> CachedTree | None:
        """A picture of which a file beside the database knows."""
        place = self._place(root)
        cached = await work(self._engine, lambda: stat_cache.load(place)) if place is not None else None
        if cached is None:
            return None
        picture = await self._drawn(cached.snapshot_id, cached.layer_id)
        if picture is None:
            return None
        return structs.replace(picture, stats=stat_cache.matching_stats(cached.stats, picture.entries))

    async def _drawn(self, snapshot_id: str, layer_id: str) -> CachedTree | None:
        """A picture of what a layer comes to, without knowing anything of files; ``None`` if it is there no longer."""
        try:
            tree, depth = await self._snapshots._layer_tree(layer_id)
        except NotFound:
            return None
        size = await work(self._engine, lambda: sum(entry.size for entry in tree.entries.values()))
        return CachedTree(snapshot_id, layer_id, depth, tuple(tree.ignore), tree.entries, {}, size)

    def _remember(self, root: str, before: CachedTree | None, snapshot: Snapshot, scanned: ScanResult) -> None:
        picture = CachedTree(
            snapshot.id,
            snapshot.layer_id,
            snapshot.depth,
            tuple(scanned.difference.ignore),
            scanned.entries,
            scanned.stats,
            snapshot.tree_bytes,
        )
        self.remember(root, picture)
        place = self._place(root)
        is_kept = before is not None and before.stats is scanned.stats and before.layer_id == snapshot.layer_id
        # What is captured before a rewind is about to be otherwise, and what is known by then is what was known before.
        if place is not None and not is_kept and snapshot.kind != "dirty":
            stat_cache.save(place, picture)

    @property
    def _pictures(self) -> dict[tuple[str, str], CachedTree]:
        found: dict[tuple[str, str], CachedTree] = self._scope.shared.setdefault("workspaces", {})
        return found

    def _key(self, root: str) -> tuple[str, str]:
        return self._scope.stored_tenant, root

    def _place(self, root: str) -> Path | None:
        folder = self._scope.caches
        return None if folder is None else stat_cache.place_of(folder, self._scope.tenant, root)


async def _record(
    connection: Connection, scope: Scope, new: NewSnapshot, released: set[bytes] | None = None
) -> tuple[Snapshot, list[Snapshot]]:
    """Record a snapshot, and remove those that its run then has too many of.

    What is captured before a rewind removes none: it might be the one to go back to.
    """
    if released is not None:
        released.clear()  # the transaction may be run again
    snapshot = await snapshots.record(connection, scope, new)
    over = await rules.over_cap(connection, scope, snapshot.run_id) if new.kind != "dirty" else []
    if not over:
        return snapshot, []
    return snapshot, await snapshots.delete(connection, scope, over, reason="per_run_cap", released=released)


async def _each(engine: Engine, found: Iterator[T]) -> AsyncIterator[T]:
    """Whatever an iterator gives, which takes files."""
    try:
        while (each := await work(engine, lambda: next(found, None))) is not None:
            yield each
    finally:
        await work(engine, cast("Generator[T]", found).close)


async def _before(connection: Connection, scope: Scope, wanted: CaptureRequest) -> _Before:
    params = scope.params(run_id=wanted.run_id, id=wanted.id)
    if await states.queries.get.one(connection, params) is None:
        raise states.run_not_found(wanted.run_id)
    return _Before(
        await snapshots.find(connection, scope, wanted.id), await snapshots.latest(connection, scope, wanted.run_id)
    )


def _ignores(wanted: CaptureRequest) -> IgnoreRules:
    defaults = DEFAULT_IGNORE if wanted.ignore_defaults else ()
    return IgnoreRules([*defaults, *ignore_rules.in_root(wanted.root), *wanted.ignore])


def _bytes(picture: CachedTree | None, scanned: ScanResult) -> int:
    """Of all files, without looking at those that are as they were."""
    if picture is None:
        return sum(entry.size for entry in scanned.entries.values())
    difference = scanned.difference
    new = sum(entry.size for entry in difference.entries)
    return picture.tree_bytes - _replaced(picture, difference) + new


def _replaced(picture: CachedTree, difference: Difference) -> int:
    """Bytes of the files that a difference replaces or removes."""
    was = picture.entries
    gone = sum(was[path].size for path in difference.removed)
    return gone + sum(was[entry.path].size for entry in difference.entries if entry.path in was)


def _layer(
    picture: CachedTree | None, scanned: ScanResult, parts: Sequence[LayerPart], max_depth: int
) -> NewLayer | str:
    """The layer of a tree: the one it had, if nothing changed, a difference to that, or a whole one."""
    difference = scanned.difference
    count = len(difference.entries) + len(difference.removed)
    if picture is not None and count == 0 and tuple(difference.ignore) == picture.ignore:
        return picture.layer_id
    if picture is not None and picture.depth < max_depth and count <= len(scanned.entries):
        replaced = _replaced(picture, difference)
        return NewLayer(layers.manifest_of(difference), picture.layer_id, parts, replaced_bytes=replaced)
    whole = Difference(list(scanned.entries.values()), [], difference.ignore)
    new = {packed.digest for part in parts for packed in part.packed}
    return NewLayer(layers.manifest_of(whole), None, parts, sorted(objects_of(whole.entries) - new))
