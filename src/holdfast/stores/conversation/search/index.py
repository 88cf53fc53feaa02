"""Keeping the full-text index up to date, at the expense of those who search.

An append indexes nothing; it only leaves its session marked as behind, which it mostly is already. Whoever searches first
indexes what was appended since, in batches that are each a transaction of their own, so that nobody waits long for the
writer. Within a block of a session's log places only grow, so ``search_progress`` keeps the last one indexed for each.

What is deleted leaves the index at once: PostgreSQL sees to that by itself; on SQLite triggers note what is to go, and
``forget`` sends it. Where messages are changed or restored, ``reconsider`` lets the next search look at the whole session.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from msgspec import Struct

from ....clock import to_us
from ....core import text
from ....core.filters import id_list
from ....core.queries import Queries
from ....core.rows import mapper
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.protocol import Call, Connection, Engine, Row
from ....errors import AlreadyExists, ReadOnly, Unavailable
from ....ids import Id
from .. import views
from ..message_log import Message
from .query import stored_words, tag_of, tagged
from .searchable_text import text_of, words_of

BATCH_MESSAGES = 500
"""Messages indexed in one transaction at most."""
MERGE_MESSAGES = 4_000
"""For so many messages indexed at once, on SQLite, a step is made towards an index in one part."""
MERGE_PAGES = 1_000
"""Pages of the index, each about 4 KB, that such a step writes; that many messages need about half of them."""
BATCH_SESSIONS = 100
"""Sessions looked at in one transaction at most."""
TRIES = 16
"""How often a batch is begun when others are indexing at the same time."""
SLOT_BITS = 21
"""Bits of a number that tell messages of one millisecond apart."""
NUMBER_MOST = 2**63 - 1
_MS_MOST = 2**42 - 2
INDEX = "sessions_search_behind"
"""The index of sessions that are behind, which SQLite would not choose by itself."""
_FIRST = "00000000-0000-0000-0000-000000000000"


class Unindexed(Struct, frozen=True):
    """What is needed of a message to index it."""

    id: Id
    session_id: Id
    seq: int
    kind: Annotated[str, "plain"]
    content: Any
    created_at: datetime
    updated_at: datetime


Batch = tuple[str | None, int]
"""The session after which the next batch goes on, or nothing at the end; and how many messages were indexed."""

queries = Queries(__package__, "search.sql", Message, Unindexed)


async def catch_up(engine: Engine, scope: Scope, session_id: str | None) -> None:
    """Index what is committed and not yet indexed, of one session or of all. Where nothing can be written, nothing is done."""
    after_id: str | None = _FIRST
    indexed = 0
    try:
        while after_id is not None:
            batch = partial(_index_some, scope=scope, session_id=session_id, after_id=after_id)
            after_id, count = await _one_of_several(engine, batch)
            indexed += count
        if engine.dialect is Dialect.SQLITE:
            for _ in range(indexed // MERGE_MESSAGES):
                await engine.write(_merge)
    except ReadOnly:
        return


async def _merge(connection: Connection) -> None:
    await queries.merge.all(connection, {"pages": MERGE_PAGES})


async def _one_of_several(engine: Engine, batch: Call[Batch]) -> Batch:
    """Run a batch. Others may be indexing too, and take a number before we do."""
    for _ in range(TRIES):
        try:
            return await engine.write(batch)
        except AlreadyExists as error:
            raced = error
    raise Unavailable(
        "others were indexing the same messages all the time; nothing was found, and a retry is safe"
    ) from raced


async def _index_some(connection: Connection, *, scope: Scope, session_id: str | None, after_id: str) -> Batch:
    """Index one batch."""
    params = scope.params(after_id=after_id, limit=BATCH_SESSIONS)
    await forget(connection, params)
    clause = ""
    if session_id is not None:
        params["session_id"], clause = session_id, " AND id = :session_id"
    sessions = await queries.lock_behind.all(connection, params, clause, INDEX)
    if not sessions:
        return None, 0
    stretches = await _stretches(connection, params, sessions)
    params.update(stretches=text.dump(stretches), limit=BATCH_MESSAGES)
    rows = await queries.unindexed.all(connection, params)
    full = len(rows) == BATCH_MESSAGES
    await _write(connection, params, rows)
    await _advance(connection, params, rows)
    unfinished = stretches[rows[-1][0]][0] if full else None
    done = [id for id, _ in sessions if unfinished is None or id < unfinished]
    if done:
        await queries.up_to_date.all(connection, {**params, "ids": id_list(done, connection.dialect)})
    if full:
        return done[-1] if done else after_id, len(rows)
    return done[-1] if len(sessions) == BATCH_SESSIONS else None, len(rows)


async def _stretches(
    connection: Connection, params: dict[str, Any], sessions: Sequence[Row]
) -> list[tuple[str, int, int]]:
    """Of each block of each session, the places that were not looked at yet: what comes before and what comes after them."""
    ids = id_list([id for id, _ in sessions], connection.dialect)
    known = {(id, block): seq for id, block, seq in await queries.progress.all(connection, {**params, "ids": ids})}
    return [
        (id, known.get((id, block), views.first_of(block)), views.first_of(block + 1))
        for id, blocks in sessions
        for block in range(blocks)
    ]


async def _write(connection: Connection, params: dict[str, Any], rows: Sequence[Row]) -> None:
    """Index messages, those that are not there yet and those that were changed since."""
    found = mapper(Unindexed, connection.dialect)([row[1:-1] for row in rows])
    known = {message.id: row[-1] for message, row in zip(found, rows, strict=True)}
    numbers = await _numbers(connection, params, [message for message in found if known[message.id] is None])
    # In the order of the numbers, or SQLite's index would begin a new segment with each.
    texts = sorted(
        (_text(params, message, numbers.get(message.id, known[message.id]), connection.dialect) for message in found),
        key=lambda each: int(each["number"]),
    )
    await queries.add.many(connection, [each for each in texts if each["message_id"] in numbers])
    await queries.change.many(connection, [each for each in texts if each["message_id"] not in numbers])
    await forget(connection, params)
    if connection.dialect is Dialect.SQLITE:
        await queries.index.many(connection, texts)


async def _advance(connection: Connection, params: dict[str, Any], rows: Sequence[Row]) -> None:
    """Remember how far each stretch has come."""
    last = {row[0]: row for row in rows}
    places = [(row[2], row[3]) for row in last.values()]
    progress = [
        {"tenant_id": params["tenant_id"], "session_id": id, "block": seq // views.BLOCK, "seq": seq}
        for id, seq in places
    ]
    await queries.advance.many(connection, progress)


def _text(params: dict[str, Any], message: Unindexed, number: int, dialect: Dialect) -> dict[str, Any]:
    tenant = params["tenant_id"]
    words = stored_words(words_of(text_of(message.kind, message.content)), tenant, message.session_id, dialect)
    return {
        "tenant_id": tenant,
        "message_id": message.id,
        "session_id": message.session_id,
        "seq": message.seq,
        "number": number,
        "words": words,
        "tagged": tagged(words, tenant) if dialect is Dialect.SQLITE else None,
        "updated_at": to_us(message.updated_at),
    }


async def _numbers(connection: Connection, params: dict[str, Any], messages: Sequence[Unindexed]) -> dict[str, int]:
    """A number for each message: higher for later ones, and nobody else's."""
    numbers: dict[str, int] = {}
    used: set[int] = set()
    waiting = {message.id: _wished_number(message) for message in messages}
    while waiting:
        wished = list(waiting.values())
        asked = text.dump(wished) if connection.dialect is Dialect.SQLITE else wished
        used |= {number for (number,) in await queries.taken.all(connection, {**params, "numbers": asked})}
        for id, number in list(waiting.items()):
            if number in used:
                waiting[id] = number + 1 if number < NUMBER_MOST else 0
            else:
                numbers[id] = waiting.pop(id)
                used.add(number)
    return numbers


