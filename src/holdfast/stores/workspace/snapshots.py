"""Snapshots: directory trees as they were after steps of a run.

A snapshot is whole or absent: its rows are written in one transaction, after all that they refer to. What it consists of lies in
layers (``layers``), whose content is objects. ``acme.workspaces.capture`` makes snapshots; here they are looked at and removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from ...clock import to_us
from ...core import objects as bodies
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.checks import whole_number
from ...core.objects import Packed
from ...core.paging import Page, after_clause, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.store import TenantStore, only_reads, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Conflict, InvalidInput, NotFound
from ...ids import Id
from ...ids import parse as parse_id
from ...offload import work
from ...trees.entries import Tree, TreeEntry, objects_of, raw, shown
from ..execution.runs import states
from ..objects import activity, objects, packs
from ..objects.activity import NewActivity
from ..objects.packs import InPack
from . import layers, retention_rules
from .layers import NewLayer

SnapshotKind = Literal["step", "dirty", "imported"]
DELETED = "checkpoint.deleted"
"""What the removal of a snapshot is called in the log of what was done."""
_MAX_STEP = 2**62


class Snapshot(Struct, frozen=True):
    """A directory tree as it was.

    ``kind`` says where it comes from: the end of a ``step``, a tree that was ``dirty`` when it was to be put back, or
    ``imported``.
    """

    id: Id
    run_id: Id
    step: int | None
    """The iteration of the run after which it was taken."""
    parent_id: Id | None
    """The snapshot it was taken after; it may be gone by now."""
    kind: SnapshotKind
    layer_id: Id
    entry_count: int
    tree_bytes: int
    """Of all files in it."""
    size_bytes: int
    """Stored for it that were not stored before."""
    depth: int
    """Layers below its own."""
    created_at: datetime


class SnapshotUsage(Struct, frozen=True):
    """What the snapshots of a tenant amount to."""

    count: int
    layers: int
    """What they consist of, and what others still need of those that are gone."""
    stored_bytes: int


class TreePage(Struct, frozen=True):
    """Some of what is in a snapshot, in the order of paths."""

    entries: Sequence[TreeEntry]
    ignore: Sequence[str]
    """The patterns by which other things were left out."""
    next: str | None
    """The cursor of the next page, or ``None`` at the end."""


class NewSnapshot(Struct, frozen=True):
    """A snapshot that is about to be recorded, on a new layer or on one that is there."""

    run_id: str
    step: int | None
    kind: SnapshotKind
    parent_id: str | None
    layer: NewLayer | str
    entry_count: int
    tree_bytes: int
    id: str


queries = Queries(__package__, "snapshots.sql", Snapshot)


class AsyncSnapshots(TenantStore):
    """The snapshots of one tenant."""

    @reads
    async def get(self, connection: Connection, snapshot_id: Id) -> Snapshot:
        """One snapshot.

        Raises:
            NotFound: there is none, or its session was deleted.
        """
        return await get(connection, self._scope, snapshot_id)

    @reads
    async def find(
        self, connection: Connection, run_id: Id, *, step: int | None = None, kind: SnapshotKind | None = None
    ) -> Snapshot | None:
        """The newest snapshot of a run, or of one of its steps, or of one kind; ``None`` if there is none."""
        return await latest(connection, self._scope, run_id, step=step, kind=kind)

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        run_id: Id | None = None,
        step: int | None = None,
        kind: SnapshotKind | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Snapshot]:
        """Snapshots, the newest first: all, or those of a run, a step, a kind. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params, where = _of(self._scope, run_id, step, kind)
        params["limit"] = rows_to_read(limit, limits)
        if run_id is not None:
            where += "\n  AND s.run_id = :run_id"
        where += after_clause(cursor, "snapshots", {"s.created_at": "time", "s.id": "id"}, params, connection.dialect)
        index = "snapshots_by_time" if run_id is None else "snapshots_by_run"
        found = mapper(Snapshot, connection.dialect)(await queries.list.all(connection, params, where, index))
        return page(found, limit, limits, "snapshots", _cursor)

    @only_reads
    async def tree(self, snapshot_id: Id) -> Tree:
        """Everything in a snapshot, by its path, and what was ignored.

        Raises:
            NotFound: there is no such snapshot.
            Corrupt: it cannot be read.
            Unavailable: it lies in packs, and the place where packs are kept cannot be reached.
        """

        found = await self._read_manifests(snapshot_id)
        return await work(self._engine, lambda: layers.tree_of(found))

    @only_reads
    async def entries(self, snapshot_id: Id, *, limit: int, cursor: str | None = None) -> TreePage:
        """A page of what is in a snapshot, in the order of paths. It costs what a page has, not what the tree has.

        Raises:
            NotFound: there is no such snapshot.
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: ``limit`` is over ``page_rows``.
            Corrupt: it cannot be read.
            Unavailable: it lies in packs, and the place where packs are kept cannot be reached.
        """
        if limit is None:
            raise InvalidInput("limit must be a whole number from 1 on, not None")
        most = rows_to_read(limit, self._scope.limits)
        after = None if cursor is None else shown(decode_cursor(cursor, "tree", bytes)[0])
        found = await self._read_manifests(snapshot_id)
        entries, ignore = await work(self._engine, lambda: layers.page_of(found, after, most))
        next = encode_cursor("tree", raw(entries[limit - 1].path)) if len(entries) > limit else None
        return TreePage(entries[:limit], ignore, next)

    @only_reads
    async def read(self, snapshot_id: Id, path: str) -> bytes:
        """The content of one file.

        Raises:
            NotFound: there is no such snapshot, or no such file in it.
            LimitExceeded: the file is over ``content_bytes``: restore it instead.
            Corrupt: it is not what was captured.
            Unavailable: it lies in a pack, and the place where packs are kept cannot be reached.
        """
        found = await self._read_manifests(snapshot_id)
        entry = await work(self._engine, lambda: layers.entry_of(found, path))
        if entry is None or entry.kind != "file":
            raise NotFound(f"there is no file {path!r} in snapshot {snapshot_id}")
        self._scope.limits.check("content_bytes", entry.size, path)
        content = await self._bodies(entry)
        return b"".join(
            content[lies_in][start : start + length] if lies_in else bytes(length)
            for lies_in, start, length in entry.pieces
        )

    @writes
    async def delete(self, connection: Connection, snapshot_ids: Sequence[Id], *, reason: str) -> Sequence[Snapshot]:
        """Remove snapshots, and what of them no other needs; those that were there. Removing them again changes nothing.

        The room they took is free after ``objects.prune``.

        Raises:
            InvalidInput: no reason is given.
            LimitExceeded: there are more than ``batch_rows``.
            Conflict: one of them is held: see ``retention``.
        """
        scopes.name(reason, "reason", self._scope.limits, limit="text_bytes")
        ids = self._ids(snapshot_ids)
        await retention_rules.check_snapshots_not_held(connection, self._scope, ids)
        return await delete(connection, self._scope, ids, reason=reason)

    @writes
    async def collect(self, connection: Connection) -> int:
        """Let go of what snapshots left that went with their run; how many layers those were."""
        return await layers.collect(connection, self._scope)

    @reads
    async def usage(self, connection: Connection) -> SnapshotUsage:
        """How many snapshots there are, and what they take. What other things are kept in objects is not counted."""
        row = await queries.usage.one(connection, self._scope.params())
        assert row is not None
        return SnapshotUsage(*map(int, row))

    @writes
    async def _record(self, connection: Connection, new: NewSnapshot) -> Snapshot:
        return await record(connection, self._scope, new)

    @reads
    async def _manifests(self, connection: Connection, snapshot_id: str) -> tuple[Snapshot, Sequence[Packed | InPack]]:
        snapshot = await get(connection, self._scope, snapshot_id)
        return snapshot, await layers.manifests_of(connection, self._scope, snapshot.layer_id)

    @reads
    async def _fetch(self, connection: Connection, digests: Sequence[bytes]) -> Sequence[bytes | InPack]:
        return await objects.fetch(connection, self._scope, digests)

    async def _layer_tree(self, layer_id: str) -> tuple[Tree, int]:
        """What a layer comes to, and how many lie below it; ``NotFound`` if it is there no longer."""

        async def read() -> Sequence[bytes]:
            return await self._out_of_packs(await self._layer_manifests(layer_id))

        found = await packs.retry_moved(read)
        return await work(self._engine, lambda: layers.tree_of(found)), len(found) - 1

    @reads
    async def _layer_manifests(self, connection: Connection, layer_id: str) -> Sequence[Packed | InPack]:
        if await layers.queries.has.one(connection, self._scope.params(layer_id=layer_id)) is None:
            raise NotFound(f"there is no layer {layer_id} here")
        return await layers.manifests_of(connection, self._scope, layer_id)

    async def _read_manifests(self, snapshot_id: str) -> Sequence[bytes]:
        async def read() -> Sequence[bytes]:
            _, found = await self._manifests(snapshot_id)
            return await self._out_of_packs(found)

        return await packs.retry_moved(read)

    async def _out_of_packs(self, found: Sequence[Packed | InPack]) -> Sequence[bytes]:
        """Bodies as they were put; those that lie in packs are read from there."""
        out = [each for each in found if isinstance(each, InPack)]
        there = await packs.read_stored(self._engine, self._scope, out) if out else {}
        stored = [there[each.digest] if isinstance(each, InPack) else each.body for each in found]

        def unpacked() -> list[bytes]:
            return [bodies.unpack(each.digest, each.codec, body) for each, body in zip(found, stored, strict=True)]

        return await work(self._engine, unpacked)

    @reads
    async def _stored(self, connection: Connection, digests: Sequence[bytes]) -> Sequence[Packed | InPack]:
        return await objects.read_stored(connection, self._scope, digests)

    async def _bodies(self, entry: TreeEntry) -> dict[bytes, bytes]:
        digests = sorted(objects_of([entry]))

        async def read() -> Sequence[bytes]:
            return await self._out_of_packs(await self._stored(digests))

        return dict(zip(digests, await packs.retry_moved(read), strict=True))

    def _ids(self, ids: Sequence[str]) -> Sequence[str]:
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise InvalidInput("snapshot_ids come as a list")
        self._scope.limits.check("batch_rows", len(ids), "snapshot_ids")
        return sorted({parse_id(each, "snapshot id") for each in ids})


