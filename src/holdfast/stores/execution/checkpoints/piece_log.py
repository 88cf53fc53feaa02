"""The log of a thread: the pieces of its checkpoints, each stored once at a position of its own.

A *piece* is some bytes: a message, a large string, a part of a dictionary. A piece that occurs again, in the next
checkpoint or in a task's writes, is found by its digest and not stored again, so a step costs only its new content,
although a graph saves its whole state at every step. Large pieces are objects of the tenant, so that threads share
them; the log holds them under a name of its own.

A checkpoint contains only the positions of its pieces, mostly one range (``ranges``). So there is no chain of
differences to follow or to flatten when a state is read: that takes two queries (``reader``).

Pieces never change. They are removed only while the log is locked, when no checkpoint and no write of any thread that
shares the log needs them; the log then gets a new *stamp*. A caller that remembers the position of a piece passes the
stamp it came with, and is refused if the log has another one. Pieces added in a joined transaction change the stamp,
too: if it is rolled back, other pieces get their positions, and a caller that remembers them must be refused.
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
"""Minimum stored bytes of a piece that becomes an object."""

Body = bytes | InPack
"""A piece, or its location in a pack."""

queries = Queries(__package__, "piece_log.sql")


class PieceLog(Struct, frozen=True):
    """A thread and the log of its pieces."""

    thread: int
    number: int
    next_position: int
    stamp: str


class AddedPieces(Struct, frozen=True):
    """The positions of pieces in a log, and the log's stamp now."""

    stamp: str
    positions: list[int | Range]


class NewPiece(Struct, frozen=True):
    """A body to add to a log; ``large`` if it becomes an object."""

    packed: Packed
    large: Packed | None = None


def prepare(body: bytes) -> NewPiece:
    """Compress a body and compute its digest; called before a transaction begins, because it takes a while."""
    packed = bodies.pack(body, bodies.SHORT_BYTES)
    if len(packed.body) < OBJECT_FROM:
        return NewPiece(packed)
    digest = bodies.digest_of(body)
    reference = Packed(packed.digest, OBJECT, digest, packed.size_bytes)
    return NewPiece(reference, Packed(digest, packed.codec, packed.body, packed.size_bytes))


async def find(connection: Connection, params: Mapping[str, Any]) -> PieceLog | None:
    """Return the log of a thread, or ``None``."""
    return _log(await queries.find_thread.one(connection, params))


async def lock(connection: Connection, params: Mapping[str, Any]) -> PieceLog | None:
    """Lock the log of a thread until the transaction ends, and return it, or ``None``."""
    return _log(await queries.lock_thread.one(connection, params))


async def lock_or_create(connection: Connection, scope: Scope, params: Mapping[str, Any]) -> PieceLog:
    """Lock the log of a thread until the transaction ends, create it if it does not exist, and return it."""
    log = await lock(connection, params)
    if log is not None:
        return log
    new = {**params, "now_at": scope.clock.now_us()}
    await register_tenant(connection, new)
    while await queries.lock_tenant.one(connection, params) is None:
        await register_tenant(connection, new)  # the tenant was deleted before it could be locked
    log = await lock(connection, params)
    return log or await create(connection, params, scope.ids.new())


async def create(connection: Connection, params: Mapping[str, Any], stamp: str, *, log: int | None = None) -> PieceLog:
    """Create a thread, with a log of its own or with another thread's. The caller has locked the tenant."""
    row = await queries.next_number.one(connection, params)
    assert row is not None
    number = int(row[0])
    new = {**params, "number": number, "log": number if log is None else log, "stamp": stamp}
    if log is None:
        await queries.create_log.all(connection, new)
    await queries.create_thread.all(connection, new)
    return PieceLog(number, new["log"], 1, stamp)


async def add(
    connection: Connection,
    scope: Scope,
    log: PieceLog,
    pieces: Sequence[NewPiece | int | Range],
    *,
    stamp: str | None,
    staged: Staged | None = None,
    may_roll_back: bool = False,
) -> AddedPieces:
    """Add the new pieces to a locked log, and return the positions of all pieces.

    Args:
        may_roll_back: whether this is part of a joined transaction, which its owner may roll back.

    Raises:
        Stale: positions were passed that came with another stamp.
    """
    _check_positions([piece for piece in pieces if not isinstance(piece, NewPiece)], log, stamp)
    by_digest = {piece.packed.digest: piece for piece in pieces if isinstance(piece, NewPiece)}
    positions = await _find_known(connection, scope, log, list(by_digest))
    new = [piece for digest, piece in by_digest.items() if digest not in positions]
    for position, piece in enumerate(new, log.next_position):
        positions[piece.packed.digest] = position
    new_stamp = scope.ids.new() if may_roll_back and new else log.stamp
    await _insert(connection, scope, log, new, new_stamp, staged)
    return AddedPieces(
        new_stamp, [positions[piece.packed.digest] if isinstance(piece, NewPiece) else piece for piece in pieces]
    )