def _wished_number(message: Unindexed) -> int:
    """The millisecond a message was made in, then its place in the log, then a bit of its id."""
    ms = min(max(to_us(message.created_at) // 1000, 0), _MS_MOST)
    slot = (message.seq & 0x3FF) << 11 | int(message.id[-3:], 16) & 0x7FF
    return ms << SLOT_BITS | slot


async def forget(connection: Connection, params: dict[str, Any]) -> None:
    """Let what was deleted or changed leave the index, in the transaction that did it; for other stores too.

    Only SQLite needs this. Where its library cannot search, it is left to the next one that can.
    """
    if connection.dialect is not Dialect.SQLITE or await queries.to_remove.one(connection, params) is None:
        return
    if await queries.can_index.one(connection, params) is not None:
        await queries.remove.all(connection, {**params, "tag": tag_of(params["tenant_id"])})
        await queries.removed.all(connection, params)


async def reconsider(connection: Connection, params: dict[str, Any], message_ids: Sequence[str] = ()) -> None:
    """Let the next search look at all of a session again; for stores that rewrite or restore messages, in that transaction.

    ``params`` holds ``tenant_id`` and ``session_id``. Messages that were rewritten are named, so that their old words leave the
    index at once; restored ones need not be.
    """
    if message_ids:
        ids = id_list(message_ids, connection.dialect)
        await queries.drop.all(connection, {**params, "ids": ids})
        await forget(connection, params)
    await queries.run_all("reconsider_", connection, params)
