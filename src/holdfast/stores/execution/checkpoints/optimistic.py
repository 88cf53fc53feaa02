"""Saves a step on PostgreSQL with one statement, on condition that the log of the thread has not changed.

In a transaction a step takes seven statements, each a round trip: the positions of new pieces are known only
after the log was locked and searched. But usually the process that saved the last step saves the next one, and knows the end
of the log. So one statement adds the new pieces and writes the row if the log is unchanged. Otherwise it writes
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
from .piece_log import NewPiece, PieceLog
from .ranges import Range, first_positions
from .reader import queries
from .writer import NewCheckpoint, NewTask, SaveConditions, StoredPieces

MAX_NEW_PIECES = 2
"""Maximum new pieces of a step that is saved like this: usually a message, and sometimes the shape of the state."""
MAX_TRIES = 3
"""How often the statement is sent before the step is saved in a transaction."""
MAX_LOGS = 1_024
"""Maximum threads whose log is remembered; one more clears the memory."""
_NO_PIECE = Packed(b"", 0, b"", 0)


class _SavePlan(Struct, frozen=True):
    """The positions of the pieces of a step if the log is unchanged."""

    log: PieceLog
    positions: list[int | Range]
    new: Sequence[Packed]

    @property
    def params(self) -> dict[str, Any]:
        """The condition and the pieces to add, as SQL parameters."""
        one, other = [*self.new, _NO_PIECE, _NO_PIECE][:MAX_NEW_PIECES]
        log = {"stamp": self.log.stamp, "next_place": self.log.next_position, "count": len(self.new)}
        first = {"one": one.digest, "one_codec": one.codec, "one_body": one.body}
        return {**log, **first, "other": other.digest, "other_codec": other.codec, "other_body": other.body}

    @property
    def log_after(self) -> PieceLog:
        """The log after the step is saved."""
        return structs.replace(self.log, next_position=self.log.next_position + len(self.new))


async def save(
    engine: Engine, scope: Scope, new: NewCheckpoint | NewTask, conditions: SaveConditions
) -> StoredPieces | None:
    """Save a step; ``None`` if it needs a transaction or other writers were faster, and nothing was written."""
    packed = {piece.packed.digest: piece.packed for piece in new.pieces if isinstance(piece, NewPiece)}
    if len(packed) > MAX_NEW_PIECES or not _is_possible(engine, new, conditions):
        return None
    logs: dict[tuple[str, ...], PieceLog] = scope.shared.setdefault("checkpoint_logs", {})
    thread = tuple(new.params[name] for name in ("tenant_id", "user_id", "thread_id"))
    log = logs.get(thread)
    plan = None if log is None else _plan(log, {}, new, conditions, packed)
    for _ in range(MAX_TRIES):
        if plan is None:
            row = await _read(engine, new, list(packed))
            plan = None if row is None else _plan(PieceLog(*row[:4]), _positions(packed, row), new, conditions, packed)
            if plan is None:
                return None
        if await _write(engine, scope, new, plan):
            if len(logs) >= MAX_LOGS:
                logs.clear()
            logs[thread] = plan.log_after
            return StoredPieces(plan.log.stamp, first_positions(plan.positions))
        plan = None
    return None


def _positions(packed: Mapping[bytes, Packed], row: Row) -> dict[bytes, int | None]:
    """Return the positions of pieces by digest, from a row that contains them after the columns of the log."""
    return dict(zip(packed, row[4:], strict=False))


def _is_possible(engine: Engine, new: NewCheckpoint | NewTask, conditions: SaveConditions) -> bool:
    """Whether the save needs no check under the lock, cannot be rolled back by the caller, and all tables are on one machine."""
    if engine.dialect is not Dialect.POSTGRES or engine.joined or engine.distributed or conditions.lease is not None:
        return False
    if isinstance(new, NewCheckpoint) and new.only_after_head:
        return False
    return not any(isinstance(piece, NewPiece) and piece.large is not None for piece in new.pieces)


async def _read(engine: Engine, new: NewCheckpoint | NewTask, digests: Sequence[bytes]) -> Row | None:
    """Read the log of the thread, and the positions of these pieces in it."""
    one, other = [*digests, b"", b""][:MAX_NEW_PIECES]

    async def read(connection: Connection) -> Row | None:
        return await queries.log_and_places.one(connection, {**new.params, "one": one, "other": other})

    return await engine.read(read)


async def _write(engine: Engine, scope: Scope, new: NewCheckpoint | NewTask, plan: _SavePlan) -> bool:
    """Send the statement; return whether the log was unchanged, so that the step is saved."""
    if isinstance(new, NewCheckpoint):
        query, row = queries.put_if_unchanged, new.row(plan.positions, scope.clock.now_us())
    else:
        query, row = queries.put_writes_if_unchanged, new.row(task_writes.merge([], new.placed(iter(plan.positions))))
    try:
        return await engine.grouped(_STATEMENT, (query, {**row, **plan.params}))
    except OutcomeUnknown:
        return False  # the step is saved again, which resolves the outcome


def _plan(
    log: PieceLog,
    known: Mapping[bytes, int | None],
    new: NewCheckpoint | NewTask,
    conditions: SaveConditions,
    packed: dict[bytes, Packed],
) -> _SavePlan | None:
    """Plan the positions of a step's pieces in a log that has the ``known`` ones; ``None`` if the step refers to invalid ones."""
    references = [piece for piece in new.pieces if not isinstance(piece, NewPiece)]
    if references and (conditions.stamp != log.stamp or not all(_is_within(item, log) for item in references)):
        return None  # the transaction raises the error
    missing = [piece for digest, piece in packed.items() if known.get(digest) is None]
    added = {piece.digest: position for position, piece in enumerate(missing, log.next_position)}
    by_digest: dict[bytes, Any] = {**known, **added}
    positions = [by_digest[piece.packed.digest] if isinstance(piece, NewPiece) else piece for piece in new.pieces]
    return _SavePlan(log, positions, missing)


def _is_within(position: int | Range, log: PieceLog) -> bool:
    first, last = (position, position) if isinstance(position, int) else position
    return first >= 1 and last < log.next_position


class _SingleStatement:
    """A group that sends each statement by itself."""

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


_STATEMENT = _SingleStatement()
