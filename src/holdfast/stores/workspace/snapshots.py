"""Snapshots: directory trees as captured after steps of a run.

A snapshot is whole or absent: its rows are written in one transaction, after everything they refer to. Its content is
stored in layers (``layers``), whose content is objects. ``acme.workspaces.capture`` creates snapshots; this store
reads and removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...clock import to_us
from ...core import objects as bodies
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
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
from ...trees.entries import Tree, TreeEntry, objects_of, path_bytes, path_text
from ..execution.runs import states
from ..objects import activity, objects, packs
from ..objects.activity import NewActivity
from ..objects.packs import InPack
from . import layers, retention_rules
from .layers import NewLayer
from .snapshot_rows import NewSnapshot, Snapshot, SnapshotKind, SnapshotUsage, TreePage, check_same, kind_of, parse_step

DELETED = "checkpoint.deleted"
"""The action under which the removal of a snapshot appears in the activity log."""

queries = Queries(__package__, "snapshots.sql", Snapshot)


class AsyncSnapshots(TenantStore):
    """The snapshots of one tenant."""

    @reads
    async def get(self, connection: Connection, snapshot_id: Id) -> Snapshot:
        """Return a snapshot.

        Raises:
            NotFound: it does not exist, or its session was deleted.
        """
        return await get(connection, self._scope, snapshot_id)

    @reads
    async def find(
        self, connection: Connection, run_id: Id, *, step: int | None = None, kind: SnapshotKind | None = None
    ) -> Snapshot | None:
        """Return the newest snapshot of a run, optionally of one step or kind, or ``None``."""
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
        """List snapshots, the newest first: all, or those of a run, a step or a kind. With ``limit``, return a page.

        Raises:
            InvalidFilter: the cursor belongs to another list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params, where = _condition(self._scope, run_id, step, kind)
        params["limit"] = rows_to_read(limit, limits)
        if run_id is not None:
            where += "\n  AND s.run_id = :run_id"
        where += after_clause(cursor, "snapshots", {"s.created_at": "time", "s.id": "id"}, params, connection.dialect)
        index = "snapshots_by_time" if run_id is None else "snapshots_by_run"
        snapshots = mapper(Snapshot, connection.dialect)(await queries.list.all(connection, params, where, index))
        return page(snapshots, limit, limits, "snapshots", _cursor)

    @only_reads
    async def tree(self, snapshot_id: Id) -> Tree:
        """Return all entries of a snapshot by path, and the ignore patterns.

        Raises:
            NotFound: the snapshot does not exist.
            Corrupt: it cannot be read.
            Unavailable: it is stored in packs, and the storage of packs cannot be reached.
        """

        manifests = await self._read_manifests(snapshot_id)
        return await work(self._engine, lambda: layers.tree_of(manifests))

    @only_reads
    async def entries(self, snapshot_id: Id, *, limit: int, cursor: str | None = None) -> TreePage:
        """Return a page of a snapshot's entries, in order of paths. The cost depends on the page, not on the tree.

        Raises:
            NotFound: the snapshot does not exist.
            InvalidFilter: the cursor belongs to another list.
            LimitExceeded: ``limit`` is over ``page_rows``.
            Corrupt: the snapshot cannot be read.
            Unavailable: it is stored in packs, and the storage of packs cannot be reached.
        """
        if limit is None:
            raise InvalidInput("limit must be a positive integer, not None", field="limit")
        row_limit = rows_to_read(limit, self._scope.limits)
        after = None if cursor is None else path_text(decode_cursor(cursor, "tree", bytes)[0])
        manifests = await self._read_manifests(snapshot_id)
        entries, ignore = await work(self._engine, lambda: layers.page_of(manifests, after, row_limit))
        next = encode_cursor("tree", path_bytes(entries[limit - 1].path)) if len(entries) > limit else None
        return TreePage(entries[:limit], ignore, next)

    @only_reads
    async def read(self, snapshot_id: Id, path: str) -> bytes:
        """Return the content of one file.

        Raises:
            NotFound: the snapshot does not exist, or it does not contain such a file.
            LimitExceeded: the file is over ``content_bytes``: restore it instead.
            Corrupt: the content differs from the captured content.
            Unavailable: it is stored in a pack, and the storage of packs cannot be reached.
        """
        manifests = await self._read_manifests(snapshot_id)
        entry = await work(self._engine, lambda: layers.entry_of(manifests, path))
        if entry is None or entry.kind != "file":
            raise NotFound(f"snapshot {snapshot_id} does not contain a file {path!r}", noun="file", key=path)
        self._scope.limits.check("content_bytes", entry.size, path)
        content = await self._bodies(entry)
        return b"".join(
            content[digest][start : start + length] if digest else bytes(length)
            for digest, start, length in entry.pieces
        )

    @writes
    async def delete(self, connection: Connection, snapshot_ids: Sequence[Id], *, reason: str) -> Sequence[Snapshot]:
        """Delete snapshots, with everything that no other snapshot needs; return those that existed.

        Deleting them again changes nothing. The space is freed by ``objects.prune``.

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
        """Remove layers left by snapshots that were removed with their runs; return their number."""
        return await layers.collect(connection, self._scope)

    @reads
    async def usage(self, connection: Connection) -> SnapshotUsage:
        """Return the number of snapshots and layers, and their stored bytes. Objects stored for other purposes are
        not counted.
        """
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
        """Return the tree of a layer and the number of layers below it; raise ``NotFound`` if it was removed."""

        async def read() -> Sequence[bytes]:
            return await self._out_of_packs(await self._layer_manifests(layer_id))

        manifests = await packs.retry_moved(read)
        return await work(self._engine, lambda: layers.tree_of(manifests)), len(manifests) - 1

    @reads
    async def _layer_manifests(self, connection: Connection, layer_id: str) -> Sequence[Packed | InPack]:
        if await layers.queries.has.one(connection, self._scope.params(layer_id=layer_id)) is None:
            raise NotFound(f"layer {layer_id} does not exist", noun="layer", key=layer_id)
        return await layers.manifests_of(connection, self._scope, layer_id)

    async def _read_manifests(self, snapshot_id: str) -> Sequence[bytes]:
        async def read() -> Sequence[bytes]:
            _, manifests = await self._manifests(snapshot_id)
            return await self._out_of_packs(manifests)

        return await packs.retry_moved(read)

    async def _out_of_packs(self, items: Sequence[Packed | InPack]) -> Sequence[bytes]:
        """Return the uncompressed bodies, reading those in packs from there."""
        in_packs = [item for item in items if isinstance(item, InPack)]
        packed_bodies = await packs.read_stored(self._engine, self._scope, in_packs) if in_packs else {}
        stored_bodies = [packed_bodies[item.digest] if isinstance(item, InPack) else item.body for item in items]

        def unpacked() -> list[bytes]:
            return [
                bodies.unpack(item.digest, item.codec, body) for item, body in zip(items, stored_bodies, strict=True)
            ]

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
            raise InvalidInput("snapshot_ids must be a list", field="snapshot_ids")
        self._scope.limits.check("batch_rows", len(ids), "snapshot_ids")
        return sorted({parse_id(snapshot_id, "snapshot id") for snapshot_id in ids})


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
    """Return a snapshot; for other stores, in their transaction.

    Raises:
        NotFound: it does not exist, or its session was deleted.
    """
    row = await queries.get.one(connection, scope.params(id=parse_id(snapshot_id, "snapshot id")))
    if row is None:
        raise NotFound(f"snapshot {snapshot_id} does not exist", noun="snapshot", key=snapshot_id)
    return _snapshot(connection, row)


async def find(connection: Connection, scope: scopes.Scope, snapshot_id: str) -> Snapshot | None:
    """Return a snapshot, visible or not, or ``None``."""
    row = await queries.find.one(connection, scope.params(id=snapshot_id))
    return None if row is None else _snapshot(connection, row)


async def latest(
    connection: Connection, scope: scopes.Scope, run_id: str, *, step: int | None = None, kind: str | None = None
) -> Snapshot | None:
    """Return the newest snapshot of a run, optionally of one step or kind; for other stores, in their transaction."""
    params, where = _condition(scope, run_id, step, kind)
    row = await queries.latest.one(connection, params, where)
    return None if row is None else _snapshot(connection, row)


async def record(connection: Connection, scope: scopes.Scope, new: NewSnapshot) -> Snapshot:
    """Record a snapshot, in the transaction of its related changes. Recording it again with the same id changes
    nothing.

    Raises:
        NotFound: the run does not exist in a live session.
        Conflict: another snapshot has this id.
        Stale: the layer it is based on was removed in the meantime.
    """
    params = scope.params(run_id=parse_id(new.run_id, "run id"), id=new.id)
    if await states.queries.get.one(connection, params) is None:
        raise states.run_not_found(new.run_id)
    existing_row = await queries.find.one(connection, params)
    if existing_row is not None:
        return check_same(_snapshot(connection, existing_row), new)
    if isinstance(new.layer, NewLayer):
        added = await layers.add(connection, scope, new.layer)
        layer_id, depth, stored_bytes = added.id, added.depth, added.stored_bytes
    else:
        layer_id, depth, stored_bytes = new.layer, await layers.lock(connection, scope, new.layer), 0
    params |= {
        "step": None if new.step is None else parse_step(new.step),
        "parent_id": new.parent_id,
        "kind": new.kind,
        "layer_id": layer_id,
        "entry_count": new.entry_count,
        "tree_bytes": new.tree_bytes,
        "size_bytes": stored_bytes,
        "depth": depth,
        "now_at": scope.clock.now_us(),
    }
    row = await queries.add.one(connection, params)
    if row is None:
        raise Conflict(f"snapshot {new.id} already exists, of another run, step or kind", reason="other_content")
    return _snapshot(connection, row)


async def delete(
    connection: Connection, scope: scopes.Scope, ids: Sequence[str], *, reason: str, released: set[bytes] | None = None
) -> list[Snapshot]:
    """Delete snapshots with what no other needs of them, and log it; for other stores, in their transaction.

    The objects that their layers referenced are added to ``released``.
    """
    rows = [await queries.remove.one(connection, scope.params(id=snapshot)) for snapshot in ids]
    removed = [_snapshot(connection, row) for row in rows if row is not None]
    for layer_id in sorted({snapshot.layer_id for snapshot in removed}):
        await layers.collect_from(connection, scope, layer_id, released)
    await activity.record_all(connection, scope, [_deed(snapshot, reason) for snapshot in removed])
    return removed


def _condition(
    scope: scopes.Scope, run_id: str | None, step: int | None, kind: str | None
) -> tuple[dict[str, Any], str]:
    """Return the parameters and conditions for the snapshots of a run, a step and a kind."""
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


def _deed(snapshot: Snapshot, reason: str) -> NewActivity:
    details = {"run_id": snapshot.run_id, "size_bytes": snapshot.size_bytes}
    return NewActivity(action=DELETED, subject_kind="snapshot", subject_id=snapshot.id, reason=reason, details=details)


def _cursor(snapshot: Snapshot) -> str:
    return encode_cursor("snapshots", to_us(snapshot.created_at), snapshot.id)
