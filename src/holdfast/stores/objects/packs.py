"""Large objects in packs: how bodies are written to packs, read from them and removed.

A writer of a pack first registers it in the database, then writes the file, and *seals* the pack in the transaction of the rows
that need it.

* A pack file that is not registered belongs to no writer, because registration comes first: any process may delete it.
* A registered pack that is not sealed is removed after a while; a writer that seals it too late is told so, and stores the
  bodies in the database instead.
* Nothing is added to a sealed pack. When the last object in it is removed it stays empty forever, and is removed: it is
  *condemned*, then its file is removed, then its row. A process that dies in between leaves the rest to the next prune.

No file is ever written or removed inside a transaction. In a joined transaction all bodies are stored in the database.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from ...core import objects as bodies
from ...core import packs
from ...core.objects import Packed
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.scope import Scope
from ...engines.protocol import Connection, Engine
from ...errors import Corrupt, CrossTenant, NotFound, PackStorageMissing

T = TypeVar("T")

MAX_TRIES = 100
"""How often objects are read again because they were moved to another pack during the read."""
MAX_REPACKED = 8
"""Mostly unused packs that one prune rewrites."""

queries = Queries(__package__, "packs.sql")


class Staged(Struct, frozen=True):
    """A pack that is written and not yet sealed, and the start of each body in it."""

    id: str
    starts: Mapping[bytes, int]


class InPack(Struct, frozen=True):
    """The location of a body that must be fetched from its pack."""

    digest: bytes
    codec: int
    pack: str
    start: int
    length: int


async def stage(engine: Engine, scope: Scope, packed: Sequence[Packed]) -> Staged | None:
    """Write the large bodies that are not stored yet into a new pack; ``None`` if there are none."""
    large = {body.digest: body for body in packed if len(body.body) >= scope.limits.pack_from_bytes}
    if not large or scope.packs is None or engine.joined:
        return None
    existing = await engine.read(lambda connection: _existing(connection, scope, list(large)))
    new = [body for digest, body in large.items() if digest not in existing]
    return await write(engine, scope, new) if new else None


async def write(engine: Engine, scope: Scope, packed: Sequence[Packed]) -> Staged:
    """Write bodies into a new pack."""
    assert scope.packs is not None
    starts, end = {}, 0
    for body in packed:
        starts[body.digest] = end
        end += len(body.body)
    params = scope.params(pack=scope.ids.new(), size_bytes=end, now_at=scope.clock.now_us())
    await engine.write(lambda connection: _register(connection, params))
    content = b"".join(body.body for body in packed)
    await scope.packs.write(_path(scope, params["pack"]), content, blocking=engine.blocking)
    return Staged(params["pack"], starts)


async def seal(connection: Connection, scope: Scope, staged: Staged | None) -> Staged | None:
    """Seal a pack in the open transaction; ``None`` if it was removed because sealing came too late."""
    if staged is None:
        return None
    return None if await queries.seal.one(connection, scope.params(pack=staged.id)) is None else staged


async def condemn(connection: Connection, scope: Scope, params: Mapping[str, Any]) -> None:
    """Condemn empty packs: sealed ones, and those that were not sealed in time."""
    empty = await queries.lock_empty.all(connection, params)
    await queries.condemn.many(connection, [scope.params(pack=id, now_at=params["now_at"]) for (id,) in empty])


async def fetch(engine: Engine, scope: Scope, references: Sequence[InPack]) -> dict[bytes, bytes]:
    """Return the verified bodies of packs, by digest.

    Raises:
        NotFound: a pack does not exist.
        Corrupt: a body is damaged.
    """
    stored_bodies = await read_stored(engine, scope, references)
    return {item.digest: bodies.unpack(item.digest, item.codec, stored_bodies[item.digest]) for item in references}


async def read_stored(engine: Engine, scope: Scope, references: Sequence[InPack]) -> dict[bytes, bytes]:
    """Return bodies of packs in their stored form, by digest."""
    stored_bodies: dict[bytes, bytes] = {}
    by_pack: dict[str, dict[bytes, InPack]] = {}
    for reference in references:
        by_pack.setdefault(reference.pack, {})[reference.digest] = reference
    for pack, members in by_pack.items():
        spans = [(member.start, member.length) for member in members.values()]
        contents = await _storage(scope).read(_path(scope, pack), spans, blocking=engine.blocking)
        stored_bodies.update(zip(members, contents, strict=True))
    return stored_bodies


async def retry_moved(read: Callable[[], Awaitable[T]]) -> T:
    """Read again while a pack that the rows refer to is removed before it can be read.

    Raises:
        Corrupt: a pack is missing, and its objects were not moved.
    """
    missing = ""
    for _ in range(MAX_TRIES):
        try:
            return await read()
        except NotFound as error:
            if error.noun != "pack":
                raise
            # Objects are moved before their pack is removed: rows that are read again refer to another pack, or this one is lost.
            if error.key == missing:
                break
            missing = error.key
    raise Corrupt(f"pack {missing!r} is missing, and objects are stored in it")


async def clear(engine: Engine, scope: Scope) -> int:
    """Remove the condemned packs and the unregistered files, and return how many files were removed."""
    if scope.packs is None or engine.joined:
        return 0
    paths = await scope.packs.names(packs.folder_of(scope.tenant), blocking=engine.blocking)
    # List the files before the rows: a file in this list was registered before the rows are read, or never will be.
    rows = await engine.read(lambda connection: queries.noted.all(connection, scope.params()))
    is_condemned: dict[str, Any] = {row[0]: row[1] for row in rows}
    condemned = [id for id in is_condemned if is_condemned[id]]
    needed = {_path(scope, id) for id in is_condemned if not is_condemned[id]}
    removed = [path for path in paths if path not in needed]
    await scope.packs.remove(own_paths(scope, removed), blocking=engine.blocking)
    if condemned:
        await engine.write(lambda connection: _unregister(connection, scope, condemned))
    return len(removed)


def own_paths(scope: Scope, paths: Sequence[str]) -> Sequence[str]:
    """Return these paths after checking that all of them are packs of this tenant. Call this before removing any.

    Raises:
        CrossTenant: a path is not.
    """
    folder = packs.folder_of(scope.tenant)
    for path in paths:
        first, slash, rest = path.partition("/")
        if first != folder or not slash or not rest or "/" in rest or rest in (".", ".."):
            raise CrossTenant(
                f"a sweep of tenant {scope.tenant!r} was about to remove {path!r}, which does not belong to it",
                tenant=scope.tenant,
                path=path,
            )
    return paths


async def repack(engine: Engine, scope: Scope) -> int:
    """Copy the used objects of mostly unused packs into new ones, which empties the old ones; return how many packs."""
    if scope.packs is None or engine.joined:
        return 0
    params = scope.params(limit=MAX_REPACKED)
    sparse = [row[0] for row in await engine.read(lambda connection: queries.sparse.all(connection, params))]
    for pack in sparse:
        await repack_one(engine, scope, pack)
    return len(sparse)


async def condemn_unused(connection: Connection, scope: Scope, pack: str) -> int | None:
    """Condemn a sealed pack if it is empty and return ``None``; otherwise return the bytes of it that are unused."""
    params = scope.params(pack=pack, now_at=scope.clock.now_us())
    row = await queries.lock.one(connection, params)
    if row is None:
        return 0  # another process has condemned it
    used = await queries.used_bytes.one(connection, params)
    if used is not None and int(used[0]) > 0:
        return int(row[0]) - int(used[0])
    await queries.condemn.all(connection, params)
    return None


async def remove_condemned(engine: Engine, scope: Scope, ids: Sequence[str]) -> None:
    """Remove the files of condemned packs, and then their rows.

    Raises:
        Unavailable: the pack storage cannot be reached; the next prune removes them.
    """
    if not ids or scope.packs is None:
        return
    paths = own_paths(scope, [_path(scope, id) for id in ids])
    await scope.packs.remove(paths, blocking=engine.blocking)
    await engine.write(lambda connection: _unregister(connection, scope, ids))


async def repack_one(engine: Engine, scope: Scope, pack: str) -> None:
    """Copy the used objects of a pack into a new one."""
    rows = await engine.read(lambda connection: queries.members.all(connection, scope.params(pack=pack)))
    members = [InPack(bytes(digest), codec, pack, start, length) for digest, codec, start, length in rows]
    # Damaged or missing bodies are skipped here: verify reports them, and they must not prevent pruning the other packs.
    try:
        stored_bodies = await read_stored(engine, scope, members)
    except (Corrupt, NotFound):
        return
    packed = [Packed(member.digest, member.codec, stored_bodies[member.digest], 0) for member in members]
    if any(len(body.body) != member.length for body, member in zip(packed, members, strict=True)):
        return
    staged = await write(engine, scope, packed)
    await engine.write(lambda connection: _move(connection, scope, pack, staged))


async def _move(connection: Connection, scope: Scope, pack: str, staged: Staged) -> None:
    if await seal(connection, scope, staged) is None:
        return
    moves = [
        scope.params(digest=digest, old_pack=pack, pack=staged.id, pack_start=start)
        for digest, start in sorted(staged.starts.items())
    ]
    await queries.move.many(connection, moves)


async def _existing(connection: Connection, scope: Scope, digests: Sequence[bytes]) -> set[bytes]:
    existing = set()
    for digest in digests:
        if await queries.has.one(connection, scope.params(digest=digest)) is not None:
            existing.add(digest)
    return existing


async def _register(connection: Connection, params: Mapping[str, Any]) -> None:
    await register_tenant(connection, params)
    await queries.note.all(connection, params)


async def _unregister(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    await queries.forget.many(connection, [scope.params(pack=id) for id in ids])


def _path(scope: Scope, pack: str) -> str:
    return f"{packs.folder_of(scope.tenant)}/{pack}"


def _storage(scope: Scope) -> packs.PackStorage:
    if scope.packs is None:
        raise PackStorageMissing(f"objects of tenant {scope.tenant!r} are stored in packs: {packs.PACKS_HINT}")
    return scope.packs
