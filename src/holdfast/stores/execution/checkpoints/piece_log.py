"""The log of a thread: pieces of checkpoints, each once, at a place of its own.

A *piece* is some bytes: a message, a large string, a part of a dictionary. What comes again, in the next checkpoint or in a
task's writes, is found by its digest and not stored again, so a step costs what is new in it. Large pieces are objects of the
tenant, so that they are shared between threads as well.

Pieces never change. They are removed only while the log is locked, when no checkpoint and no write of any thread that has
the log needs them; the log then gets a new *stamp*. Whoever remembers where a piece lies says under which stamp, and
is refused if it is not the log's any more. What is added in a transaction of the caller's own changes the stamp too: if it is
rolled back its places are given to other pieces, and whoever remembers them must be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct

from ....core import objects as bodies
from ....core import text
from ....core.objects import Packed
from ....core.queries import Queries
from ....core.registration import register_tenant
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Row
from ....errors import Corrupt, InvalidInput, Stale
from ...objects import objects
from ...objects.packs import InPack, Staged
from . import ranges
from .ranges import CHECKSUM_BYTES, Range

OBJECT = 9
"""The codec of a piece that is an object: its body is the object's digest."""
OBJECT_FROM = 8 * 1024
"""Stored bytes from which on a piece is an object."""

Body = bytes | InPack
"""A piece, or where it is still to be fetched from."""

queries = Queries(__package__, "piece_log.sql")


class Log(Struct, frozen=True):
    """A thread and the log its pieces lie in."""

    thread: int
    number: int
    next_place: int
    stamp: str


class Added(Struct, frozen=True):
    """Where pieces are in a log, and the stamp of the log now."""

    stamp: str
    places: list[int | Range]


class NewPiece(Struct, frozen=True):
    """A body on its way into a log; ``large`` if it becomes an object."""

    packed: Packed
    large: Packed | None = None


def prepare(body: bytes) -> NewPiece:
    """A body, compressed and with its digest; done before a transaction begins, because it takes a while."""
    packed = bodies.pack(body, bodies.SHORT_BYTES)
    if len(packed.body) < OBJECT_FROM:
        return NewPiece(packed)
    whole = bodies.digest_of(body)
    reference = Packed(packed.digest, OBJECT, whole, packed.size_bytes)
    return NewPiece(reference, Packed(whole, packed.codec, packed.body, packed.size_bytes))


async def find(connection: Connection, params: Mapping[str, Any]) -> Log | None:
    """The log of a thread, or ``None``."""
    return _log(await queries.find_thread.one(connection, params))


async def lock(connection: Connection, params: Mapping[str, Any]) -> Log | None:
    """The same, held until the transaction ends."""
    return _log(await queries.lock_thread.one(connection, params))


async def lock_or_create(connection: Connection, scope: Scope, params: Mapping[str, Any]) -> Log:
    """The log of a thread, made if it is not there, and held until the transaction ends."""
    there = await lock(connection, params)
    if there is not None:
        return there
    new = {**params, "now_at": scope.clock.now_us()}
    await register_tenant(connection, new)
    while await queries.lock_tenant.one(connection, params) is None:
        await register_tenant(connection, new)  # it was deleted after it had been seen
    there = await lock(connection, params)
    return there or await create(connection, params, scope.ids.new())


async def create(connection: Connection, params: Mapping[str, Any], stamp: str, *, log: int | None = None) -> Log:
    """A new thread, with a log of its own or with another's. The tenant is locked by the caller."""
    row = await queries.next_number.one(connection, params)
    assert row is not None
    number = int(row[0])
    new = {**params, "number": number, "log": number if log is None else log, "stamp": stamp}
    if log is None:
        await queries.create_log.all(connection, new)
    await queries.create_thread.all(connection, new)
    return Log(number, new["log"], 1, stamp)


async def add(
    connection: Connection,
    scope: Scope,
    log: Log,
    pieces: Sequence[NewPiece | int | Range],
    *,
    stamp: str | None,
    staged: Staged | None = None,
    may_be_undone: bool = False,
) -> Added:
    """Where these pieces lie; those that are new are added to the log, which the caller has locked.

    Args:
        may_be_undone: whether this is part of a transaction that somebody else commits.

    Raises:
        Stale: places were given that were learnt under another stamp.
    """
    _check_places([each for each in pieces if not isinstance(each, NewPiece)], log, stamp)
    wanted = {each.packed.digest: each for each in pieces if isinstance(each, NewPiece)}
    found = await _known(connection, scope, log, list(wanted))
    new = [each for digest, each in wanted.items() if digest not in found]
    for place, each in enumerate(new, log.next_place):
        found[each.packed.digest] = place
    after = scope.ids.new() if may_be_undone and new else log.stamp
    await _insert(connection, scope, log, new, after, staged)
    at = [found[each.packed.digest] if isinstance(each, NewPiece) else each for each in pieces]
    return Added(after, at)


