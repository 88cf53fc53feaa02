"""Reads checkpoints: first the rows, then all their pieces with one more query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, TypeVar

from msgspec import Struct, field, structs

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
from .task_writes import PlacedWrite, TaskWrites

T = TypeVar("T")

_MAX_THREADS = 2**31 - 1
MAX_TRIES = 4
"""How often a checkpoint is read again because pieces were removed during the read."""


class CheckpointRow(Struct, frozen=True):
    """A checkpoint in its stored form."""

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
    """A saved state. ``positions`` of its pieces are valid under the log's ``stamp``; a piece the caller has is ``None``."""

    thread_id: str
    namespace: str
    id: str
    parent: str | None
    metadata: dict[str, Any]
    state: bytes
    pieces: Sequence[bytes | None]
    positions: Sequence[Range] = field(name="places")
    stamp: str
    leans: Sequence[str]
    created_at: datetime
    tasks: Sequence[TaskWrites]


class CachedPieces(Struct, frozen=True):
    """Positions of pieces that the caller still has from an earlier call, so that they are not read again."""

    stamp: str
    positions: Sequence[Sequence[int]]


class _LoadedRow(Struct):
    """A row that was read, and the writes to its checkpoint."""

    row: CheckpointRow
    log: int
    stamp: str
    thread_id: str
    ranges: Sequence[Range]
    tasks: list[tuple[str, str, list[PlacedWrite]]]


class _PieceMissing(Exception):
    """A piece was removed after the rows were read, or it is lost."""


queries = Queries(__package__, "checkpoints.sql", CheckpointRow)
_WIDTH = len(CheckpointRow.__struct_fields__)


async def read_with_writes(
    connection: Connection, scope: Scope, query: Query, params: Mapping[str, Any], cached: CachedPieces | None
) -> list[Checkpoint]:
    """Return the checkpoints of a query that joins their writes, in the order of its rows."""
    thread_id = text.unescape(params["thread_id"])

    async def read() -> list[Checkpoint]:
        loaded: dict[tuple[str, str], _LoadedRow] = {}
        seen: set[tuple[str, str, str | None]] = set()
        for row in await query.all(connection, params):
            if (row[1], row[2], row[-4]) in seen:
                break  # A checkpoint was saved again as its own descendant: the following rows are repetitions.
            seen.add((row[1], row[2], row[-4]))
            checkpoint = loaded.get((row[1], row[2]))
            if checkpoint is None:
                checkpoint = loaded[row[1], row[2]] = _load_row(connection, row, thread_id)
            if row[-4] is not None:
                checkpoint.tasks.append(_task(*row[-4:]))
        return await _read_pieces(connection, scope, list(loaded.values()), cached)

    return await _retry_missing(read)


async def page(
    connection: Connection, scope: Scope, params: Mapping[str, Any], clause: str, limit: int | None
) -> Page[Checkpoint]:
    """Return one page of a list.

    Raises:
        LimitExceeded: without ``limit``, there are more than ``list_rows``.
    """

    async def read() -> Page[Checkpoint]:
        rows = await queries.list.all(connection, params, clause)
        maximum = scope.limits.list_rows if limit is None else limit
        if limit is None and len(rows) > maximum:
            message = f"there are more than list_rows = {maximum:,} checkpoints: page them with limit= and cursor="
            raise LimitExceeded(message, limit="list_rows", maximum=maximum)
        loaded = [_load_row(connection, row, text.unescape(row[-1])) for row in rows[:maximum]]
        await _add_writes(connection, scope, loaded)
        checkpoints = await _read_pieces(connection, scope, loaded, None)
        return Page(checkpoints, _cursor(loaded[-1].row) if len(rows) > maximum else None)

    return await _retry_missing(read)