class Snapshots(Blocking[AsyncSnapshots]):
    """The snapshots of one tenant."""

    get = blocking(AsyncSnapshots.get)
    find = blocking(AsyncSnapshots.find)
    list = blocking(AsyncSnapshots.list)
    tree = blocking(AsyncSnapshots.tree)
    entries = blocking(AsyncSnapshots.entries)
    read = blocking(AsyncSnapshots.read)
    delete = blocking(AsyncSnapshots.delete)
    collect = blocking(AsyncSnapshots.collect)
    usage = blocking(AsyncSnapshots.usage)


async def get(connection: Connection, scope: scopes.Scope, snapshot_id: str) -> Snapshot:
    """One snapshot; for other stores, in their transaction.

    Raises:
        NotFound: there is none, or its session was deleted.
    """
    row = await queries.get.one(connection, scope.params(id=parse_id(snapshot_id, "snapshot id")))
    if row is None:
        raise NotFound(f"there is no snapshot {snapshot_id} here")
    return _snapshot(connection, row)


async def find(connection: Connection, scope: scopes.Scope, snapshot_id: str) -> Snapshot | None:
    """A snapshot, seen or not; ``None`` if there is none."""
    row = await queries.there.one(connection, scope.params(id=snapshot_id))
    return None if row is None else _snapshot(connection, row)