async def read(connection: Connection, scope: Scope, log: int, spans: Iterable[Range]) -> dict[int, Body]:
    """Return the verified pieces at these positions, or their location if in a pack; a position without a piece is left out.

    Raises:
        Corrupt: a piece is damaged.
    """
    rows = await stored_rows(connection, scope, log, ranges.union(spans))
    small = [row for row in rows if row[2] != OBJECT]
    pieces: dict[int, Body] = dict(
        zip(map(itemgetter(0), small), bodies.unpack_all([row[1:] for row in small]), strict=True)
    )
    large = {position: bytes(body) for position, _, codec, body in rows if codec == OBJECT}
    if large:
        for position, digest, *_ in rows:
            if position in large and not large[position].startswith(bytes(digest)):
                raise Corrupt(f"the piece at position {position} is damaged: it refers to another object")
        contents = await objects.fetch(connection, scope, list(large.values()))
        pieces.update(zip(large, contents, strict=True))
    return pieces


async def stored_rows(connection: Connection, scope: Scope, log: int, spans: Sequence[Range]) -> Sequence[Row]:
    """Return position, digest, codec and stored body of the pieces at these positions."""
    if not spans:
        return []
    return await queries.read.all(connection, scope.params(log=log, **_range_params(spans)))


async def collect(connection: Connection, scope: Scope, log: PieceLog) -> int:
    """Remove the unneeded pieces of a locked log, and return how many were removed."""
    used = [row[0] for row in await queries.used.all(connection, scope.params(log=log.number))]
    used += [row[0] for row in await queries.used_by_writes.all(connection, scope.params(log=log.number))]
    live = ranges.union(span for sealed in set(used) for span in ranges.load(bytes(sealed)[CHECKSUM_BYTES:]))
    dead = ranges.subtract((1, log.next_position - 1), live)
    if not dead:
        return 0
    params = scope.params(log=log.number, stamp=scope.ids.new(), **_range_params(dead))
    removed = await queries.remove.all(connection, params)
    if removed:
        await queries.restamp.all(connection, params)
    await _release(connection, scope, log.number, [bytes(body) for codec, body in removed if codec == OBJECT])
    return len(removed)


async def delete_thread(connection: Connection, scope: Scope, log: PieceLog) -> None:
    """Remove a thread without checkpoints, and its log unless another thread shares it. The log is locked."""
    params = scope.params(log=log.number, thread=log.thread)
    await queries.delete_thread.all(connection, params)
    if await queries.delete_log.one(connection, params) is None:
        await collect(connection, scope, log)
        return
    await queries.delete_pieces.all(connection, params)
    await objects.queries.release_all.all(connection, scope.params(holder=_holder(log.number)))


async def _find_known(connection: Connection, scope: Scope, log: PieceLog, digests: list[bytes]) -> dict[bytes, int]:
    if not digests or log.next_position == 1:
        return {}
    if connection.dialect is Dialect.SQLITE:
        rows = await queries.known.all(connection, scope.params(log=log.number, digests=b"".join(digests)))
    elif len(digests) <= 2:
        both = scope.params(log=log.number, one=digests[0], other=digests[-1])
        rows = await queries.known_two.all(connection, both)
    else:
        rows = await queries.known.all(connection, scope.params(log=log.number, digests=digests))
    return {bytes(digest): position for digest, position in rows}


async def _insert(
    connection: Connection, scope: Scope, log: PieceLog, new: Sequence[NewPiece], stamp: str, staged: Staged | None
) -> None:
    if not new:
        return
    rows = [
        scope.params(
            log=log.number, place=position, digest=piece.packed.digest, codec=piece.packed.codec, body=piece.packed.body
        )
        for position, piece in enumerate(new, log.next_position)
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
        await objects.release(connection, scope.params(holder=_holder(log)), digests)


def _check_positions(references: Sequence[int | Range], log: PieceLog, stamp: str | None) -> None:
    if not references:
        return
    if stamp != log.stamp:
        raise Stale(
            "the positions of pieces are no longer valid, because their stamp is old: read the checkpoint again"
        )
    lowest = min(item if isinstance(item, int) else item[0] for item in references)
    highest = max(item if isinstance(item, int) else item[1] for item in references)
    if lowest < 1 or highest >= log.next_position:
        message = f"positions of pieces must be from 1 to {log.next_position - 1}, not from {lowest} to {highest}"
        raise InvalidInput(message, field="pieces")


def _range_params(spans: Sequence[Range]) -> dict[str, Any]:
    """Return ranges as parameters for both engines: JSON, and two arrays."""
    firsts, lasts = [first for first, _ in spans], [last for _, last in spans]
    return {"ranges": text.dump([list(span) for span in spans]), "firsts": firsts, "lasts": lasts}


def _holder(log: int) -> str:
    return f"lg_log:{log}"


def _log(row: Row | None) -> PieceLog | None:
    return None if row is None else PieceLog(*row)
