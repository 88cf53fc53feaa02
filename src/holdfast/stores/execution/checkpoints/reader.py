"""Reading checkpoints: the rows first, then all pieces they consist of with one more query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, TypeVar

from msgspec import Struct, structs

from ....core import text
from ....core.paging import Page, decode_cursor, encode_cursor
from ....core.queries import Queries, Query
from ....core.rows import Column, mapper
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Engine, Row
from ....errors import Corrupt, LimitExceeded
from ...objects import packs
from ...objects.packs import InPack
from . import channel_marks, compact_columns, piece_log, ranges, task_writes
from .ranges import Range
from .task_writes import Placed, TaskWrites

T = TypeVar("T")

_MAX_THREADS = 2**31 - 1
TRIES = 4
"""How often a checkpoint is read anew because something was removed while it was read."""


class CheckpointRow(Struct, frozen=True):
    """A checkpoint as it is stored."""

    thread: int
    namespace: Annotated[str, Column("checkpoint_ns")]
    id: Annotated[str, Column("checkpoint_id", load=compact_columns.ids_of)]
    parent: Annotated[str | None, Column("parent_checkpoint_id", load=compact_columns.ids_of)]
    metadata: Annotated[dict[str, Any], Column("metadata", load=compact_columns.metadata_of)]
    state: Annotated[bytes, Column("checkpoint")]
    pieces: bytes
    leans: list[str] | None
    created_at: datetime


class Checkpoint(Struct, frozen=True):
    """A saved state. ``places`` are the places of its pieces under the log's ``stamp``; a piece the caller holds is ``None``."""

    thread_id: str
    namespace: str
    id: str
    parent: str | None
    metadata: dict[str, Any]
    state: bytes
    pieces: Sequence[bytes | None]
    places: Sequence[Range]
    stamp: str
    leans: Sequence[str]
    created_at: datetime
    tasks: Sequence[TaskWrites]


class Held(Struct, frozen=True):
    """Pieces of a thread that the caller still has from an earlier call, and need not be read."""

    stamp: str
    places: Sequence[Sequence[int]]


class _Found(Struct):
    """A row that was read, and what was written to that checkpoint."""

    row: CheckpointRow
    log: int
    stamp: str
    thread_id: str
    ranges: Sequence[Range]
    tasks: list[tuple[str, str, list[Placed]]]


class _Gone(Exception):
    """A piece was not there: it was removed after the rows were read, or it is lost."""


queries = Queries(__package__, "checkpoints.sql", CheckpointRow)
_WIDTH = len(CheckpointRow.__struct_fields__)


async def joined(
    connection: Connection, scope: Scope, query: Query, params: Mapping[str, Any], held: Held | None
) -> list[Checkpoint]:
    """The checkpoints of a query that brings their writes along, in the order they come."""
    thread_id = text.unescape(params["thread_id"])

    async def read() -> list[Checkpoint]:
        found: dict[tuple[str, str], _Found] = {}
        seen: set[tuple[str, str, str | None]] = set()
        for row in await query.all(connection, params):
            if (row[1], row[2], row[-4]) in seen:
                break  # A checkpoint was saved again under a descendant of its own: from here on everything repeats.
            seen.add((row[1], row[2], row[-4]))
            each = found.get((row[1], row[2]))
            if each is None:
                each = found[row[1], row[2]] = _found(connection, row, thread_id)
            if row[-4] is not None:
                each.tasks.append(_task(*row[-4:]))
        return await _filled(connection, scope, list(found.values()), held)

    return await _until_whole(read)


async def page(
    connection: Connection, scope: Scope, params: Mapping[str, Any], clause: str, limit: int | None
) -> Page[Checkpoint]:
    """A page of a list.

    Raises:
        LimitExceeded: without ``limit``, there are more than ``list_rows``.
    """

    async def read() -> Page[Checkpoint]:
        rows = await queries.list.all(connection, params, clause)
        most = scope.limits.list_rows if limit is None else limit
        if limit is None and len(rows) > most:
            raise LimitExceeded(
                f"there are more than list_rows = {most:,} checkpoints: page them with limit= and cursor="
            )
        found = [_found(connection, row, text.unescape(row[-1])) for row in rows[:most]]
        await _add_writes(connection, scope, found)
        whole = await _filled(connection, scope, found, None)
        return Page(whole, _cursor(found[-1].row) if len(rows) > most else None)

    return await _until_whole(read)


