"""Benchmark of loading a session's history from warm caches into objects: the last 50 messages, and all 1,000."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from .case import Case, Engine, Environment, Job, Result
from .workload import SEED, Message, messages, middle_us

GROUP = "history"
TENANT = "bench"
SESSIONS, MESSAGES = 20, 1_000
LAST = 50
_TOGETHER = 10  # consecutive messages of one session
_MIN_LOADS = 20

Load = Callable[[int, int], Sequence[Any]]
AsyncLoad = Callable[[int, int], Awaitable[Sequence[Any]]]


def cases() -> list[Case]:
    """Return all contenders on the engines they support."""
    return [
        Case(GROUP, name, environment, engine, kept=True)
        for name, (environment, engine, _) in {**SYNC, **ASYNC}.items()
    ]


def run(job: Job) -> Result:
    """Return the median time of a load for each length."""
    if job.contender in SYNC:
        with SYNC[job.contender][2](job) as load:
            return {
                "last_50_us": _time(load, LAST, job.seconds),
                "all_1000_us": _time(load, MESSAGES, job.seconds),
            }
    return asyncio.run(_run_async(ASYNC[job.contender][2], job))


async def _run_async(open_contender: AsyncContender, job: Job) -> Result:
    async with open_contender(job) as load:
        return {
            "last_50_us": await _time_async(load, LAST, job.seconds),
            "all_1000_us": await _time_async(load, MESSAGES, job.seconds),
        }


def _time(load: Load, count: int, seconds: float) -> float:
    which, end = random.Random(SEED), perf_counter() + seconds
    took: list[float] = []
    for session in range(SESSIONS):
        assert len(load(session, count)) == count
    while perf_counter() < end or len(took) < _MIN_LOADS:
        session, before = which.randrange(SESSIONS), perf_counter()
        load(session, count)
        took.append(perf_counter() - before)
    return middle_us(took)


async def _time_async(load: AsyncLoad, count: int, seconds: float) -> float:
    which, end = random.Random(SEED), perf_counter() + seconds
    took: list[float] = []
    for session in range(SESSIONS):
        assert len(await load(session, count)) == count
    while perf_counter() < end or len(took) < _MIN_LOADS:
        session, before = which.randrange(SESSIONS), perf_counter()
        await load(session, count)
        took.append(perf_counter() - before)
    return middle_us(took)


def _blocks() -> Iterator[tuple[int, list[Message]]]:
    """Yield all messages in blocks that alternate between the sessions, in the order of a server's writes."""
    supply = messages(MESSAGES)
    for start in range(0, MESSAGES, _TOGETHER):
        for session in range(SESSIONS):
            yield session, supply[start : start + _TOGETHER]


def _path(job: Job) -> str:
    return str(Path(job.place) / "agents.db")


@contextmanager
def decoding_alone(job: Job) -> Iterator[Load]:
    """Decode complete items in the format of the OpenAI SDK, from memory."""
    import msgspec

    decode = msgspec.json.Decoder().decode
    saved = [json.dumps({"type": "message", **message}) for message in messages(MESSAGES)]
    yield lambda _, count: [decode(text) for text in saved[-count:]]


@contextmanager
def raw_apsw(job: Job) -> Iterator[Load]:
    """Read Holdfast's rows by hand and decode their content."""
    import apsw
    import msgspec

    ids = _fill_ours(job, _path(job))
    decode, connection = msgspec.json.Decoder().decode, apsw.Connection(_path(job))
    connection.execute("PRAGMA cache_size = -65536").fetchall()
    query = "SELECT role, content FROM messages WHERE tenant_id = ? AND session_id = ? ORDER BY seq DESC LIMIT ?"

    def load(session: int, count: int) -> list[Any]:
        rows = connection.execute(query, (TENANT, ids[session], count)).fetchall()
        return [{"role": role, "content": decode(content)} for role, content in reversed(rows)]

    yield load


@contextmanager
def holdfast_sync(job: Job) -> Iterator[Load]:
    from holdfast import Holdfast

    ids = _fill_ours(job, _path(job))
    with Holdfast(_path(job)) as hf:
        log = hf.tenant(TENANT).messages
        yield lambda session, count: log.list(ids[session]) if count == MESSAGES else log.last(ids[session], count)


@asynccontextmanager
async def holdfast(job: Job) -> AsyncIterator[AsyncLoad]:
    """Load with Holdfast on SQLite or PostgreSQL."""
    from holdfast import AsyncHoldfast

    url = job.place if job.place.startswith("postgresql:") else _path(job)
    ids = _fill_ours(job, url)
    async with AsyncHoldfast(url) as hf:
        log = hf.tenant(TENANT).messages
        yield lambda session, count: log.list(ids[session]) if count == MESSAGES else log.last(ids[session], count)


def _fill_ours(job: Job, url: str) -> list[str]:
    from holdfast import Holdfast, NewMessage

    with Holdfast(url, auto_migrate=True) as hf:
        tenant = hf.tenant(TENANT)
        ids = [tenant.sessions.upsert(f"session-{place}").id for place in range(SESSIONS)]
        if job.fresh:
            for session, block in _blocks():
                new = [NewMessage(role=message["role"], content=message["content"]) for message in block]
                tenant.messages.append_many(ids[session], new)
    return ids


