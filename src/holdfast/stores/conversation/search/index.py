"""The full-text index of messages, and the backlog of messages that are not indexed yet.

An append does not index; it only marks its session as behind, which it usually is already. The messages of these sessions that
are not indexed are the backlog. It survives a crash, because it is derived from committed data. ``drain`` indexes a bounded batch
of it in one transaction. Workers and servers call it in the background, every search calls it once, and
any number of processes may call it at the same time. Within a block of a session's log, positions only grow, so
``search_progress`` stores the last indexed position of each block.

The index contains words and no text. Deleted and changed messages leave it in the same transaction. PostgreSQL does
that by itself. SQLite needs exactly the words that were added, so triggers record the old content, and
``remove_deleted`` computes the words from it again and removes them. Stores that change or restore messages call
``requeue`` to put them into the backlog again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from ....clock import to_us
from ....core import text
from ....core.filters import id_list
from ....core.queries import Queries
from ....core.rows import mapper
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.heavy_calls import Cancellation, HeavyCall, compute
from ....engines.protocol import Call, Connection, Engine, Row
from ....errors import AlreadyExists, ReadOnly
from .. import views
from ..message_log import Message
from .query import add_tags, words_to_store
from .searchable_text import searchable, words_of

BATCH_MESSAGES = 200
"""Messages indexed in one transaction at most. Appends to their sessions wait for it."""
BATCH_CHARS = 1_000_000
"""Characters of messages, as JSON, after which no further messages are read for one transaction."""
BATCH_SESSIONS = 100
"""Sessions read in one transaction at most."""
MAX_POSITIONS_READ = 5_000
"""Message positions read in one transaction at most, to find those that are not indexed."""
FIRST_READ = 16
"""Messages in the first read of contents, whose size is unknown; each further read doubles the number."""
MAX_ATTEMPTS = 16
"""How often a batch is tried when other processes are indexing at the same time."""
SLOT_BITS = 21
"""Bits of an index number that distinguish messages of one millisecond."""
MAX_NUMBER = 2**63 - 1
_MAX_MS = 2**42 - 2
BEHIND_INDEX = "sessions_search_behind"
"""The database index of sessions that are behind; SQLite's planner would not choose it by itself."""
_CONTENT, _CREATED = map(Message.__struct_fields__.index, ("content", "created_at"))

queries = Queries(__package__, "search.sql", Message)


class DrainResult(Struct, frozen=True):
    """The result of ``drain``."""

    messages: int
    """The number of messages indexed."""
    more: bool
    """Whether messages may be left to index."""


class IndexBatch(Struct, frozen=True):
    """A bounded batch of the backlog, read and not yet indexed."""

    rows: Sequence[Row]
    """Messages that are not indexed: the columns of ``Message``, then the position in the log."""
    reached: dict[tuple[str, int], int]
    """The last position read, by session and block."""
    finished: Sequence[str]
    """The sessions with nothing left to index after this batch."""


def chars_of(rows: Sequence[Row]) -> int:
    """Return the number of characters of the contents of messages, as JSON."""
    return sum(len(row[_CONTENT]) for row in rows)


async def drain(engine: Engine, scope: Scope, session_id: str | None = None) -> DrainResult:
    """Index a bounded batch of the backlog, of one session or of all, in one transaction.

    Does nothing if the database is read-only, or if other processes keep indexing the same messages.
    """
    index_batch = partial(_index_batch, engine=engine, scope=scope, session_id=session_id)
    try:
        return await _retry_on_conflict(engine, index_batch)
    except ReadOnly:
        return DrainResult(0, more=False)


