"""Keeping the full-text index up to date, a bounded piece at a time.

An append indexes nothing; it only leaves its session marked as behind, which it mostly is already. The sessions that are behind
are the backlog: it survives a crash, because it consists of what is committed and not yet indexed. ``drain`` indexes a bounded
piece of it in one transaction. Workers and servers call it in the background, every search calls it once, and any number of
processes may do so at the same time. Within a block of a session's log places only grow, so ``search_progress`` keeps the last
one looked at for each block.

What is deleted or changed leaves the index in the same transaction: PostgreSQL sees to that by itself; on SQLite triggers note
what is to go, and ``forget`` sends it. Where messages are changed or restored, ``reconsider`` puts them into the backlog again.
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
from .query import stored_words, tagged
from .searchable_text import searchable, words_of

BATCH_MESSAGES = 200
"""Messages indexed in one transaction at most. Nobody can append to their sessions meanwhile."""
BATCH_CHARS = 1_000_000
"""Characters of messages, as JSON, after which no more are read for one transaction."""
BATCH_SESSIONS = 100
"""Sessions looked at in one transaction at most."""
PLACES = 5_000
"""Messages looked at in one transaction at most, to find those that are not indexed."""
FIRST_READ = 16
"""Messages read at first, of unknown size; then twice as many each time, while they are small."""
TRIES = 16
"""How often a piece is begun when others are indexing at the same time."""
SLOT_BITS = 21
"""Bits of a number that tell messages of one millisecond apart."""
MAX_NUMBER = 2**63 - 1
_MAX_MS = 2**42 - 2
INDEX = "sessions_search_behind"
"""The index of sessions that are behind, which SQLite would not choose by itself."""
_CONTENT, _CREATED = map(Message.__struct_fields__.index, ("content", "created_at"))

queries = Queries(__package__, "search.sql", Message)


class Drained(Struct, frozen=True):
    """What one call of ``drain`` did."""

    messages: int
    """Messages that it indexed."""
    more: bool
    """Whether another call would find something to do."""


class Piece(Struct, frozen=True):
    """A bounded piece of the backlog, read and not yet indexed."""

    rows: Sequence[Row]
    """Messages that are not indexed: the columns of ``Message``, then the place in the log."""
    reached: dict[tuple[str, int], int]
    """The last place looked at of blocks of sessions."""
    finished: Sequence[str]
    """Sessions of which nothing else is left."""


def chars_of(rows: Sequence[Row]) -> int:
    """Characters of the contents of messages, as JSON."""
    return sum(len(row[_CONTENT]) for row in rows)


async def drain(engine: Engine, scope: Scope, session_id: str | None = None) -> Drained:
    """Index a bounded piece of the backlog, of one session or of all, in one transaction.

    Where nothing can be written, or others are indexing the same all the time, nothing is done.
    """
    piece = partial(_index_some, engine=engine, scope=scope, session_id=session_id)
    try:
        return await _one_of_several(engine, piece)
    except ReadOnly:
        return Drained(0, more=False)


async def _one_of_several(engine: Engine, piece: Call[Drained]) -> Drained:
    """Index a piece. Others may be indexing too, and take a number before we do."""
    for _ in range(TRIES):
        try:
            return await engine.write(HeavyCall(piece))
        except AlreadyExists:
            continue
    return Drained(0, more=True)


async def _index_some(connection: Connection, *, engine: Engine, scope: Scope, session_id: str | None) -> Drained:
    params = scope.params(session_id=session_id, limit=BATCH_SESSIONS)
    await forget(connection, params)
    clause = "" if session_id is None else " AND id = :session_id"
    sessions = await queries.lock_behind.all(connection, params, clause, INDEX)
    if not sessions:
        return Drained(0, more=False)
    piece = await read_piece(connection, params, sessions, messages=BATCH_MESSAGES, chars=BATCH_CHARS)
    await _write(connection, engine, params, piece)
    await _advance(connection, params, piece)
    if piece.finished:
        ids = id_list(piece.finished, connection.dialect)
        await queries.up_to_date.all(connection, {**params, "ids": ids})
    more = len(piece.finished) < len(sessions) or len(sessions) == BATCH_SESSIONS
    return Drained(len(piece.rows), more)


async def read_piece(
    connection: Connection, params: dict[str, Any], sessions: Sequence[Row], *, messages: int, chars: int
) -> Piece:
    """Messages of these sessions that are not indexed: so many, or about so many characters, at most.

    A row of ``sessions`` begins with a session's id and its number of blocks.
    """
    stretches = await _stretches(connection, params, sessions)
    asked = {**params, "stretches": text.dump(stretches), "limit": PLACES}
    places = await queries.places.all(connection, asked)
    wanted = [id for _, _, id, is_indexed in places if not is_indexed]
    read, rows = await _read(connection, params, wanted[:messages], chars)
    unread = {*wanted[read:]}
    seen = next((at for at, row in enumerate(places) if row[2] in unread), len(places))
    unfinished: str | None = None
    if seen < len(places) or len(places) == PLACES:
        unfinished = stretches[places[min(seen, PLACES - 1)][0]][0]
    reached = {(stretches[key][0], stretches[key][1] // views.BLOCK): place for key, place, _, _ in places[:seen]}
    ids = [row[0] for row in sessions]
    return Piece(rows, reached, ids if unfinished is None else ids[: ids.index(unfinished)])


async def _stretches(
    connection: Connection, params: dict[str, Any], sessions: Sequence[Row]
) -> list[tuple[str, int, int]]:
    """Of each block of each session, the places that were not looked at yet: what comes before and what comes after them."""
    ids = id_list([row[0] for row in sessions], connection.dialect)
    known = {(id, block): seq for id, block, seq in await queries.progress.all(connection, {**params, "ids": ids})}
    return [
        (row[0], known.get((row[0], block), views.first_of(block)), views.first_of(block + 1))
        for row in sessions
        for block in range(row[1])
    ]


async def _read(
    connection: Connection, params: dict[str, Any], ids: Sequence[str], chars: int
) -> tuple[int, list[Row]]:
    """Messages by their ids, until they have about so many characters; and how many of the ids that were."""
    rows: list[Row] = []
    read, size = 0, FIRST_READ
    while read < len(ids) and chars > 0:
        some = ids[read : read + size]
        found = await queries.contents.all(connection, {**params, "ids": id_list(some, connection.dialect)})
        rows += found
        chars -= chars_of(found)
        read, size = read + len(some), 2 * size
    place = {id: at for at, id in enumerate(ids)}
    return read, sorted(rows, key=lambda row: place[row[0]])


async def _write(connection: Connection, engine: Engine, params: dict[str, Any], piece: Piece) -> None:
    """Index the messages of a piece."""
    tenant, dialect = params["tenant_id"], connection.dialect

    def prepared(progress: Cancellation) -> list[tuple[Message, int, str]]:
        messages = mapper(Message, dialect)([row[:-1] for row in piece.rows])
        texts = []
        for message, row in zip(messages, piece.rows, strict=True):
            progress.check()
            texts.append(
                (message, row[-1], words_for(tenant, message.session_id, message.kind, message.content, dialect))
            )
        return texts

    texts = await compute(engine, prepared, chars=chars_of(piece.rows))
    numbers = await numbers_for(connection, params, piece.rows)
    added = [
        {
            "tenant_id": tenant,
            "message_id": message.id,
            "session_id": message.session_id,
            "seq": place,
            "number": numbers[message.id],
            "words": words,
        }
        for message, place, words in texts
    ]
    # In the order of the numbers, or SQLite's index would begin a new segment with each. It merges its segments by itself. To ask
    # it for one segment after each piece would begin that merge anew each time, and the index would only grow.
    added.sort(key=lambda each: each["number"])
    await queries.add.many(connection, added)
    if dialect is Dialect.SQLITE:
        await queries.index.many(connection, added)


def words_for(tenant: str, session_id: str, kind: str, content: Any, dialect: Dialect) -> str:
    """The words of a message as an index takes them."""
    words = stored_words(words_of(searchable(kind, content)), tenant, session_id, dialect)
    return tagged(words, tenant) if dialect is Dialect.SQLITE else words


async def _advance(connection: Connection, params: dict[str, Any], piece: Piece) -> None:
    """Remember how far each block has come."""
    progress = [
        {"tenant_id": params["tenant_id"], "session_id": id, "block": block, "seq": seq}
        for (id, block), seq in piece.reached.items()
    ]
    await queries.advance.many(connection, progress)


async def numbers_for(connection: Connection, params: dict[str, Any], rows: Sequence[Row]) -> dict[str, int]:
    """A number for each message of a piece: higher for later ones, and nobody else's."""
    numbers: dict[str, int] = {}
    used: set[int] = set()
    waiting = {row[0]: _wished_number(row[0], row[-1], row[_CREATED]) for row in rows}
    while waiting:
        asked: Any = [*waiting.values()]
        if connection.dialect is Dialect.SQLITE:
            asked = text.dump(asked)
        used |= {number for (number,) in await queries.taken.all(connection, {**params, "numbers": asked})}
        for id, number in list(waiting.items()):
            if number in used:
                waiting[id] = number + 1 if number < MAX_NUMBER else 0
            else:
                numbers[id] = waiting.pop(id)
                used.add(number)
    return numbers


