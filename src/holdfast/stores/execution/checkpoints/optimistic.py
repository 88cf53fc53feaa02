"""Save a step on PostgreSQL with one statement, on condition that the log of the thread is what the caller believes it is.

In a transaction a step takes seven statements, each a message to the server and back: the places of new pieces are known only
after the log was locked and searched. But mostly the process that saved the last step saves the next one, and knows where the
log ends. So one statement adds the new pieces and writes the row, if the log is still the same. If it is not, it writes
nothing; the log is read, and the statement is sent again. If other writers are faster each time, the step is saved in a
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from ....core.objects import Packed
from ....core.queries import Query
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Engine, Row
from ....errors import OutcomeUnknown
from . import task_writes
from .piece_log import Log, NewPiece
from .ranges import Range, firsts
from .reader import queries
from .writer import NewCheckpoint, NewTask, Stored, Terms

MAX_NEW_PIECES = 2
"""Pieces of a step that is saved like this: usually a message, and now and then the shape of the state."""
TRIES = 3
"""How often the statement is sent before the step is saved in a transaction."""
MAX_LOGS = 1_024
"""Threads whose log is remembered; with one more, all are forgotten."""
_NO_PIECE = Packed(b"", 0, b"", 0)


class _Plan(Struct, frozen=True):
    """Where the pieces of a step are if the log is the same."""

    log: Log
    places: list[int | Range]
    new: Sequence[Packed]

    @property
    def params(self) -> dict[str, Any]:
        """The condition, and the pieces to add."""
        one, other = [*self.new, _NO_PIECE, _NO_PIECE][:MAX_NEW_PIECES]
        log = {"stamp": self.log.stamp, "next_place": self.log.next_place, "count": len(self.new)}
        first = {"one": one.digest, "one_codec": one.codec, "one_body": one.body}
        return {**log, **first, "other": other.digest, "other_codec": other.codec, "other_body": other.body}

    @property
    def log_after(self) -> Log:
        """The log when the step is saved."""
        return structs.replace(self.log, next_place=self.log.next_place + len(self.new))


async def save(engine: Engine, scope: Scope, new: NewCheckpoint | NewTask, terms: Terms) -> Stored | None:
    """Save a step; ``None`` if it needs a transaction, or other writers were faster. Nothing was written then."""
    packed = {piece.packed.digest: piece.packed for piece in new.pieces if isinstance(piece, NewPiece)}
    if len(packed) > MAX_NEW_PIECES or not _is_possible(engine, new, terms):
        return None
    logs: dict[tuple[str, ...], Log] = scope.shared.setdefault("checkpoint_logs", {})
    thread = tuple(new.params[name] for name in ("tenant_id", "user_id", "thread_id"))
    log = logs.get(thread)
    plan = None if log is None else _plan(log, {}, new, terms, packed)
    for _ in range(TRIES):
        if plan is None:
            row = await _read(engine, new, list(packed))
            plan = None if row is None else _plan(Log(*row[:4]), _known(packed, row), new, terms, packed)
            if plan is None:
                return None
        if await _write(engine, scope, new, plan):
            if len(logs) >= MAX_LOGS:
                logs.clear()
            logs[thread] = plan.log_after
            return Stored(plan.log.stamp, firsts(plan.places))
        plan = None
    return None


def _known(packed: Mapping[bytes, Packed], row: Row) -> dict[bytes, int | None]:
    """The places of pieces, from a row that has them behind the columns of the log."""
    return dict(zip(packed, row[4:], strict=False))


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


async def _write(engine: Engine, scope: Scope, new: NewCheckpoint | NewTask, plan: _Plan) -> bool:
    """Send the statement; whether the log was what the plan says, so that the step is saved."""
    if isinstance(new, NewCheckpoint):
        query, row = queries.put_if_unchanged, new.row(plan.places, scope.clock.now_us())
    else:
        query, row = queries.put_writes_if_unchanged, new.row(task_writes.merged([], new.placed(iter(plan.places))))
    try:
        return await engine.grouped(_ONE, (query, {**row, **plan.params}))
    except OutcomeUnknown:
        return False  # saving the same step again settles it


def _plan(
    log: Log, known: Mapping[bytes, int | None], new: NewCheckpoint | NewTask, terms: Terms, packed: dict[bytes, Packed]
) -> _Plan | None:
    """Where the pieces of a step are in a log that has the ``known`` ones; ``None`` if it refers to places that are not valid."""
    given = [piece for piece in new.pieces if not isinstance(piece, NewPiece)]
    if given and (terms.stamp != log.stamp or not all(_is_within(place, log) for place in given)):
        return None  # the transaction says what is wrong
    missing = [piece for digest, piece in packed.items() if known.get(digest) is None]
    at: dict[bytes, Any] = {**known, **{piece.digest: place for place, piece in enumerate(missing, log.next_place)}}
    places = [at[piece.packed.digest] if isinstance(piece, NewPiece) else piece for piece in new.pieces]
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
