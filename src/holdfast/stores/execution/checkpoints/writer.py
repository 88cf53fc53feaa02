"""Saves a checkpoint, or the writes of a task, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, field

from ....core.scope import Scope
from ....engines.protocol import Connection, Engine
from ...objects import packs
from ...objects.packs import Staged
from . import fencing, piece_log, ranges, task_writes
from .fencing import Lease
from .piece_log import NewPiece
from .ranges import Range
from .reader import queries
from .task_writes import PlacedWrite, Write

Pieces = Sequence[NewPiece | int | Range]


class StoredPieces(Struct, frozen=True):
    """Positions of the pieces of a checkpoint, or of a task's writes, in the log of their thread."""

    stamp: str
    positions: Sequence[int] = field(name="places")
    """The position of each piece that was passed; of a range, its first position."""


class NewCheckpoint(Struct, frozen=True):
    """A validated checkpoint with compressed pieces."""

    params: Mapping[str, Any]
    head: bytes
    """The identity of the checkpoint, which the checksum covers in addition to the state and the positions."""
    pieces: Pieces
    only_after_head: bool

    def row(self, positions: Sequence[int | Range], now_us: int) -> dict[str, Any]:
        """Return the row of the checkpoint, with its pieces at these positions."""
        sealed = ranges.seal(ranges.ranges_of(positions), self.params["checkpoint"], self.head)
        return {**self.params, "pieces": sealed, "now_at": now_us}


class NewTask(Struct, frozen=True):
    """The validated writes of one task, with compressed pieces."""

    params: Mapping[str, Any]
    new: Sequence[tuple[Write, Pieces]]

    @property
    def pieces(self) -> Pieces:
        """The pieces of all writes."""
        return [piece for _, pieces in self.new for piece in pieces]

    def placed(self, positions: Iterator[int | Range]) -> list[PlacedWrite]:
        """Return the writes, with their pieces at these positions."""
        return [
            PlacedWrite(write.index, write.channel, write.value, ranges.expand(islice(positions, len(pieces))))
            for write, pieces in self.new
        ]

    def row(self, placed: Sequence[PlacedWrite]) -> dict[str, Any]:
        """Return the row that contains these writes."""
        packed, sealed = task_writes.pack(placed)
        return {**self.params, "writes": packed, "pieces": sealed}


class SaveConditions(Struct, frozen=True):
    """The stamp under which the caller knows positions, and the lease it must hold."""

    stamp: str | None
    lease: Lease | None


async def stage(engine: Engine, scope: Scope, new: NewCheckpoint | NewTask) -> Staged | None:
    """Upload the large pieces to a pack, if packs are used."""
    large = [piece.large for piece in new.pieces if isinstance(piece, NewPiece) and piece.large is not None]
    return await packs.stage(engine, scope, large) if large else None


async def save(
    connection: Connection,
    scope: Scope,
    new: NewCheckpoint | NewTask,
    conditions: SaveConditions,
    staged: Staged | None,
    *,
    may_roll_back: bool,
) -> StoredPieces:
    """Save a checkpoint or the writes of a task in the open transaction."""
    log = await piece_log.lock_or_create(connection, scope, new.params)
    thread = {"thread": log.thread}
    await fencing.check_lease(connection, scope, {**new.params, **thread}, conditions.lease)
    if isinstance(new, NewCheckpoint) and new.only_after_head:
        await fencing.check_head(connection, {**new.params, **thread})
    added = await piece_log.add(
        connection, scope, log, new.pieces, stamp=conditions.stamp, staged=staged, may_roll_back=may_roll_back
    )
    if isinstance(new, NewCheckpoint):
        await queries.put.all(connection, {**new.row(added.positions, scope.clock.now_us()), **thread})
    else:
        await _put_writes(connection, new, new.placed(iter(added.positions)), thread)
    return StoredPieces(added.stamp, ranges.first_positions(added.positions))


async def _put_writes(
    connection: Connection, task: NewTask, placed: Sequence[PlacedWrite], thread: Mapping[str, int]
) -> None:
    row = {**task.row(task_writes.merge([], placed)), **thread}
    if await queries.put_writes.one(connection, row) is not None:
        return
    stored_row = await queries.task.one(connection, row)
    assert stored_row is not None
    merged = task_writes.merge(task_writes.unpack(*stored_row), placed)
    await queries.change_writes.all(connection, {**task.row(merged), **thread})