def _wished_number(id: str, place: int, created_at: Any) -> int:
    """The millisecond a message was made in, then its place in the log, then a bit of its id."""
    created_us = created_at if isinstance(created_at, int) else to_us(created_at)
    ms = min(max(created_us // 1000, 0), _MAX_MS)
    slot = (place & 0x3FF) << 11 | int(id[-3:], 16) & 0x7FF
    return ms << SLOT_BITS | slot


async def forget(connection: Connection, params: dict[str, Any]) -> None:
    """Let what was deleted or changed leave the index, in the transaction that did it; for other stores too.

    Only SQLite needs this. Where its library cannot search, it is left to the next one that can.
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


async def reconsider(
    connection: Connection, params: dict[str, Any], rewritten: Sequence[str] = (), *, only_these: bool = False
) -> None:
    """Put messages of a session into the backlog again; for stores that rewrite or restore messages, in that transaction.

    ``params`` holds ``tenant_id`` and ``session_id``. Messages that were ``rewritten`` are named, so that their old words leave
    the index at once. All of the session is looked at again; if nothing else has changed, ``only_these`` and what follows.
    """
    ids = {**params, "ids": id_list(rewritten, connection.dialect)}
    if rewritten and connection.dialect is Dialect.POSTGRES:
        await queries.drop.all(connection, ids)
    await forget(connection, params)
    if only_these:
        first: dict[int, int] = {}
        for (place,) in await queries.places_of.all(connection, ids):
            block = place // views.BLOCK
            first[block] = min(place, first.get(block, place))
        lowered = [{**params, "block": block, "seq": place - 1} for block, place in first.items()]
        await queries.lower.many(connection, lowered)
    else:
        await queries.restart.all(connection, params)
    await queries.mark_behind.all(connection, params)