@asynccontextmanager
async def raw_asyncpg(job: Job) -> AsyncIterator[AsyncLoad]:
    """Read Holdfast's rows by hand and decode their content."""
    import asyncpg
    import msgspec

    ids = _fill_ours(job, job.place)
    decode, connection = msgspec.json.Decoder().decode, await asyncpg.connect(job.place)
    query = await connection.prepare(
        "SELECT role, content::text FROM messages WHERE tenant_id = $1 AND session_id = $2 ORDER BY seq DESC LIMIT $3"
    )

    async def load(session: int, count: int) -> list[Any]:
        rows = await query.fetch(TENANT, ids[session], count)
        return [{"role": role, "content": decode(content)} for role, content in reversed(rows)]

    yield load
    await connection.close()


@asynccontextmanager
async def sqlite_session(job: Job) -> AsyncIterator[AsyncLoad]:
    from agents.memory import SQLiteSession

    sessions = [SQLiteSession(f"session-{place}", _path(job)) for place in range(SESSIONS)]
    if job.fresh:
        for place, block in _blocks():
            await sessions[place].add_items(block)
    yield lambda session, count: sessions[session].get_items(limit=count)


@asynccontextmanager
async def sqlalchemy_session(job: Job) -> AsyncIterator[AsyncLoad]:
    from .peers import sqlalchemy_sessions, sqlalchemy_url

    async with sqlalchemy_sessions(sqlalchemy_url(job.place), SESSIONS) as sessions:
        if job.fresh:
            for place, block in _blocks():
                await sessions[place].add_items(block)
        yield lambda session, count: sessions[session].get_items(limit=count)


@asynccontextmanager
async def adk_sqlite(job: Job) -> AsyncIterator[AsyncLoad]:
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    async with _adk_history(job, SqliteSessionService(_path(job))) as load:
        yield load


@asynccontextmanager
async def adk_database(job: Job) -> AsyncIterator[AsyncLoad]:
    from google.adk.sessions import DatabaseSessionService

    from .peers import sqlalchemy_url

    async with DatabaseSessionService(sqlalchemy_url(job.place)) as service, _adk_history(job, service) as load:
        yield load


@asynccontextmanager
async def _adk_history(job: Job, service: Any) -> AsyncIterator[AsyncLoad]:
    from google.adk.sessions.base_session_service import GetSessionConfig

    from .peers import APP, USER, adk_append, adk_session

    if job.fresh:
        append = await adk_append(service, 1)
        for message in messages(MESSAGES):
            await append(0, message)
        for place in range(1, SESSIONS + 1):
            await adk_session(service, place)
        await _copy_adk_events(job)

    async def load(session: int, count: int) -> list[Any]:
        expected = GetSessionConfig(num_recent_events=count)
        name = f"session-{session + 1}"
        return list((await service.get_session(app_name=APP, user_id=USER, session_id=name, config=expected)).events)

    yield load


async def _copy_adk_events(job: Job) -> None:
    """Copy the first session's events to all others, interleaved, because 20,000 appends would take minutes."""
    copy = (
        "INSERT INTO events (id, app_name, user_id, session_id, invocation_id, timestamp, event_data)"
        " SELECT e.id, e.app_name, e.user_id, s.id, e.invocation_id, e.timestamp, e.event_data"
        " FROM events AS e CROSS JOIN sessions AS s WHERE s.id <> e.session_id ORDER BY e.timestamp, e.id, s.id"
    )
    if job.place.startswith("postgresql:"):
        import asyncpg

        connection = await asyncpg.connect(job.place)
        await connection.execute(copy)
        await connection.execute("VACUUM ANALYZE events")
        await connection.close()
    else:
        with sqlite3.connect(_path(job)) as file:
            file.execute(copy)


SyncContender = Callable[[Job], AbstractContextManager[Load]]
AsyncContender = Callable[[Job], AbstractAsyncContextManager[AsyncLoad]]

SYNC: dict[str, tuple[Environment, Engine, SyncContender]] = {
    "decoding alone": ("main", "sqlite", decoding_alone),
    "apsw": ("main", "sqlite", raw_apsw),
    "Holdfast, sync": ("main", "sqlite", holdfast_sync),
}
ASYNC: dict[str, tuple[Environment, Engine, AsyncContender]] = {
    "Holdfast": ("main", "sqlite", holdfast),
    "Holdfast, PostgreSQL": ("main", "postgres", holdfast),
    "asyncpg": ("main", "postgres", raw_asyncpg),
    "SQLiteSession": ("openai", "sqlite", sqlite_session),
    "SQLAlchemySession": ("openai", "sqlite", sqlalchemy_session),
    "SQLAlchemySession, PostgreSQL": ("openai", "postgres", sqlalchemy_session),
    "ADK SqliteSessionService": ("adk", "sqlite", adk_sqlite),
    "ADK DatabaseSessionService": ("adk", "sqlite", adk_database),
    "ADK DatabaseSessionService, PostgreSQL": ("adk", "postgres", adk_database),
}