async def read(connection: Connection, scope: Scope, log: int, spans: Iterable[Range]) -> dict[int, Body]:
    """The pieces at these places, each looked at, or where in a pack they lie; a place where there is none is left out.

    Raises:
        Corrupt: a piece is not what it was.
    """
    rows = await rows_at(connection, scope, log, ranges.union(spans))
    small = [row for row in rows if row[2] != OBJECT]
    found: dict[int, Body] = dict(
        zip(map(itemgetter(0), small), bodies.unpack_all([row[1:] for row in small]), strict=True)
    )
    large = {place: bytes(body) for place, _, codec, body in rows if codec == OBJECT}
    if large:
        for place, digest, *_ in rows:
            if place in large and not large[place].startswith(bytes(digest)):
                raise Corrupt(f"the piece at place {place} is damaged: it speaks of another object")
        contents = await objects.fetch(connection, scope, list(large.values()))
        found.update(zip(large, contents, strict=True))
    return found


async def rows_at(connection: Connection, scope: Scope, log: int, wanted: Sequence[Range]) -> Sequence[Row]:
    """Place, digest, codec and body of the pieces at these places, as they are stored."""
    if not wanted:
        return []
    return await queries.read.all(connection, scope.params(log=log, **_as_argument(wanted)))


async def collect(connection: Connection, scope: Scope, log: Log) -> int:
    """Remove from a locked log what nothing needs; how many pieces that were."""
    used = [row[0] for row in await queries.used.all(connection, scope.params(log=log.number))]
    used += [row[0] for row in await queries.used_by_writes.all(connection, scope.params(log=log.number))]
    live = ranges.union(each for sealed in set(used) for each in ranges.load(bytes(sealed)[CHECKSUM_BYTES:]))
    dead = ranges.without((1, log.next_place - 1), live)
    if not dead:
        return 0
    params = scope.params(log=log.number, stamp=scope.ids.new(), **_as_argument(dead))
    removed = await queries.remove.all(connection, params)
    if removed:
        await queries.restamp.all(connection, params)
    await _release(connection, scope, log.number, [bytes(body) for codec, body in removed if codec == OBJECT])
    return len(removed)


async def delete_thread(connection: Connection, scope: Scope, log: Log) -> None:
    """Remove a thread whose checkpoints are gone, and its log unless another thread has it too. The log is locked."""
    params = scope.params(log=log.number, thread=log.thread)
    await queries.delete_thread.all(connection, params)
    if await queries.delete_log.one(connection, params) is None:
        await collect(connection, scope, log)
        return
    await queries.delete_pieces.all(connection, params)
    await objects.queries.release_all.all(connection, scope.params(holder=_holder(log.number)))


async def _known(connection: Connection, scope: Scope, log: Log, digests: list[bytes]) -> dict[bytes, int]:
    if not digests or log.next_place == 1:
        return {}
    if connection.dialect is Dialect.SQLITE:
        rows = await queries.known.all(connection, scope.params(log=log.number, digests=b"".join(digests)))
    elif len(digests) <= 2:
        both = scope.params(log=log.number, one=digests[0], other=digests[-1])
        rows = await queries.known_two.all(connection, both)
    else:
        rows = await queries.known.all(connection, scope.params(log=log.number, digests=digests))
    return {bytes(digest): place for digest, place in rows}


async def _insert(
    connection: Connection, scope: Scope, log: Log, new: Sequence[NewPiece], stamp: str, staged: Staged | None
) -> None:
    if not new:
        return
    rows = [
        scope.params(
            log=log.number, place=place, digest=piece.packed.digest, codec=piece.packed.codec, body=piece.packed.body
        )
        for place, piece in enumerate(new, log.next_place)
    ]
    if len(rows) == 1:
        await queries.add.all(connection, rows[0])
    else:
        await queries.add.many(connection, rows)
    await queries.advance.all(connection, scope.params(log=log.number, count=len(new), stamp=stamp))
    large = [piece.large for piece in new if piece.large is not None]
    if large:
        await objects.keep(connection, scope, large, holder=_holder(log.number), staged=staged)


async def _release(connection: Connection, scope: Scope, log: int, digests: Sequence[bytes]) -> None:
    if digests:
        await objects.let_go(connection, scope.params(holder=_holder(log)), digests)


def _check_places(given: Sequence[int | Range], log: Log, stamp: str | None) -> None:
    if not given:
        return
    if stamp != log.stamp:
        raise Stale("places in the log of a thread were given that are no longer valid: read the checkpoint again")
    lowest = min(each if isinstance(each, int) else each[0] for each in given)
    highest = max(each if isinstance(each, int) else each[1] for each in given)
    if lowest < 1 or highest >= log.next_place:
        raise InvalidInput(
            f"there are pieces at the places 1 to {log.next_place - 1} of this thread's log, and no others"
        )


def _as_argument(spans: Sequence[Range]) -> dict[str, Any]:
    """Ranges as both engines take them: JSON, and two arrays."""
    firsts, lasts = [first for first, _ in spans], [last for _, last in spans]
    return {"ranges": text.dump([list(each) for each in spans]), "firsts": firsts, "lasts": lasts}


def _holder(log: int) -> str:
    return f"lg_log:{log}"


def _log(row: Row | None) -> Log | None:
    return None if row is None else Log(*row)