async def _retry_on_conflict(engine: Engine, index_batch: Call[DrainResult]) -> DrainResult:
    """Index a batch; try again if another process has taken one of its index numbers."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return await engine.write(HeavyCall(index_batch))
        except AlreadyExists:
            continue
    return DrainResult(0, more=True)


async def _index_batch(connection: Connection, *, engine: Engine, scope: Scope, session_id: str | None) -> DrainResult:
    params = scope.params(session_id=session_id, limit=BATCH_SESSIONS)
    await remove_deleted(connection, params)
    clause = "" if session_id is None else " AND id = :session_id"
    sessions = await queries.lock_behind.all(connection, params, clause, BEHIND_INDEX)
    if not sessions:
        return DrainResult(0, more=False)
    batch = await read_batch(connection, params, sessions, messages=BATCH_MESSAGES, chars=BATCH_CHARS)
    await _write(connection, engine, params, batch)
    await _advance(connection, params, batch)
    if batch.finished:
        ids = id_list(batch.finished, connection.dialect)
        await queries.up_to_date.all(connection, {**params, "ids": ids})
    more = len(batch.finished) < len(sessions) or len(sessions) == BATCH_SESSIONS
    return DrainResult(len(batch.rows), more)


async def read_batch(
    connection: Connection, params: dict[str, Any], sessions: Sequence[Row], *, messages: int, chars: int
) -> IndexBatch:
    """Read messages of these sessions that are not indexed: at most ``messages``, and about ``chars`` characters.

    A row of ``sessions`` begins with a session's id and its number of blocks.
    """
    ranges = await _unread_ranges(connection, params, sessions)
    position_params = {**params, "stretches": text.dump(ranges), "limit": MAX_POSITIONS_READ}
    positions = await queries.places.all(connection, position_params)
    unindexed_ids = [id for _, _, id, is_indexed in positions if not is_indexed]
    read_count, rows = await _read(connection, params, unindexed_ids[:messages], chars)
    unread = {*unindexed_ids[read_count:]}
    done = next((index for index, row in enumerate(positions) if row[2] in unread), len(positions))
    unfinished: str | None = None
    if done < len(positions) or len(positions) == MAX_POSITIONS_READ:
        unfinished = ranges[positions[min(done, MAX_POSITIONS_READ - 1)][0]][0]
    reached = {(ranges[key][0], ranges[key][1] // views.BLOCK): position for key, position, _, _ in positions[:done]}
    ids = [row[0] for row in sessions]
    return IndexBatch(rows, reached, ids if unfinished is None else ids[: ids.index(unfinished)])


async def _unread_ranges(
    connection: Connection, params: dict[str, Any], sessions: Sequence[Row]
) -> list[tuple[str, int, int]]:
    """Return the unread range of each block of each session: session id, the position before it and the position after it."""
    ids = id_list([row[0] for row in sessions], connection.dialect)
    last_positions = {
        (id, block): seq for id, block, seq in await queries.progress.all(connection, {**params, "ids": ids})
    }
    return [
        (row[0], last_positions.get((row[0], block), views.first_of(block)), views.first_of(block + 1))
        for row in sessions
        for block in range(row[1])
    ]


async def _read(
    connection: Connection, params: dict[str, Any], ids: Sequence[str], chars: int
) -> tuple[int, list[Row]]:
    """Read messages by id until they have about ``chars`` characters; return the number of ids read, and the rows."""
    rows: list[Row] = []
    read_count, size = 0, FIRST_READ
    while read_count < len(ids) and chars > 0:
        some_ids = ids[read_count : read_count + size]
        contents = await queries.contents.all(connection, {**params, "ids": id_list(some_ids, connection.dialect)})
        rows += contents
        chars -= chars_of(contents)
        read_count, size = read_count + len(some_ids), 2 * size
    order = {id: index for index, id in enumerate(ids)}
    return read_count, sorted(rows, key=lambda row: order[row[0]])


async def _write(connection: Connection, engine: Engine, params: dict[str, Any], batch: IndexBatch) -> None:
    """Index the messages of a batch."""
    tenant, dialect = params["tenant_id"], connection.dialect

    def prepare(progress: Cancellation) -> list[tuple[Message, int, str]]:
        messages = mapper(Message, dialect)([row[:-1] for row in batch.rows])
        texts = []
        for message, row in zip(messages, batch.rows, strict=True):
            progress.check()
            texts.append(
                (message, row[-1], words_for(tenant, message.session_id, message.kind, message.content, dialect))
            )
        return texts

    texts = await compute(engine, prepare, chars=chars_of(batch.rows))
    numbers = await numbers_for(connection, params, batch.rows)
    index_rows = [
        {
            "tenant_id": tenant,
            "message_id": message.id,
            "session_id": message.session_id,
            "seq": position,
            "number": numbers[message.id],
            "words": words,
        }
        for message, position, words in texts
    ]
    # Insert in the order of the numbers: otherwise each insert begins a new segment of SQLite's index. SQLite merges segments by
    # itself. An explicit merge after each batch would restart that merge each time, and the index would only grow.
    index_rows.sort(key=lambda index_row: index_row["number"])
    await queries.add.many(connection, index_rows)
    if dialect is Dialect.SQLITE:
        await queries.index.many(connection, index_rows)


def words_for(tenant: str, session_id: str, kind: str, content: Any, dialect: Dialect) -> str:
    """Return the words of a message in the form that the index stores."""
    words = words_to_store(words_of(searchable(kind, content)), tenant, session_id, dialect)
    return add_tags(words, tenant) if dialect is Dialect.SQLITE else words


async def _advance(connection: Connection, params: dict[str, Any], batch: IndexBatch) -> None:
    """Store the last indexed position of each block."""
    progress = [
        {"tenant_id": params["tenant_id"], "session_id": id, "block": block, "seq": seq}
        for (id, block), seq in batch.reached.items()
    ]
    await queries.advance.many(connection, progress)


async def numbers_for(connection: Connection, params: dict[str, Any], rows: Sequence[Row]) -> dict[str, int]:
    """Return an index number for each message of a batch: unique in the tenant, and higher for later messages."""
    numbers: dict[str, int] = {}
    used: set[int] = set()
    unassigned = {row[0]: _preferred_number(row[0], row[-1], row[_CREATED]) for row in rows}
    while unassigned:
        candidates: Any = [*unassigned.values()]
        if connection.dialect is Dialect.SQLITE:
            candidates = text.dump(candidates)
        used |= {number for (number,) in await queries.taken.all(connection, {**params, "numbers": candidates})}
        for id, number in list(unassigned.items()):
            if number in used:
                unassigned[id] = number + 1 if number < MAX_NUMBER else 0
            else:
                numbers[id] = unassigned.pop(id)
                used.add(number)
    return numbers


def _preferred_number(id: str, position: int, created_at: Any) -> int:
    """Return the number made of a message's creation time in milliseconds, its position in the log and part of its id."""
    created_us = created_at if isinstance(created_at, int) else to_us(created_at)
    ms = min(max(created_us // 1000, 0), _MAX_MS)
    slot = (position & 0x3FF) << 11 | int(id[-3:], 16) & 0x7FF
    return ms << SLOT_BITS | slot


async def remove_deleted(connection: Connection, params: dict[str, Any]) -> None:
    """Remove deleted and changed messages from the index. Called in the transaction that deleted or changed them.

    Only SQLite needs this. If this SQLite library has no full-text search, the removal is left to a process that has it.
    """
    if connection.dialect is not Dialect.SQLITE:
        return
    tenant = params["tenant_id"]
    while rows := await queries.to_remove.all(connection, {"tenant_id": tenant, "limit": BATCH_MESSAGES}):
        if await queries.can_index.one(connection, params) is None:
            return
        removed = [
            {"number": number, "words": words_for(tenant, session_id, kind, text.load(content), Dialect.SQLITE)}
            for _, number, session_id, kind, content in rows
        ]
        await queries.remove.many(connection, removed)
        await queries.removed.all(connection, {"tenant_id": tenant, "last": rows[-1][0]})


async def requeue(
    connection: Connection, params: dict[str, Any], rewritten: Sequence[str] = (), *, only_these: bool = False
) -> None:
    """Put messages of a session into the backlog again. Called in the transaction that rewrites or restores messages.

    ``params`` contains ``tenant_id`` and ``session_id``. ``rewritten`` are the ids of rewritten messages, whose old words leave
    the index at once. The whole session is read again, or with ``only_these``, its blocks from the rewritten messages on.
    """
    ids = {**params, "ids": id_list(rewritten, connection.dialect)}
    if rewritten and connection.dialect is Dialect.POSTGRES:
        await queries.drop.all(connection, ids)
    await remove_deleted(connection, params)
    if only_these:
        first_positions: dict[int, int] = {}
        for (position,) in await queries.places_of.all(connection, ids):
            block = position // views.BLOCK
            first_positions[block] = min(position, first_positions.get(block, position))
        lowered_progress = [
            {**params, "block": block, "seq": position - 1} for block, position in first_positions.items()
        ]
        await queries.lower.many(connection, lowered_progress)
    else:
        await queries.restart.all(connection, params)
    await queries.mark_behind.all(connection, params)
