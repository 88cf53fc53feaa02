"""Looking at everything a thread is made of: which checkpoints are damaged, whatever bit was flipped."""

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
    """A checkpoint that is no longer what was saved, or to which something was written that is no longer."""

    thread_id: str
    user: str | None
    namespace: str
    id: str
    reason: str


class CheckedThreads(Struct, frozen=True):
    """What one ``verify`` found. ``next`` is where the next one starts, or ``None`` at the end."""

    threads: int
    checkpoints: int
    damaged: Sequence[DamagedCheckpoint]
    next: str | None


class _Part(Struct, frozen=True):
    """A checkpoint, or what a task wrote to it: the places it needs, or what is wrong with itself."""

    namespace: str
    id: str
    ranges: Sequence[Range] = ()
    reason: str | None = None


class _Thread(Struct, frozen=True):
    thread_id: str
    user: str | None
    checkpoints: int
    parts: Sequence[_Part]
    wrong: dict[int, str]
    """What is wrong with the pieces at some places."""
    in_packs: Mapping[int, InPack]


async def verify(engine: Engine, scope: Scope, limit: int, after: str | None) -> CheckedThreads:
    """Look at some threads."""
    start = _start(after)
    params = scope.params(after=start, limit=limit)
    rows = await engine.read(lambda connection: queries.threads.all(connection, params))
    count, damaged = 0, list[DamagedCheckpoint]()
    for row in rows:
        thread = await engine.read(lambda connection, row=row: _looked_at(connection, scope, row))  # type: ignore[misc]
        for place, each in thread.in_packs.items():
            if (reason := await _wrong_in_pack(engine, scope, each)) is not None:
                thread.wrong[place] = reason
        count += thread.checkpoints
        damaged += _damaged(thread)
    return CheckedThreads(len(rows), count, damaged, str(rows[-1][0]) if len(rows) == limit else None)


async def _looked_at(connection: Connection, scope: Scope, row: Row) -> _Thread:
    number, thread_id, user_id, log = row
    params = scope.params(thread=number)
    stored = await queries.everything.all(connection, params)
    parts = [_checkpoint(connection.dialect, each) for each in stored]
    parts += [_writes(*each) for each in await queries.every_write.all(connection, params)]
    wanted = ranges.union(each for part in parts for each in part.ranges)
    rows = await piece_log.rows_at(connection, scope, log, wanted)
    wrong = dict.fromkeys(ranges.places_in(wanted), "a piece of it is missing")
    in_packs: dict[int, InPack] = {}
    for place, digest, codec, body in rows:
        del wrong[place]
        found = await _piece(connection, scope, digest, codec, body)
        if isinstance(found, InPack):
            in_packs[place] = found
        elif found is not None:
            wrong[place] = found
    return _Thread(text.unescape(thread_id), text.unescape(user_id) or None, len(stored), parts, wrong, in_packs)


def _checkpoint(dialect: Dialect, stored: Row) -> _Part:
    try:
        (row,) = mapper(CheckpointRow, dialect)([stored])
    except Corrupt as error:
        return _Part(text.unescape(stored[1]), _id(stored[2]), reason=str(error))
    head = ranges.head(row.namespace, row.id, row.parent, row.leans or ())
    try:
        return _Part(row.namespace, row.id, ranges.unseal(row.pieces, "it", bytes(row.state), head))
    except Corrupt as error:
        return _Part(row.namespace, row.id, reason=str(error))


def _id(short: bytes) -> str:
    """An id, or what is left of it."""
    try:
        return compact_columns.id_of(short)
    except Corrupt:
        return bytes(short).hex()


def _writes(namespace: str, short: bytes, packed: bytes, sealed: bytes) -> _Part:
    namespace, id = text.unescape(namespace), _id(short)
    try:
        task_writes.unpack(packed, sealed)
        return _Part(namespace, id, task_writes.unsealed(packed, sealed))
    except Corrupt as error:
        return _Part(namespace, id, reason=str(error))


async def _piece(connection: Connection, scope: Scope, digest: bytes, codec: int, body: bytes) -> InPack | str | None:
    """What is wrong with a piece, if anything is, or where it must be looked for."""
    try:
        if codec != piece_log.OBJECT:
            bodies.unpack(digest, codec, body)
            return None
        if not bytes(body).startswith(bytes(digest)):
            return "a piece of it speaks of another object"
        (found,) = await objects.fetch(connection, scope, [bytes(body)])
        return found if isinstance(found, InPack) else None
    except (Corrupt, NotFound) as error:
        return str(error)


async def _wrong_in_pack(engine: Engine, scope: Scope, piece: InPack) -> str | None:
    try:
        await packs.fetch(engine, scope, [piece])
    except (Corrupt, NotFound) as error:
        return str(error)
    return None


def _damaged(thread: _Thread) -> Iterable[DamagedCheckpoint]:
    """The checkpoints that need something that is wrong, each once, with the first reason."""
    reasons: dict[tuple[str, str], str] = {}
    bad = ranges.ranges_of(sorted(thread.wrong))
    for part in thread.parts:
        reason = part.reason or next((thread.wrong[place] for place in _common(part.ranges, bad)), None)
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
        raise InvalidInput("after is what an earlier verify said under next")
    return int(after)
