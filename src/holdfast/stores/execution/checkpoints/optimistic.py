"""Save a step on PostgreSQL in two round trips: read the log of the thread, then write if the log is still the same.

In a transaction a step takes seven statements, each a message to the server and back: the places of new pieces are known only
after the log was locked and searched. So the log is read first, without a lock. One statement then adds the new pieces and
writes the row, on condition that the log has not changed. If another writer was faster, it writes nothing, and the step is
saved in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ....core.objects import Packed
from ....core.queries import Query
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Engine, Row
from ....errors import OutcomeUnknown
from . import task_writes
from .piece_log import Log, NewPiece
from .ranges import Range, firsts
from .reading import queries
from .saving import NewCheckpoint, NewTask, Stored, Terms

MAX_NEW_PIECES = 2
"""Pieces of a step that is saved like this: usually a message, and now and then the shape of the state."""
_NO_PIECE = Packed(b"", 0, b"", 0)


class _Plan(Struct, frozen=True):
    """Where the pieces of a step are if the log does not change."""

    log: Log
    places: list[int | Range]
    new: Sequence[Packed]

    @property
    def params(self) -> dict[str, Any]:
        """The condition, and the pieces to add."""
        one, other = [*self.new, _NO_PIECE, _NO_PIECE][:MAX_NEW_PIECES]
        return {
            "stamp": self.log.stamp,
            "next_place": self.log.next_place,
            "count": len(self.new),
            "one": one.digest,
            "one_codec": one.codec,
            "one_body": one.body,
            "other": other.digest,
            "other_codec": other.codec,
            "other_body": other.body,
        }


async def save(engine: Engine, scope: Scope, new: NewCheckpoint | NewTask, terms: Terms) -> Stored | None:
    """Save a step; ``None`` if it needs a transaction, or the log has changed. Nothing was written then."""
    if not _is_possible(engine, new, terms):
        return None
    packed = {piece.packed.digest: piece.packed for piece in new.pieces if isinstance(piece, NewPiece)}
    if len(packed) > MAX_NEW_PIECES:
        return None
    plan = _plan(await _read(engine, new, list(packed)), new, terms, packed)
    if plan is None:
        return None
    if isinstance(new, NewCheckpoint):
        query, row = queries.put_if_unchanged, new.row(plan.places, scope.clock.now_us())
    else:
        placed = task_writes.merged([], new.placed(iter(plan.places)))
        query, row = queries.put_writes_if_unchanged, new.row(placed)
    try:
        is_saved = await engine.grouped(_ONE, (query, {**row, **plan.params}))
    except OutcomeUnknown:
        return None  # saving the same step in a transaction settles it
    return Stored(plan.log.stamp, firsts(plan.places)) if is_saved else None


def _is_possible(engine: Engine, new: NewCheckpoint | NewTask, terms: Terms) -> bool:
    """Whether nothing has to be checked under the lock, nobody can undo the write, and one machine has all the tables."""
    if engine.dialect is not Dialect.POSTGRES or engine.joined or engine.distributed or terms.lease is not None:
        return False
    if isinstance(new, NewCheckpoint) and new.only_after_head:
        return False
    return not any(isinstance(piece, NewPiece) and piece.large is not None for piece in new.pieces)


async def _read(engine: Engine, new: NewCheckpoint | NewTask, digests: Sequence[bytes]) -> Row | None:
    """The log of the thread, and the places of these pieces in it."""
    one, other = [*digests, b"", b""][:MAX_NEW_PIECES]

    async def read(connection: Connection) -> Row | None:
        return await queries.log_and_places.one(connection, {**new.params, "one": one, "other": other})

    return await engine.read(read)


def _plan(row: Row | None, new: NewCheckpoint | NewTask, terms: Terms, packed: dict[bytes, Packed]) -> _Plan | None:
    if row is None:
        return None  # the thread does not exist yet
    log = Log(*row[:4])
    given = [piece for piece in new.pieces if not isinstance(piece, NewPiece)]
    if given and (terms.stamp != log.stamp or not all(_is_within(place, log) for place in given)):
        return None  # the transaction says what is wrong
    found = dict(zip(packed, row[4:], strict=False))
    missing = [piece for digest, piece in packed.items() if found[digest] is None]
    found |= {piece.digest: place for place, piece in enumerate(missing, log.next_place)}
    places = [found[piece.packed.digest] if isinstance(piece, NewPiece) else piece for piece in new.pieces]
    return _Plan(log, places, missing)


def _is_within(place: int | Range, log: Log) -> bool:
    first, last = (place, place) if isinstance(place, int) else place
    return first >= 1 and last < log.next_place


class _One:
    """A statement that is sent by itself."""

    mixes_keys = False

    def key(self, item: tuple[Query, dict[str, Any]]) -> object:
        return object()

    def id_of(self, item: tuple[Query, dict[str, Any]]) -> str:
        return str(item[1]["thread_id"])

    async def run(
        self, connection: Connection, items: Sequence[tuple[Query, dict[str, Any]]], *, careful: bool
    ) -> Sequence[bool | Exception]:
        if careful:  # the row exists already: the transaction replaces it or merges the writes
            return [False for _ in items]
        return [await query.one(connection, params) is not None for query, params in items]


_ONE = _One()
