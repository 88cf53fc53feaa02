"""Layers: the trees of snapshots, stored as differences.

A layer is a whole tree, or the difference to the layer below it. It references its manifest and the objects it added;
the objects of lower layers are referenced by those layers. So a snapshot of a tree with few changes is small, and a
removed snapshot frees only objects that no other snapshot needs: a layer stays as long as a snapshot or another layer
is based on it. To bound the depth, a tree on too many layers is stored as a whole again.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from operator import itemgetter

from msgspec import Struct

from ...core import objects as bodies
from ...core.objects import Packed
from ...core.queries import Queries
from ...core.scope import Scope
from ...engines.protocol import Connection
from ...errors import Corrupt, Stale
from ...trees import manifests
from ...trees.entries import Difference, Tree, TreeEntry
from ..objects import objects
from ..objects.packs import InPack, Staged

queries = Queries(__package__, "layers.sql")

MAX_LOOSE = 1_000
"""Layers checked in one transaction that may no longer be needed."""


class LayerPart(Struct, frozen=True):
    """New objects: in a pack or, without one, to be stored in the database."""

    packed: Sequence[Packed]
    staged: Staged | None = None


class NewLayer(Struct, frozen=True):
    """A layer to be added."""

    manifest: Packed
    parent_id: str | None = None
    """The layer it is based on."""
    parts: Sequence[LayerPart] = ()
    """Objects that are new in it."""
    held: Sequence[bytes] = ()
    """Digests of stored objects that it needs, if it has no parent."""
    replaced_bytes: int = 0
    """Size of the files in its parent that it replaces or removes."""


class AddedLayer(Struct, frozen=True):
    """A layer that was added."""

    id: str
    depth: int
    stored_bytes: int


def manifest_of(difference: Difference) -> Packed:
    """Return the object that contains the entries of a layer."""
    return bodies.pack(manifests.write(difference))


async def lock(connection: Connection, scope: Scope, layer_id: str) -> int:
    """Keep a layer from being removed until the transaction ends; return the number of layers below it.

    Raises:
        Stale: the layer was removed.
    """
    row = await queries.lock.one(connection, scope.params(layer_id=layer_id))
    if row is None:
        raise Stale("the snapshot that this one is based on was removed in the meantime: capture again")
    return int(row[0])


async def add(connection: Connection, scope: Scope, new: NewLayer) -> AddedLayer:
    """Add a layer and reference the objects it needs.

    Raises:
        Stale: its parent, or an object it needs, was removed in the meantime.
        LimitExceeded: all of the tenant's objects would take more than ``object_bytes``.
    """
    depth = 0 if new.parent_id is None else 1 + await lock(connection, scope, new.parent_id)
    layer_id = scope.ids.new()
    holder = holder_of(layer_id)
    stored = 0
    for part in [*new.parts, LayerPart([new.manifest])]:
        stored += await objects.keep(connection, scope, part.packed, holder=holder, staged=part.staged)
    await objects.hold(connection, scope, new.held, holder=holder)
    params = scope.params(
        layer_id=layer_id,
        parent_layer_id=new.parent_id,
        depth=depth,
        manifest=new.manifest.digest,
        stored_bytes=stored,
        replaced_bytes=new.replaced_bytes,
        now_at=scope.clock.now_us(),
    )
    await queries.add.all(connection, params)
    return AddedLayer(layer_id, depth, stored)


async def manifests_of(connection: Connection, scope: Scope, layer_id: str) -> list[Packed | InPack]:
    """Return the manifests that make up a tree, the whole one first: their stored bytes, or their positions in packs.

    Raises:
        Corrupt: one is missing.
    """
    rows = await queries.chain.all(connection, scope.params(layer_id=layer_id))
    if [row[1] for row in rows] != list(range(len(rows))) or not rows:
        raise Corrupt(f"the tree {layer_id} is missing some of its layers")
    return await objects.read_stored(connection, scope, [bytes(row[0]) for row in rows])


def tree_of(manifest_bodies: Sequence[bytes]) -> Tree:
    """Return the tree that results from these manifests."""
    entries: dict[str, TreeEntry] = {}
    ignore: Sequence[str] = ()
    for body in manifest_bodies:
        difference = manifests.read(body)
        difference.apply(entries)
        ignore = difference.ignore
    return Tree(entries, ignore)


def entry_of(manifest_bodies: Sequence[bytes], path: str) -> TreeEntry | None:
    """Return one entry of the tree that results from these manifests, without decoding the others."""
    for body in reversed(manifest_bodies):
        is_listed, entry = manifests.ManifestReader(body).find(path)
        if is_listed:
            return entry
    return None


def page_of(manifest_bodies: Sequence[bytes], after: str | None, limit: int) -> tuple[list[TreeEntry], Sequence[str]]:
    """Return at most ``limit`` entries after a path, in order of paths, and the ignore patterns."""
    readers = [
        manifests.ManifestReader(body) for body in reversed(manifest_bodies)
    ]  # the topmost first: its entry for a path takes precedence
    listed = merge(*(reader.after(after) for reader in readers), key=itemgetter(0))
    entries: list[TreeEntry] = []
    last_path = None
    for path, entry in listed:
        if path != last_path and entry is not None:
            entries.append(entry)
            if len(entries) == limit:
                break
        last_path = path
    return entries, readers[0].ignore


async def collect(connection: Connection, scope: Scope) -> int:
    """Remove layers that nothing needs, with their references to objects; return their number."""
    loose = await queries.loose.all(connection, scope.params(limit=MAX_LOOSE))
    return sum([await collect_from(connection, scope, row[0]) for row in loose])


async def collect_from(
    connection: Connection, scope: Scope, layer_id: str | None, released: set[bytes] | None = None
) -> int:
    """Remove a layer and those below it, down to the first that is still needed; return their number.

    The objects they referenced are added to ``released``; ``removal.remove_unheld`` removes those without other references.
    """
    count = 0
    while layer_id is not None:
        params = scope.params(layer_id=layer_id, holder=holder_of(layer_id))
        if await queries.lock.one(connection, params) is None:
            break
        row = await queries.remove.one(connection, params)
        if row is None:
            break
        rows = await objects.queries.release_all.all(connection, params)
        if released is not None:
            released.update(bytes(row[0]) for row in rows)
        count, layer_id = count + 1, row[0]
    return count


def holder_of(layer_id: str) -> str:
    """Return the name under which a layer references objects."""
    return f"layer:{layer_id}"
