"""Reads everything in a thread and reports which checkpoints are damaged, down to a single bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ....core import objects as bodies
from ....core import text
from ....core.rows import mapper
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Engine, Row
from ....errors import Corrupt, InvalidInput, NotFound
from ...objects import objects, packs
from ...objects.packs import InPack
from . import compact_columns, piece_log, ranges, task_writes
from .ranges import Range
from .reader import CheckpointRow, queries


class DamagedCheckpoint(Struct, frozen=True):
    """A damaged checkpoint, or one with damaged writes."""

    thread_id: str
    user: str | None
    namespace: str
    id: str
    reason: str


class CheckedThreads(Struct, frozen=True):
    """The result of one ``verify``. ``next`` is the ``after`` of the next call, or ``None`` at the end."""

    threads: int
    checkpoints: int
    damaged: Sequence[DamagedCheckpoint]
    next: str | None


class _Part(Struct, frozen=True):
    """A checkpoint, or the writes of a task to it: the positions it needs, or why it is damaged itself."""

    namespace: str
    id: str
    ranges: Sequence[Range] = ()
    reason: str | None = None


class _Thread(Struct, frozen=True):
    thread_id: str
    user: str | None
    checkpoints: int
    parts: Sequence[_Part]
    damage: dict[int, str]
    """Why the pieces at some positions are damaged."""
    in_packs: Mapping[int, InPack]


async def verify(engine: Engine, scope: Scope, limit: int, after: str | None) -> CheckedThreads:
    """Verify up to ``limit`` threads."""
    start = _start(after)
    params = scope.params(after=start, limit=limit)
    rows = await engine.read(lambda connection: queries.threads.all(connection, params))
    count, damaged = 0, list[DamagedCheckpoint]()
    for row in rows:
        thread = await engine.read(lambda connection, row=row: _examine(connection, scope, row))  # type: ignore[misc]
        for position, reference in thread.in_packs.items():
            if (reason := await _check_in_pack(engine, scope, reference)) is not None:
                thread.damage[position] = reason
        count += thread.checkpoints
        damaged += _damaged_checkpoints(thread)
    return CheckedThreads(len(rows), count, damaged, str(rows[-1][0]) if len(rows) == limit else None)


async def _examine(connection: Connection, scope: Scope, row: Row) -> _Thread:
    number, thread_id, user_id, log = row
    params = scope.params(thread=number)
    checkpoints = await queries.everything.all(connection, params)
    parts = [_checkpoint(connection.dialect, checkpoint) for checkpoint in checkpoints]
    parts += [_writes(*task) for task in await queries.every_write.all(connection, params)]
    needed = ranges.union(span for part in parts for span in part.ranges)
    pieces = await piece_log.stored_rows(connection, scope, log, needed)
    damage = dict.fromkeys(ranges.positions_in(needed), "a piece of it is missing")
    in_packs: dict[int, InPack] = {}
    for position, digest, codec, body in pieces:
        del damage[position]
        result = await _check_piece(connection, scope, digest, codec, body)
        if isinstance(result, InPack):
            in_packs[position] = result
        elif result is not None:
            damage[position] = result
    return _Thread(text.unescape(thread_id), text.unescape(user_id) or None, len(checkpoints), parts, damage, in_packs)


def _checkpoint(dialect: Dialect, row: Row) -> _Part:
    try:
        (checkpoint,) = mapper(CheckpointRow, dialect)([row])
    except Corrupt as error:
        return _Part(text.unescape(row[1]), _id(row[2]), reason=str(error))
    namespace, id = checkpoint.namespace, checkpoint.id
    head = ranges.head(namespace, id, checkpoint.parent, checkpoint.leans or ())
    try:
        return _Part(namespace, id, ranges.unseal(checkpoint.pieces, "it", bytes(checkpoint.state), head))
    except Corrupt as error:
        return _Part(namespace, id, reason=str(error))


def _id(encoded: bytes) -> str:
    """Return an id, or the hexadecimal digits of a damaged one."""
    try:
        return compact_columns.id_of(encoded)
    except Corrupt:
        return bytes(encoded).hex()


def _writes(namespace: str, encoded_id: bytes, packed: bytes, sealed: bytes) -> _Part:
    namespace, id = text.unescape(namespace), _id(encoded_id)
    try:
        task_writes.unpack(packed, sealed)
        return _Part(namespace, id, task_writes.unseal_ranges(packed, sealed))
    except Corrupt as error:
        return _Part(namespace, id, reason=str(error))


async def _check_piece(
    connection: Connection, scope: Scope, digest: bytes, codec: int, body: bytes
) -> InPack | str | None:
    """Return why a piece is damaged, its location if it is in a pack, or ``None`` if it is intact."""
    try:
        if codec != piece_log.OBJECT:
            bodies.unpack(digest, codec, body)
            return None
        if not bytes(body).startswith(bytes(digest)):
            return "a piece of it refers to another object"
        (content,) = await objects.fetch(connection, scope, [bytes(body)])
        return content if isinstance(content, InPack) else None
    except (Corrupt, NotFound) as error:
        return str(error)


async def _check_in_pack(engine: Engine, scope: Scope, piece: InPack) -> str | None:
    try:
        await packs.fetch(engine, scope, [piece])
    except (Corrupt, NotFound) as error:
        return str(error)
    return None


def _damaged_checkpoints(thread: _Thread) -> Iterable[DamagedCheckpoint]:
    """Yield the checkpoints with damaged parts or pieces, each once, with the first reason."""
    reasons: dict[tuple[str, str], str] = {}
    bad = ranges.ranges_of(sorted(thread.damage))
    for part in thread.parts:
        reason = part.reason or next((thread.damage[position] for position in _common(part.ranges, bad)), None)
        if reason is not None:
            reasons.setdefault((part.namespace, part.id), reason)
    for (namespace, id), reason in reasons.items():
        yield DamagedCheckpoint(thread.thread_id, thread.user, namespace, id, reason)


def _common(spans: Sequence[Range], bad: Sequence[Range]) -> Iterable[int]:
    for first, last in spans:
        for begin, end in bad:
            yield from range(max(first, begin), min(last, end) + 1)


def _start(after: Any) -> int:
    if after is None:
        return 0
    if not isinstance(after, str) or not after.isdecimal() or len(after) > 18:
        raise InvalidInput(f"after must be the next of an earlier verify, not {after!r}", field="after")
    return int(after)
