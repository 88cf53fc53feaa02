"""Freeing objects at once: what a removed snapshot held goes with it, and so do the packs in which nothing lies any longer.

``objects.prune`` finds objects that nothing holds by looking at all of them, and waits an hour. Here they are known by their
digests. Each is locked first, which waits for a writer that is about to hold it, and removed by the next statement if still
nothing holds it: a writer that comes later finds it gone and stores its own body, or starts over. Packs are handled in the same
way. Files are removed after the commit, and their notes after the files; a process that dies in between leaves condemned packs
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


class _Packs(Struct, frozen=True):
    """Packs that objects were removed from: those in which nothing is left, and those of which less than half is."""

    empty: Sequence[str]
    sparse: Sequence[str]


async def free(engine: Engine, scope: Scope, released: Collection[bytes]) -> None:
    """Remove these objects, unless something holds them. In a transaction of the caller's own, that is left to ``prune``."""
    if engine.joined:
        return
    ordered = sorted(released)
    for start in range(0, len(ordered), BATCH):
        batch = ordered[start : start + BATCH]
        left = await engine.write(lambda connection, batch=batch: _remove(connection, scope, batch))  # type: ignore[misc]
        try:
            await packs.remove_condemned(engine, scope, left.empty)
            for pack in left.sparse if scope.packs is not None else ():
                await packs.repack_one(engine, scope, pack)
                moved = await engine.write(lambda connection, pack=pack: _packs(connection, scope, [pack]))  # type: ignore[misc]
                await packs.remove_condemned(engine, scope, moved.empty)
        except Unavailable:
            pass  # what was removed is removed; the next prune removes the files


async def _remove(connection: Connection, scope: Scope, digests: Sequence[bytes]) -> _Packs:
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
        gone = scope.params(count=-count, size_bytes=-size_bytes, stored_bytes=-stored_bytes)
        await objects.queries.count.all(connection, gone)
    return await _packs(connection, scope, sorted(touched))


async def _packs(connection: Connection, scope: Scope, touched: Sequence[str]) -> _Packs:
    empty, sparse = [], []
    for pack in touched:
        dead = await packs.condemn_unused(connection, scope, pack)
        if dead is None:
            empty.append(pack)
        elif dead > await _used(connection, scope, pack):
            sparse.append(pack)
    return _Packs(empty, sparse)


async def _used(connection: Connection, scope: Scope, pack: str) -> int:
    row = await packs.queries.used_bytes.one(connection, scope.params(pack=pack))
    return 0 if row is None else int(row[0])