async def latest(
    connection: Connection, scope: scopes.Scope, run_id: str, *, step: int | None = None, kind: str | None = None
) -> Snapshot | None:
    """The newest snapshot of a run, or of one of its steps, or of one kind; for other stores, in their transaction."""
    params, where = _of(scope, run_id, step, kind)
    row = await queries.latest.one(connection, params, where)
    return None if row is None else _snapshot(connection, row)


async def record(connection: Connection, scope: scopes.Scope, new: NewSnapshot) -> Snapshot:
    """Record a snapshot, in the transaction of whatever goes with it. Doing it again with the same id changes nothing.

    Raises:
        NotFound: there is no such run in a live session.
        Conflict: there is another snapshot under this id.
        Stale: what it lies on was removed meanwhile.
    """
    params = scope.params(run_id=parse_id(new.run_id, "run id"), id=new.id)
    if await states.queries.get.one(connection, params) is None:
        raise states.run_not_found(new.run_id)
    there = await queries.there.one(connection, params)
    if there is not None:
        return _same(_snapshot(connection, there), new)
    if isinstance(new.layer, NewLayer):
        added = await layers.add(connection, scope, new.layer)
        layer_id, depth, stored = added.id, added.depth, added.stored_bytes
    else:
        layer_id, depth, stored = new.layer, await layers.lock(connection, scope, new.layer), 0
    params |= {
        "step": None if new.step is None else parse_step(new.step),
        "parent_id": new.parent_id,
        "kind": new.kind,
        "layer_id": layer_id,
        "entry_count": new.entry_count,
        "tree_bytes": new.tree_bytes,
        "size_bytes": stored,
        "depth": depth,
        "now_at": scope.clock.now_us(),
    }
    row = await queries.add.one(connection, params)
    if row is None:
        raise Conflict(f"there is another snapshot under the id {new.id}")
    return _snapshot(connection, row)


