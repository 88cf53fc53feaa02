"""Benchmark of full-text search over 100,000 messages: the newest 20 matches, decoded, with highlighted snippets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from .case import Case, Engine, Job, Result
from .workload import SEED, WORDS, messages, middle_us

GROUPS: dict[str, Engine] = {"search-sqlite": "sqlite", "search-postgres": "postgres"}
TENANT = "bench"
SESSIONS, MESSAGES = 100, 100_000
HITS = 20
KINDS = ("rare", "common", "both", "phrase")
"""A number that 1 of 500 messages contains; a word that 2 of 3 contain; both; a phrase of two words."""
_TOGETHER = 100
_MIN_SEARCHES = 20
_COLUMNS = (
    "m.id, m.session_id, m.seq, m.kind, m.role, m.content, m.token_count, m.metadata, m.is_preserved, m.is_summary,"
    " m.created_at, m.updated_at"
)

Query = tuple[list[str], bool]
"""The words, and whether they are a phrase."""
Find = Callable[[Query], Sequence[Any]]
AsyncFind = Callable[[Query], Awaitable[Sequence[Any]]]


def cases() -> list[Case]:
    """Return the cases: Holdfast, and the query by hand with and without snippets."""
    names: dict[str, list[str]] = {"search-sqlite": [*SYNC], "search-postgres": [*ASYNC]}
    return [Case(group, name, "main", engine, kept=True) for group, engine in GROUPS.items() for name in names[group]]


def run(job: Job) -> Result:
    """Return the median time of each kind of search."""
    if job.group == "search-sqlite":
        with SYNC[job.contender](job) as find:
            return {f"{kind}_us": _time(find, kind, job.seconds) for kind in KINDS}
    return asyncio.run(_run_async(job))


async def _run_async(job: Job) -> Result:
    async with ASYNC[job.contender](job) as find:
        return {f"{kind}_us": await _time_async(find, kind, job.seconds) for kind in KINDS}


def _queries(kind: str) -> Iterator[Query]:
    """Yield an endless sequence of queries, the same for all contenders."""
    which = random.Random(SEED)
    while True:
        word, other, number = which.choice(WORDS), which.choice(WORDS), str(which.randrange(1_000, 10_000))
        yield {
            "rare": ([number], False),
            "common": ([word], False),
            "both": ([word, number], False),
            "phrase": ([word, other], True),
        }[kind]


def _time(find: Find, kind: str, seconds: float) -> float:
    queries, took = _queries(kind), list[float]()
    for _ in range(_MIN_SEARCHES):
        assert len(find(next(queries))) == HITS
    end = perf_counter() + seconds
    while perf_counter() < end or len(took) < _MIN_SEARCHES:
        query, before = next(queries), perf_counter()
        find(query)
        took.append(perf_counter() - before)
    return middle_us(took)


async def _time_async(find: AsyncFind, kind: str, seconds: float) -> float:
    queries, took = _queries(kind), list[float]()
    for _ in range(_MIN_SEARCHES):
        assert len(await find(next(queries))) == HITS
    end = perf_counter() + seconds
    while perf_counter() < end or len(took) < _MIN_SEARCHES:
        query, before = next(queries), perf_counter()
        await find(query)
        took.append(perf_counter() - before)
    return middle_us(took)


def _typed(query: Query) -> str:
    """Return a query as typed by a user."""
    words, phrase = query
    return f'"{" ".join(words)}"' if phrase else " ".join(words)


def _path(job: Job) -> str:
    return str(Path(job.place) / "agents.db")


def _fill(job: Job, url: str) -> None:
    """Store all messages in blocks that alternate between the sessions."""
    from holdfast import Holdfast, NewMessage

    if not job.fresh:
        return
    with Holdfast(url, auto_migrate=True) as hf:
        tenant, supply = hf.tenant(TENANT), messages(MESSAGES)
        ids = [tenant.sessions.create().id for _ in range(SESSIONS)]
        for start in range(0, MESSAGES, _TOGETHER):
            block = supply[start : start + _TOGETHER]
            new = [NewMessage(role=message["role"], content=message["content"]) for message in block]
            tenant.messages.append_many(ids[start // _TOGETHER % SESSIONS], new)


@contextmanager
def holdfast_sync(job: Job) -> Iterator[Find]:
    from holdfast import Holdfast

    _fill(job, _path(job))
    with Holdfast(_path(job)) as hf:
        log = hf.tenant(TENANT).messages
        while not hf.tenants.maintain().is_done:
            pass
        yield lambda query: log.search(_typed(query), limit=HITS)


@contextmanager
def fts5(job: Job) -> Iterator[Find]:
    with _fts5(job, "snippet(by_hand, 0, '**', '**', '…', 24)") as find:
        yield find


@contextmanager
def fts5_without_snippets(job: Job) -> Iterator[Find]:
    with _fts5(job, "NULL") as find:
        yield find


@contextmanager
def _fts5(job: Job, snippet: str) -> Iterator[Find]:
    """Search a separate index over Holdfast's rows by hand and decode the rows."""
    import apsw
    import msgspec

    _fill(job, _path(job))
    connection, decode = apsw.Connection(_path(job)), msgspec.json.Decoder().decode
    connection.execute("PRAGMA cache_size = -65536").fetchall()
    if job.fresh:
        connection.execute("CREATE VIRTUAL TABLE by_hand USING fts5(text)")
        connection.execute(
            "INSERT INTO by_hand (rowid, text) SELECT rowid, json_extract(content, '$[0].text') FROM messages"
        )
    sql = (
        f"SELECT {_COLUMNS}, {snippet} FROM by_hand JOIN messages AS m ON m.rowid = by_hand.rowid"
        " WHERE by_hand MATCH ? AND m.tenant_id = ? ORDER BY by_hand.rowid DESC LIMIT ?"
    )

    def find(query: Query) -> list[Any]:
        rows: list[Any] = connection.execute(sql, (_typed(query), TENANT, HITS)).fetchall()
        return [(*row[:5], decode(row[5]), row[6], decode(row[7]), *row[8:]) for row in rows]

    yield find
    connection.close()


