"""Snapshots created without files: trees of chosen objects, on chosen layers. Fast, and exact to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from holdfast import TenantHandle
from holdfast.core import objects as bodies
from holdfast.engines.protocol import Connection
from holdfast.stores.workspace import layers, snapshots
from holdfast.stores.workspace.layers import LayerPart, NewLayer
from holdfast.stores.workspace.snapshot_rows import NewSnapshot
from holdfast.sync_runner import step
from holdfast.trees.entries import ContentPiece, Difference, TreeEntry, objects_of
from holdfast.types import Snapshot
from holdfast.workspaces import capture


def body(number: int, size: int) -> bytes:
    """A body that is stored in as many bytes as it has; the same for the same number."""
    return Random(number).randbytes(size)


def forge(tenant: TenantHandle, run_id: str, tree: Sequence[bytes], *, on: Snapshot | None = None) -> Snapshot:
    """Capture a tree of these bodies, a file each, as a whole or as the difference to the tree of another snapshot.

    What a capture does when it has read all files: the same transaction, the same cap.
    """
    packed = [bodies.pack(content) for content in tree]
    entries = {pack.digest.hex(): _entry(pack) for pack in packed}
    before = {} if on is None else dict(tenant.snapshots.tree(on.id).entries)
    new = [entry for path, entry in entries.items() if path not in before]
    difference = Difference(new, [path for path in before if path not in entries])
    parts = [LayerPart([pack for pack in packed if pack.digest in objects_of(new)])]
    layer = NewLayer(layers.manifest_of(difference), None if on is None else on.layer_id, parts)
    size = sum(pack.size_bytes for pack in packed)
    expected = NewSnapshot(run_id, None, "step", None, layer, len(entries), size, tenant._scope.ids.new())
    recorded, removed = step(
        tenant._engine.write(lambda connection: capture._record(connection, tenant._scope, expected))
    )
    capture.rules.log_removals(tenant._scope, removed, "per_run_cap")
    return recorded


def _entry(packed: bodies.Packed) -> TreeEntry:
    piece = ContentPiece(packed.digest, 0, packed.size_bytes)
    return TreeEntry(packed.digest.hex(), "file", 0o644, 0, packed.size_bytes, "", packed.digest, (piece,))


def intact(tenant: TenantHandle, ids: Sequence[str]) -> bool:
    """Return whether every body of these snapshots can be read."""
    for snapshot_id in ids:
        for path in tenant.snapshots.tree(snapshot_id).entries:
            if bodies.digest_of(tenant.snapshots.read(snapshot_id, path)).hex() != path:
                return False
    return True


async def many(connection: Connection, tenant: TenantHandle, run_id: str, count: int) -> None:
    """Create a number of small snapshots of a run at once, regardless of any cap."""
    for number in range(count):
        manifest = layers.manifest_of(Difference([], [str(number)]))
        layer = NewLayer(manifest, None, [LayerPart([bodies.pack(b"%d of %s" % (number, run_id.encode()))])])
        new = NewSnapshot(run_id, None, "step", None, layer, 0, 0, tenant._scope.ids.new())
        await snapshots.record(connection, tenant._scope, new)
