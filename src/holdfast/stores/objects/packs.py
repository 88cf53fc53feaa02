"""Large objects in packs: how bodies get there, come back, and are removed.

Whoever writes a pack notes its name in the database first, then writes it, and *seals* it in the transaction of what needs it.

* A pack that is not noted is nobody's, whoever finds it: notes come first.
* A pack that is noted and not sealed is removed after a while; whoever comes too late with its seal is told so, and stores the
  bodies in the database instead.
* To a sealed pack nothing is added. When no object lies in it any longer none ever will, and it is removed: it is *condemned*,
  its file is removed, and then its note. A process that dies in between leaves work for the next.

No file is ever written or removed inside a transaction. In a transaction of the caller's own all bodies go into the database.
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
from ...errors import Corrupt, CrossTenant, NotFound, PacksUnknown

T = TypeVar("T")

TRIES = 100
"""How often something is read again because the pack it lay in was removed meanwhile, and it lies in another one now."""
MAX_REPACKED = 8
"""Packs that are mostly dead and are written anew by one prune."""

queries = Queries(__package__, "packs.sql")


class Staged(Struct, frozen=True):
    """A pack that is written and not yet sealed, and where in it each body begins."""

    id: str
    starts: Mapping[bytes, int]


class InPack(Struct, frozen=True):
    """A body that must still be fetched from its pack."""

    digest: bytes
    codec: int
    pack: str
    start: int
    length: int


async def stage(engine: Engine, scope: Scope, packed: Sequence[Packed]) -> Staged | None:
    """Write the large ones of these bodies into a new pack, except those that are stored already; ``None`` if none is."""
    large = {each.digest: each for each in packed if len(each.body) >= scope.limits.pack_from_bytes}
    if not large or scope.packs is None or engine.joined:
        return None
    there = await engine.read(lambda connection: _there(connection, scope, list(large)))
    new = [each for digest, each in large.items() if digest not in there]
    return await write(engine, scope, new) if new else None


async def write(engine: Engine, scope: Scope, packed: Sequence[Packed]) -> Staged:
    """Write bodies into a new pack."""
    assert scope.packs is not None
    starts, end = {}, 0
    for each in packed:
        starts[each.digest] = end
        end += len(each.body)
    note = scope.params(pack=scope.ids.new(), size_bytes=end, now_at=scope.clock.now_us())
    await engine.write(lambda connection: _note(connection, note))
    content = b"".join(each.body for each in packed)
    await scope.packs.write(_path(scope, note["pack"]), content, blocking=engine.blocking)
    return Staged(note["pack"], starts)


async def seal(connection: Connection, scope: Scope, staged: Staged | None) -> Staged | None:
    """Make a pack part of what is being written; ``None`` if it was removed because that took too long."""
    if staged is None:
        return None
    return None if await queries.seal.one(connection, scope.params(pack=staged.id)) is None else staged


async def condemn(connection: Connection, scope: Scope, params: Mapping[str, Any]) -> None:
    """Condemn packs in which nothing lies: sealed ones, and those that nobody sealed for long enough."""
    empty = await queries.lock_empty.all(connection, params)
    await queries.condemn.many(connection, [scope.params(pack=id, now_at=params["now_at"]) for (id,) in empty])


async def fetch(engine: Engine, scope: Scope, wanted: Sequence[InPack]) -> dict[bytes, bytes]:
    """Bodies out of their packs by their digests, each looked at.

    Raises:
        NotFound: a pack is not there.
        Corrupt: a body is not what was put.
    """
    stored = await raw(engine, scope, wanted)
    return {each.digest: bodies.unpack(each.digest, each.codec, stored[each.digest]) for each in wanted}


async def raw(engine: Engine, scope: Scope, wanted: Sequence[InPack]) -> dict[bytes, bytes]:
    """The same as they are stored."""
    found: dict[bytes, bytes] = {}
    by_pack: dict[str, dict[bytes, InPack]] = {}
    for each in wanted:
        by_pack.setdefault(each.pack, {})[each.digest] = each
    for pack, members in by_pack.items():
        spans = [(each.start, each.length) for each in members.values()]
        read = await _place(scope).read(_path(scope, pack), spans, blocking=engine.blocking)
        found.update(zip(members, read, strict=True))
    return found


async def settled(read: Callable[[], Awaitable[T]]) -> T:
    """Read again while packs are removed, together with the objects in them, between the rows and the packs.

    Raises:
        Corrupt: a pack is missing, and what lies in it was not moved.
    """
    said = ""
    for _ in range(TRIES):
        try:
            return await read()
        except NotFound as error:
            if error.noun != "pack":
                raise
            # A pack is removed after what lay in it: rows that are read again speak of another one, or it was lost.
            if str(error) == said:
                break
            said = str(error)
    raise Corrupt(f"{said}, and objects lie in it")


async def clear(engine: Engine, scope: Scope) -> int:
    """Remove the packs that were condemned, and files that no note speaks of; how many those were."""
    if scope.packs is None or engine.joined:
        return 0
    there = await scope.packs.names(packs.folder_of(scope.tenant), blocking=engine.blocking)
    # The files first, then the notes: whatever was there before its note was asked for has had one, or never will.
    rows = await engine.read(lambda connection: queries.noted.all(connection, scope.params()))
    noted: dict[str, Any] = {row[0]: row[1] for row in rows}
    doomed = [id for id, is_condemned in noted.items() if is_condemned]
    kept = {_path(scope, id) for id, is_condemned in noted.items() if not is_condemned}
    gone = [path for path in there if path not in kept]
    await scope.packs.remove(own_paths(scope, gone), blocking=engine.blocking)
    if doomed:
        await engine.write(lambda connection: _forget(connection, scope, doomed))
    return len(gone)


def own_paths(scope: Scope, paths: Sequence[str]) -> Sequence[str]:
    """These paths, if all of them are of the tenant's own packs: asked before any is removed.

    Raises:
        CrossTenant: one is not.
    """
    folder = packs.folder_of(scope.tenant)
    for path in paths:
        first, slash, rest = path.partition("/")
        if first != folder or not slash or not rest or "/" in rest or rest in (".", ".."):
            raise CrossTenant(
                f"a sweep of the tenant {scope.tenant!r} was about to remove {path!r}, which is not its own",
                tenant=scope.tenant,
                path=path,
            )
    return paths


async def repack(engine: Engine, scope: Scope) -> int:
    """Write what is left of packs that are mostly dead into new ones; how many those were. The old ones are then empty."""
    if scope.packs is None or engine.joined:
        return 0
    params = scope.params(limit=MAX_REPACKED)
    sparse = [row[0] for row in await engine.read(lambda connection: queries.sparse.all(connection, params))]
    for pack in sparse:
        await repack_one(engine, scope, pack)
    return len(sparse)


async def condemn_unused(connection: Connection, scope: Scope, pack: str) -> int | None:
    """Condemn a sealed pack if nothing lies in it. How many bytes of it are dead otherwise; ``None`` if it is condemned."""
    params = scope.params(pack=pack, now_at=scope.clock.now_us())
    row = await queries.lock.one(connection, params)
    if row is None:
        return 0  # somebody else has condemned it
    used = await queries.used_bytes.one(connection, params)
    if used is not None and int(used[0]) > 0:
        return int(row[0]) - int(used[0])
    await queries.condemn.all(connection, params)
    return None


async def remove_condemned(engine: Engine, scope: Scope, ids: Sequence[str]) -> None:
    """Remove the files of packs that were condemned, and then their notes.

    Raises:
        Unavailable: the place where packs are kept cannot be reached; the next prune removes them.
    """
    if not ids or scope.packs is None:
        return
    paths = own_paths(scope, [_path(scope, id) for id in ids])
    await scope.packs.remove(paths, blocking=engine.blocking)
    await engine.write(lambda connection: _forget(connection, scope, ids))


async def repack_one(engine: Engine, scope: Scope, pack: str) -> None:
    """Write what is left of a pack into a new one."""
    rows = await engine.read(lambda connection: queries.members.all(connection, scope.params(pack=pack)))
    members = [InPack(bytes(digest), codec, pack, start, length) for digest, codec, start, length in rows]
    # As they are, damaged or not: what is wrong with them is for verify to say, and keeps nobody from pruning the rest.
    try:
        stored = await raw(engine, scope, members)
    except (Corrupt, NotFound):
        return
    packed = [Packed(each.digest, each.codec, stored[each.digest], 0) for each in members]
    if any(len(each.body) != member.length for each, member in zip(packed, members, strict=True)):
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


async def _there(connection: Connection, scope: Scope, digests: Sequence[bytes]) -> set[bytes]:
    found = set()
    for digest in digests:
        if await queries.has.one(connection, scope.params(digest=digest)) is not None:
            found.add(digest)
    return found


async def _note(connection: Connection, note: Mapping[str, Any]) -> None:
    await register_tenant(connection, note)
    await queries.note.all(connection, note)


async def _forget(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    await queries.forget.many(connection, [scope.params(pack=each) for each in ids])


def _path(scope: Scope, pack: str) -> str:
    return f"{packs.folder_of(scope.tenant)}/{pack}"


def _place(scope: Scope) -> packs.PackStorage:
    if scope.packs is None:
        raise PacksUnknown(f"objects of this tenant lie in packs: {packs.PACKS_HINT}")
    return scope.packs