async def fetch_packed(engine: Engine, scope: Scope, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """Fetch the pieces that are in packs; outside of any transaction, because it may take a while.

    Raises:
        NotFound: a pack does not exist.
        PackStorageMissing: the location of the packs is not configured.
        Corrupt: a piece is damaged.
        Unavailable: the pack storage cannot be reached.
    """
    if not any(InPack in map(type, pieces) for checkpoint in checkpoints for pieces in _all_pieces(checkpoint)):
        return checkpoints
    pieces = chain.from_iterable(pieces for checkpoint in checkpoints for pieces in _all_pieces(checkpoint))
    bodies = await packs.fetch(engine, scope, [piece for piece in pieces if isinstance(piece, InPack)])
    return [_with_bodies(checkpoint, bodies) for checkpoint in checkpoints]


def _all_pieces(checkpoint: Checkpoint) -> Iterable[Sequence[Any]]:
    yield checkpoint.pieces
    for task in checkpoint.tasks:
        for write in task.writes:
            yield write.pieces


def _with_bodies(checkpoint: Checkpoint, bodies: Mapping[bytes, bytes]) -> Checkpoint:
    def resolve(pieces: Sequence[Any]) -> list[Any]:
        return [bodies[piece.digest] if isinstance(piece, InPack) else piece for piece in pieces]

    tasks = [
        structs.replace(
            task, writes=[structs.replace(write, pieces=tuple(resolve(write.pieces))) for write in task.writes]
        )
        for task in checkpoint.tasks
    ]
    return structs.replace(checkpoint, pieces=resolve(checkpoint.pieces), tasks=tasks)


def after(cursor: str | None, params: dict[str, Any]) -> str:
    """Return the condition that a page starts after a cursor."""
    if cursor is None:
        return ""
    id, thread, namespace = decode_cursor(cursor, "checkpoints", str, int, str)
    params.update(after_id=compact_columns.encode_id(text.escape(id)), after_ns=text.escape(namespace))
    params["after_thread"] = min(thread, _MAX_THREADS)  # a forged cursor may contain any number
    return "\n  AND (checkpoint_id, thread, checkpoint_ns) < (:after_id, :after_thread, :after_ns)"


def _cursor(row: CheckpointRow) -> str:
    return encode_cursor("checkpoints", row.id, row.thread, row.namespace)


async def _retry_missing(read: Callable[[], Awaitable[T]]) -> T:
    """Read again if pieces were removed between two queries, together with the checkpoints they belonged to."""
    for _ in range(MAX_TRIES):
        try:
            return await read()
        except _PieceMissing as error:
            message = str(error)
    raise Corrupt(message)


def _load_row(connection: Connection, row: Row, thread_id: str) -> _LoadedRow:
    checkpoint = mapper(CheckpointRow, connection.dialect)([row[:_WIDTH]])[0]
    head = ranges.head(checkpoint.namespace, checkpoint.id, checkpoint.parent, checkpoint.leans or ())
    label = f"checkpoint {checkpoint.id} of thread {thread_id!r}"
    spans = ranges.unseal(checkpoint.pieces, label, bytes(checkpoint.state), head)
    return _LoadedRow(checkpoint, row[_WIDTH], row[_WIDTH + 1], thread_id, spans, [])


def _task(task_id: bytes, task_path: str, packed: bytes, sealed: bytes) -> tuple[str, str, list[PlacedWrite]]:
    return compact_columns.id_of(task_id), compact_columns.path_of(task_path), task_writes.unpack(packed, sealed)


async def _add_writes(connection: Connection, scope: Scope, loaded: Sequence[_LoadedRow]) -> None:
    if not loaded:
        return
    threads: Any = sorted({item.row.thread for item in loaded})
    ids: Any = [compact_columns.encode_id(text.escape(item.row.id)) for item in loaded]
    if connection.dialect is Dialect.SQLITE:
        threads, ids = text.dump(threads), text.dump([id.hex().upper() for id in ids])
    by_key = {(item.row.thread, item.row.namespace, item.row.id): item for item in loaded}
    for row in await queries.writes_of.all(connection, scope.params(threads=threads, checkpoint_ids=ids)):
        checkpoint = by_key.get((row[0], text.unescape(row[1]), compact_columns.id_of(row[2])))
        if checkpoint is not None:
            checkpoint.tasks.append(_task(*row[3:]))


async def _read_pieces(
    connection: Connection, scope: Scope, loaded: Sequence[_LoadedRow], cached: CachedPieces | None
) -> list[Checkpoint]:
    """Read the pieces of rows and return the checkpoints."""
    by_log: dict[int, dict[int, Any]] = {}
    for log in {item.log for item in loaded}:
        of_log = [item for item in loaded if item.log == log]
        missing = _missing_ranges(of_log, cached)
        pieces = await piece_log.read(connection, scope, log, missing)
        if sum(last - first + 1 for first, last in missing) != len(pieces):
            raise _PieceMissing(f"pieces of thread {of_log[0].thread_id!r} are missing")
        by_log[log] = pieces
    return [_checkpoint(item, by_log[item.log]) for item in loaded]


def _missing_ranges(loaded: Sequence[_LoadedRow], cached: CachedPieces | None) -> list[Range]:
    """Return the positions that must be read: all that the caller has not cached. Pieces of task writes are always read."""
    of_writes = [span for item in loaded for span in _write_ranges(item)]
    of_state = ranges.union(span for item in loaded for span in item.ranges)
    if cached is not None and cached.stamp == loaded[0].stamp:
        available = ranges.union((first, last) for first, last in cached.positions)
        of_state = [rest for span in of_state for rest in ranges.subtract(span, available)]
    return ranges.union([*of_state, *of_writes])


def _write_ranges(loaded: _LoadedRow) -> Iterable[Range]:
    return ranges.ranges_of(
        position for _, _, writes in loaded.tasks for write in writes for position in write.positions
    )


def _checkpoint(loaded: _LoadedRow, pieces: Mapping[int, Any]) -> Checkpoint:
    row = loaded.row
    return Checkpoint(
        thread_id=loaded.thread_id,
        namespace=row.namespace,
        id=row.id,
        parent=row.parent,
        metadata=row.metadata,
        state=bytes(row.state),
        pieces=list(map(pieces.get, ranges.positions_in(loaded.ranges))),
        positions=loaded.ranges,
        stamp=loaded.stamp,
        leans=channel_marks.channels_without_value(row.leans or ()),
        created_at=row.created_at,
        tasks=[task_writes.with_pieces(id, path, writes, pieces) for id, path, writes in loaded.tasks],
    )
