"""One step of a thread on its way into the store: a checkpoint, what tasks wrote, or both in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from msgspec import Struct

from ....core.scope import Scope
from ....engines.protocol import Connection, Engine
from ...objects import packs
from ...objects.packs import Staged
from . import fences, foresight, piece_log, places, task_writes
from .fences import Lease
from .foresight import Stored
from .piece_log import NewPiece
from .places import Range
from .reading import queries
from .task_writes import Placed, Write

Pieces = Sequence[NewPiece | int | Range]


class NewCheckpoint(Struct, frozen=True):
    """A checkpoint, looked at, with its pieces packed."""

    params: Mapping[str, Any]
    head: bytes
    """What its seal covers beside its state and its places."""
    pieces: Pieces
    only_after_head: bool

    def row(self, found: Sequence[int | Range], now_us: int) -> dict[str, Any]:
        """Its row, with its pieces at these places."""
        sealed = places.seal(places.ranges_of(found), self.params["checkpoint"], self.head)
        return {**self.params, "pieces": sealed, "now_at": now_us}


class NewTask(Struct, frozen=True):
    """What a task wrote to a checkpoint, looked at, with its pieces packed."""

    params: Mapping[str, Any]
    new: Sequence[tuple[Write, Pieces]]

    @property
    def pieces(self) -> list[NewPiece | int | Range]:
        """The pieces of all its writes."""
        return [piece for _, pieces in self.new for piece in pieces]

    def placed(self, found: Iterator[int | Range]) -> list[Placed]:
        """Its writes, with their pieces at the next of these places."""
        return [
            Placed(each.index, each.channel, each.value, places.flat(islice(found, len(pieces))))
            for each, pieces in self.new
        ]

    def row(self, placed: Sequence[Placed]) -> dict[str, Any]:
        """Its row."""
        packed, sealed = task_writes.pack(placed)
        return {**self.params, "writes": packed, "pieces": sealed}


class Step(Struct, frozen=True):
    """What is saved in one transaction."""

    checkpoint: NewCheckpoint | None
    tasks: Sequence[NewTask]
    stamp: str | None
    next_place: int | None
    lease: Lease | None

    @property
    def pieces(self) -> list[NewPiece | int | Range]:
        """All pieces: those of the checkpoint, then those of the tasks."""
        own = () if self.checkpoint is None else self.checkpoint.pieces
        return [*own, *chain.from_iterable(task.pieces for task in self.tasks)]

    @property
    def params(self) -> Mapping[str, Any]:
        """Where it is saved."""
        return self.tasks[0].params if self.checkpoint is None else self.checkpoint.params

    async def staged(self, engine: Engine, scope: Scope) -> Staged | None:
        """Its large pieces, uploaded if that is where they belong."""
        large = [each.large for each in self.pieces if isinstance(each, NewPiece) and each.large is not None]
        return await packs.stage(engine, scope, large) if large else None


async def save_as_foreseen(engine: Engine, scope: Scope, step: Step) -> Stored | None:
    """Save a step with one statement; ``None`` if that cannot be done, or the log is not as the caller knew it."""
    only_one = (step.checkpoint is not None) + len(step.tasks) == 1
    if not only_one or step.lease is not None or (step.checkpoint is not None and step.checkpoint.only_after_head):
        return None
    foreseen = foresight.foresee(engine, step.pieces, step.stamp, step.next_place)
    if foreseen is None:
        return None
    if step.checkpoint is not None:
        query, row = queries.put_foreseen, step.checkpoint.row(foreseen.places, scope.clock.now_us())
    else:
        task = step.tasks[0]
        written = task_writes.merged([], task.placed(iter(foreseen.places)))
        query, row = queries.put_writes_foreseen, task.row(written)
    return foreseen.stored() if await foresight.came_true(engine, query, {**row, **foreseen.params}) else None


async def save(
    connection: Connection, scope: Scope, step: Step, staged: Staged | None, *, may_be_undone: bool
) -> Stored:
    """Save a step, in the transaction that is open."""
    log = await piece_log.lock_or_create(connection, scope, step.params)
    thread = {"thread": log.thread}
    await fences.check_lease(connection, scope, {**step.params, **thread}, step.lease)
    if step.checkpoint is not None and step.checkpoint.only_after_head:
        await fences.check_head(connection, {**step.params, **thread})
    pieces = step.pieces
    added = await piece_log.add(
        connection, scope, log, pieces, stamp=step.stamp, staged=staged, may_be_undone=may_be_undone
    )
    rest = iter(added.places)
    if step.checkpoint is not None:
        own = list(islice(rest, len(step.checkpoint.pieces)))
        await queries.put.all(connection, {**step.checkpoint.row(own, scope.clock.now_us()), **thread})
    for task in step.tasks:
        await _write(connection, task, task.placed(rest), thread)
    return Stored(added.stamp, places.firsts(added.places), added.next_place)


async def _write(connection: Connection, task: NewTask, placed: Sequence[Placed], thread: Mapping[str, int]) -> None:
    first = {**task.row(task_writes.merged([], placed)), **thread}
    if await queries.put_writes.one(connection, first) is not None:
        return
    row = await queries.task.one(connection, first)
    assert row is not None
    written = task_writes.merged(task_writes.unpack(*row), placed)
    await queries.change_writes.all(connection, {**task.row(written), **thread})