async def delete(
    connection: Connection, scope: scopes.Scope, ids: Sequence[str], *, reason: str, released: set[bytes] | None = None
) -> list[Snapshot]:
    """Remove snapshots and what no other needs of them, and note it; for other stores, in their transaction.

    The objects that their layers held are added to ``released``.
    """
    rows = [await queries.remove.one(connection, scope.params(id=each)) for each in ids]
    removed = [_snapshot(connection, row) for row in rows if row is not None]
    for layer_id in sorted({each.layer_id for each in removed}):
        await layers.collect_from(connection, scope, layer_id, released)
    await activity.record_all(connection, scope, [_deed(each, reason) for each in removed])
    return removed


def kind_of(kind: object) -> SnapshotKind:
    """A kind of snapshot that the caller gave.

    Raises:
        InvalidInput: it is none.
    """
    if kind not in get_args(SnapshotKind):
        raise InvalidInput(f"kind is one of {', '.join(get_args(SnapshotKind))}, not {str(kind)[:60]!r}")
    return cast(SnapshotKind, kind)


def parse_step(step: int) -> int:
    """The number of a step that the caller gave.

    Raises:
        InvalidInput: it is none.
    """
    return whole_number(step, "step", maximum=_MAX_STEP - 1)


def _of(scope: scopes.Scope, run_id: str | None, step: int | None, kind: str | None) -> tuple[dict[str, Any], str]:
    """Parameters and conditions for the snapshots of a run, a step, a kind."""
    params, where = scope.params(), ""
    if run_id is not None:
        params["run_id"] = parse_id(run_id, "run id")
    if step is not None:
        params["step"], where = parse_step(step), "\n  AND s.step = :step"
    if kind is not None:
        params["kind"], where = kind_of(kind), where + "\n  AND s.kind = :kind"
    return params, where


def _snapshot(connection: Connection, row: Row) -> Snapshot:
    return mapper(Snapshot, connection.dialect)([row])[0]


def _deed(removed: Snapshot, reason: str) -> NewActivity:
    details = {"run_id": removed.run_id, "size_bytes": removed.size_bytes}
    return NewActivity(action=DELETED, subject_kind="snapshot", subject_id=removed.id, reason=reason, details=details)


def _same(there: Snapshot, new: NewSnapshot) -> Snapshot:
    if (there.run_id, there.step, there.kind) != (parse_id(new.run_id, "run id"), new.step, new.kind):
        raise Conflict(f"there is another snapshot under the id {new.id}")
    return there


def _cursor(snapshot: Snapshot) -> str:
    return encode_cursor("snapshots", to_us(snapshot.created_at), snapshot.id)