@asynccontextmanager
async def holdfast(job: Job) -> AsyncIterator[AsyncFind]:
    from holdfast import AsyncHoldfast

    _fill(job, job.place)
    async with AsyncHoldfast(job.place) as hf:
        log = hf.tenant(TENANT).messages
        while not (await hf.tenants.maintain()).is_done:
            pass
        if job.fresh:
            await _analyze(job, "messages, message_texts, sessions")
        yield lambda query: log.search(_typed(query), limit=HITS)


@asynccontextmanager
async def tsvector(job: Job) -> AsyncIterator[AsyncFind]:
    marks = "StartSel=**, StopSel=**, MaxWords=24, MinWords=12"
    async with _tsvector(job, f"ts_headline('simple', m.content -> 0 ->> 'text', query, '{marks}')") as find:
        yield find


@asynccontextmanager
async def tsvector_without_snippets(job: Job) -> AsyncIterator[AsyncFind]:
    async with _tsvector(job, "NULL") as find:
        yield find


@asynccontextmanager
async def _tsvector(job: Job, snippet: str) -> AsyncIterator[AsyncFind]:
    """Search a separate index over Holdfast's rows by hand and decode the rows."""
    import asyncpg
    import msgspec

    _fill(job, job.place)
    connection, decode = await asyncpg.connect(job.place), msgspec.json.Decoder().decode
    if job.fresh:
        await connection.execute("CREATE TABLE by_hand (number bigint PRIMARY KEY, id uuid NOT NULL, words tsvector)")
        await connection.execute(
            "INSERT INTO by_hand SELECT row_number() OVER (ORDER BY created_at, seq), id,"
            " to_tsvector('simple', content -> 0 ->> 'text') FROM messages"
        )
        await connection.execute("CREATE INDEX by_hand_words ON by_hand USING gin (words)")
        await _analyze(job, "messages, by_hand")
    columns = _COLUMNS.replace("m.content", "m.content::text").replace("m.metadata", "m.metadata::text")
    statement = await connection.prepare(
        f"SELECT {columns}, {snippet} FROM by_hand CROSS JOIN to_tsquery('simple', $1) AS query"
        " JOIN messages AS m ON m.tenant_id = $2 AND m.id = by_hand.id"
        " WHERE by_hand.words @@ query ORDER BY by_hand.number DESC LIMIT $3"
    )

    async def find(query: Query) -> list[Any]:
        words, phrase = query
        rows = await statement.fetch((" <-> " if phrase else " & ").join(words), TENANT, HITS)
        return [(*row[:5], decode(row[5]), row[6], decode(row[7]), *row[8:]) for row in map(tuple, rows)]

    yield find
    await connection.close()


async def _analyze(job: Job, tables: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(job.place)
    await connection.execute(f"VACUUM ANALYZE {tables}")
    await connection.close()


SYNC: dict[str, Callable[[Job], AbstractContextManager[Find]]] = {
    "Holdfast, sync": holdfast_sync,
    "FTS5": fts5,
    "FTS5, without snippets": fts5_without_snippets,
}
ASYNC: dict[str, Callable[[Job], AbstractAsyncContextManager[AsyncFind]]] = {
    "Holdfast": holdfast,
    "tsvector": tsvector,
    "tsvector, without snippets": tsvector_without_snippets,
}