async def fetched(engine: Engine, scope: Scope, found: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """The same checkpoints with the pieces that lie in packs; outside of any transaction, because it may take a while.

    Raises:
        NotFound: a pack is not there.
        PacksUnknown: nobody said where packs are.
        Corrupt: a piece is not what it was.
        Unavailable: the place where packs are kept is not known here, or cannot be reached.
    """
    if not any(InPack in map(type, pieces) for checkpoint in found for pieces in _all_pieces(checkpoint)):
        return found
    every = chain.from_iterable(pieces for checkpoint in found for pieces in _all_pieces(checkpoint))
    wanted = [each for each in every if isinstance(each, InPack)]
    bodies = await packs.fetch(engine, scope, wanted)
    return [_with_bodies(each, bodies) for each in found]


def _all_pieces(found: Checkpoint) -> Iterable[Sequence[Any]]:
    yield found.pieces
    for task in found.tasks:
        for write in task.writes:
            yield write.pieces


def _with_bodies(found: Checkpoint, bodies: Mapping[bytes, bytes]) -> Checkpoint:
    def filled(pieces: Sequence[Any]) -> list[Any]:
        return [bodies[each.digest] if isinstance(each, InPack) else each for each in pieces]

    tasks = [
        structs.replace(task, writes=[structs.replace(each, pieces=tuple(filled(each.pieces))) for each in task.writes])
        for task in found.tasks
    ]
    return structs.replace(found, pieces=filled(found.pieces), tasks=tasks)


def after(cursor: str | None, params: dict[str, Any]) -> str:
    """The condition that a page starts after a cursor."""
    if cursor is None:
        return ""
    id, thread, namespace = decode_cursor(cursor, "checkpoints", str, int, str)
    params.update(after_id=compact_columns.short_id(text.escape(id)), after_ns=text.escape(namespace))
    params["after_thread"] = min(thread, _MAX_THREADS)  # a forged cursor may hold any number
    return "\n  AND (checkpoint_id, thread, checkpoint_ns) < (:after_id, :after_thread, :after_ns)"


def _cursor(row: CheckpointRow) -> str:
    return encode_cursor("checkpoints", row.id, row.thread, row.namespace)


async def _until_whole(read: Callable[[], Awaitable[T]]) -> T:
    """Read again as long as pieces were removed between two queries, together with the checkpoints they belonged to."""
    for _ in range(TRIES):
        try:
            return await read()
        except _Gone as error:
            said = str(error)
    raise Corrupt(said)


def _found(connection: Connection, row: Row, thread_id: str) -> _Found:
    stored = mapper(CheckpointRow, connection.dialect)([row[:_WIDTH]])[0]
    head = ranges.head(stored.namespace, stored.id, stored.parent, stored.leans or ())
    what = f"the checkpoint {stored.id} of the thread {thread_id}"
    spans = ranges.unseal(stored.pieces, what, bytes(stored.state), head)
    return _Found(stored, row[_WIDTH], row[_WIDTH + 1], thread_id, spans, [])


def _task(task_id: bytes, task_path: str, packed: bytes, sealed: bytes) -> tuple[str, str, list[Placed]]:
    return compact_columns.id_of(task_id), compact_columns.path_of(task_path), task_writes.unpack(packed, sealed)


async def _add_writes(connection: Connection, scope: Scope, found: Sequence[_Found]) -> None:
    if not found:
        return
    threads: Any = sorted({each.row.thread for each in found})
    ids: Any = [compact_columns.short_id(text.escape(each.row.id)) for each in found]
    if connection.dialect is Dialect.SQLITE:
        threads, ids = text.dump(threads), text.dump([each.hex().upper() for each in ids])
    by_key = {(each.row.thread, each.row.namespace, each.row.id): each for each in found}
    for row in await queries.writes_of.all(connection, scope.params(threads=threads, checkpoint_ids=ids)):
        each = by_key.get((row[0], text.unescape(row[1]), compact_columns.id_of(row[2])))
        if each is not None:
            each.tasks.append(_task(*row[3:]))


async def _filled(connection: Connection, scope: Scope, found: Sequence[_Found], held: Held | None) -> list[Checkpoint]:
    """Rows with their pieces."""
    by_log: dict[int, dict[int, Any]] = {}
    for log in {each.log for each in found}:
        of_log = [each for each in found if each.log == log]
        missing = _missing(of_log, held)
        read = await piece_log.read(connection, scope, log, missing)
        if sum(last - first + 1 for first, last in missing) != len(read):
            raise _Gone(f"pieces of the thread {of_log[0].thread_id} are missing")
        by_log[log] = read
    return [_checkpoint(each, by_log[each.log]) for each in found]


def _missing(found: Sequence[_Found], held: Held | None) -> list[Range]:
    """The places that must be read: all, or all that the caller does not hold. What tasks wrote is always read."""
    written = [range for each in found for range in _written(each)]
    consist = ranges.union(range for each in found for range in each.ranges)
    if held is not None and held.stamp == found[0].stamp:
        have = ranges.union((first, last) for first, last in held.places)
        consist = [rest for whole in consist for rest in ranges.without(whole, have)]
    return ranges.union([*consist, *written])


def _written(found: _Found) -> Iterable[Range]:
    return ranges.ranges_of(place for _, _, writes in found.tasks for each in writes for place in each.places)


def _checkpoint(found: _Found, pieces: Mapping[int, Any]) -> Checkpoint:
    row = found.row
    return Checkpoint(
        thread_id=found.thread_id,
        namespace=row.namespace,
        id=row.id,
        parent=row.parent,
        metadata=row.metadata,
        state=bytes(row.state),
        pieces=list(map(pieces.get, ranges.places_in(found.ranges))),
        places=found.ranges,
        stamp=found.stamp,
        leans=channel_marks.leaning(row.leans or ()),
        created_at=row.created_at,
        tasks=[task_writes.filled(id, path, writes, pieces) for id, path, writes in found.tasks],
    )
