"""Save a checkpoint, or the writes of a task, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from ....core.scope import Scope
from ....engines.protocol import Connection, Engine
from ...objects import packs
from ...objects.packs import Staged
from . import fencing, piece_log, ranges, task_writes
from .fencing import Lease
from .piece_log import NewPiece
from .ranges import Range
from .reader import queries
from .task_writes import Placed, Write

Pieces = Sequence[NewPiece | int | Range]


class Stored(Struct, frozen=True):
    """Where the pieces of a checkpoint or of a task's writes are in the log of their thread."""

    stamp: str
    places: Sequence[int]
    """The place of each piece that was given; of a range, its first place."""


class NewCheckpoint(Struct, frozen=True):
    """A validated checkpoint with compressed pieces."""

    params: Mapping[str, Any]
    head: bytes
    """What the checksum covers beside the state and the places."""
    pieces: Pieces
    only_after_head: bool

    def row(self, places: Sequence[int | Range], now_us: int) -> dict[str, Any]:
        """The row of the checkpoint, with its pieces at these places."""
        sealed = ranges.seal(ranges.ranges_of(places), self.params["checkpoint"], self.head)
        return {**self.params, "pieces": sealed, "now_at": now_us}


class NewTask(Struct, frozen=True):
    """The validated writes of one task, with compressed pieces."""

    params: Mapping[str, Any]
    new: Sequence[tuple[Write, Pieces]]

    @property
    def pieces(self) -> Pieces:
        """The pieces of all writes."""
        return [piece for _, pieces in self.new for piece in pieces]

    def placed(self, places: Iterator[int | Range]) -> list[Placed]:
        """The writes, with their pieces at these places."""
        return [
            Placed(write.index, write.channel, write.value, ranges.flat(islice(places, len(pieces))))
            for write, pieces in self.new
        ]

    def row(self, placed: Sequence[Placed]) -> dict[str, Any]:
        """The row that holds these writes."""
        packed, sealed = task_writes.pack(placed)
        return {**self.params, "writes": packed, "pieces": sealed}


class Terms(Struct, frozen=True):
    """What the caller knows of the thread, and on what condition it writes."""

    stamp: str | None
    lease: Lease | None


async def stage(engine: Engine, scope: Scope, new: NewCheckpoint | NewTask) -> Staged | None:
    """Upload the large pieces, if that is where they belong."""
    large = [piece.large for piece in new.pieces if isinstance(piece, NewPiece) and piece.large is not None]
    return await packs.stage(engine, scope, large) if large else None


async def save(
    connection: Connection,
    scope: Scope,
    new: NewCheckpoint | NewTask,
    terms: Terms,
    staged: Staged | None,
    *,
    may_be_undone: bool,
) -> Stored:
    """Save a checkpoint or the writes of a task in the open transaction."""
    log = await piece_log.lock_or_create(connection, scope, new.params)
    thread = {"thread": log.thread}
    await fencing.check_lease(connection, scope, {**new.params, **thread}, terms.lease)
    if isinstance(new, NewCheckpoint) and new.only_after_head:
        await fencing.check_head(connection, {**new.params, **thread})
    added = await piece_log.add(
        connection, scope, log, new.pieces, stamp=terms.stamp, staged=staged, may_be_undone=may_be_undone
    )
    if isinstance(new, NewCheckpoint):
        await queries.put.all(connection, {**new.row(added.places, scope.clock.now_us()), **thread})
    else:
        await _put_writes(connection, new, new.placed(iter(added.places)), thread)
    return Stored(added.stamp, ranges.firsts(added.places))


async def _put_writes(
    connection: Connection, task: NewTask, placed: Sequence[Placed], thread: Mapping[str, int]
) -> None:
    first = {**task.row(task_writes.merged([], placed)), **thread}
    if await queries.put_writes.one(connection, first) is not None:
        return
    row = await queries.task.one(connection, first)
    assert row is not None
    merged = task_writes.merged(task_writes.unpack(*row), placed)
    await queries.change_writes.all(connection, {**task.row(merged), **thread})
