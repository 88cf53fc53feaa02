"""Layers: what the trees of snapshots consist of.

A layer is a whole tree, or the difference to the layer below it. It holds the objects it brought along and the one that says
what its entries are; those of the layers below it are held by them. So a snapshot of a tree in which little has changed is small,
and a snapshot that goes takes with it only what no other needs: a layer stays as long as a snapshot or another layer lies on it.
So that what is below does not grow for ever, a tree that lies on too many layers is written down as a whole again.
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
"""Layers looked at in one transaction that may be needed no longer."""


class LayerPart(Struct, frozen=True):
    """Objects that are written: in a pack, or, without one, to be stored in the database."""

    packed: Sequence[Packed]
    staged: Staged | None = None


class NewLayer(Struct, frozen=True):
    """A layer that is about to be added."""

    manifest: Packed
    parent_id: str | None = None
    """The layer below it."""
    parts: Sequence[LayerPart] = ()
    """What is new in it."""
    held: Sequence[bytes] = ()
    """Objects that are here already and that it needs, because it lies on nothing."""
    replaced_bytes: int = 0
    """Of the files below it that it replaces or removes."""


class AddedLayer(Struct, frozen=True):
    """A layer that was added."""

    id: str
    depth: int
    stored_bytes: int


def manifest_of(difference: Difference) -> Packed:
    """The object that says what is in a layer."""
    return bodies.pack(manifests.write(difference))


async def lock(connection: Connection, scope: Scope, layer_id: str) -> int:
    """Keep a layer from going until the transaction ends; how many are below it.

    Raises:
        Stale: it is gone.
    """
    row = await queries.lock.one(connection, scope.params(layer_id=layer_id))
    if row is None:
        raise Stale("the snapshot that this one is a difference to was removed meanwhile: capture again")
    return int(row[0])


async def add(connection: Connection, scope: Scope, new: NewLayer) -> AddedLayer:
    """Add a layer and hold what it needs.

    Raises:
        Stale: what it lies on, or something that it counts on, was removed meanwhile.
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
    """The manifests that a tree consists of, the whole one first: as they are stored, or where they lie.

    Raises:
        Corrupt: one is missing.
    """
    rows = await queries.chain.all(connection, scope.params(layer_id=layer_id))
    if [row[1] for row in rows] != list(range(len(rows))) or not rows:
        raise Corrupt(f"the layers of the tree {layer_id} are not all there")
    return await objects.read_stored(connection, scope, [bytes(row[0]) for row in rows])


def tree_of(read: Sequence[bytes]) -> Tree:
    """The tree that these manifests come to."""
    entries: dict[str, TreeEntry] = {}
    ignore: Sequence[str] = ()
    for body in read:
        difference = manifests.read(body)
        difference.apply(entries)
        ignore = difference.ignore
    return Tree(entries, ignore)


def entry_of(read: Sequence[bytes], path: str) -> TreeEntry | None:
    """One entry of the tree that these manifests come to, without reading the others."""
    for body in reversed(read):
        is_known, entry = manifests.ManifestReader(body).find(path)
        if is_known:
            return entry
    return None


def page_of(read: Sequence[bytes], after: str | None, limit: int) -> tuple[list[TreeEntry], Sequence[str]]:
    """Entries of the tree that these manifests come to, from a path on in their order, and what was ignored."""
    opened = [
        manifests.ManifestReader(body) for body in reversed(read)
    ]  # the topmost first: what it says of a path counts
    said = merge(*(each.after(after) for each in opened), key=itemgetter(0))
    entries: list[TreeEntry] = []
    last = None
    for path, entry in said:
        if path != last and entry is not None:
            entries.append(entry)
            if len(entries) == limit:
                break
        last = path
    return entries, opened[0].ignore


async def collect(connection: Connection, scope: Scope) -> int:
    """Remove layers that nothing needs any longer and let go of what they hold; how many those were."""
    loose = await queries.loose.all(connection, scope.params(limit=MAX_LOOSE))
    return sum([await collect_from(connection, scope, row[0]) for row in loose])


async def collect_from(
    connection: Connection, scope: Scope, layer_id: str | None, released: set[bytes] | None = None
) -> int:
    """Remove a layer and those below it, down to the first that is still needed; how many.

    The objects that they held are added to ``released``; ``removal.remove_unheld`` removes those that nothing else holds.
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
            released.update(bytes(each[0]) for each in rows)
        count, layer_id = count + 1, row[0]
    return count


def holder_of(layer_id: str) -> str:
    """As whom a layer holds objects."""
    return f"layer:{layer_id}"
