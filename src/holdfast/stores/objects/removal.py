"""Removes released objects at once, for example those of a removed snapshot, and the packs that become empty.

``objects.prune`` finds unheld objects by scanning all of them, and keeps each for an hour. Here the digests are known.
Each object is locked first, which waits for a writer that is about to hold it, and removed by the next statement if it is still
unheld: a later writer does not find it and stores its own body, or starts over. Packs are handled in the same
way. Files are removed after the commit, and their rows after the files; a process that dies in between leaves condemned packs
for the next prune.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from ...core.scope import Scope
from ...engines.protocol import Connection, Engine
from ...errors import Unavailable
from . import objects, packs

BATCH = 200
"""Objects removed in one transaction."""


class _TouchedPacks(Struct, frozen=True):
    """Packs that objects were removed from: the empty ones, and those of which less than half is used."""

    empty: Sequence[str]
    sparse: Sequence[str]


async def remove_unheld(engine: Engine, scope: Scope, released: Collection[bytes]) -> None:
    """Remove the objects that have no holder. In a joined transaction, this is left to ``prune``."""
    if engine.joined:
        return
    ordered = sorted(released)
    for start in range(0, len(ordered), BATCH):
        batch = ordered[start : start + BATCH]
        touched = await engine.write(lambda connection, batch=batch: _remove(connection, scope, batch))  # type: ignore[misc]
        try:
            await packs.remove_condemned(engine, scope, touched.empty)
            for pack in touched.sparse if scope.packs is not None else ():
                await packs.repack_one(engine, scope, pack)
                repacked = await engine.write(lambda connection, pack=pack: _classify(connection, scope, [pack]))  # type: ignore[misc]
                await packs.remove_condemned(engine, scope, repacked.empty)
        except Unavailable:
            pass  # the objects are removed; the next prune removes the files


async def _remove(connection: Connection, scope: Scope, digests: Sequence[bytes]) -> _TouchedPacks:
    count = size_bytes = stored_bytes = 0
    touched: set[str] = set()
    for digest in digests:
        params = scope.params(digest=digest)
        if await objects.queries.lock.one(connection, params) is None:
            continue
        row = await objects.queries.remove_locked.one(connection, params)
        if row is not None:
            count, size_bytes, stored_bytes = count + 1, size_bytes + int(row[0]), stored_bytes + int(row[1])
            touched |= {row[2]} - {None}
    if count:
        removed = scope.params(count=-count, size_bytes=-size_bytes, stored_bytes=-stored_bytes)
        await objects.queries.count.all(connection, removed)
    return await _classify(connection, scope, sorted(touched))


async def _classify(connection: Connection, scope: Scope, touched: Sequence[str]) -> _TouchedPacks:
    """Condemn the packs that are empty, and find those that are mostly unused."""
    empty, sparse = [], []
    for pack in touched:
        unused_bytes = await packs.condemn_unused(connection, scope, pack)
        if unused_bytes is None:
            empty.append(pack)
        elif unused_bytes > await _used_bytes(connection, scope, pack):
            sparse.append(pack)
    return _TouchedPacks(empty, sparse)


async def _used_bytes(connection: Connection, scope: Scope, pack: str) -> int:
    row = await packs.queries.used_bytes.one(connection, scope.params(pack=pack))
    return 0 if row is None else int(row[0])
