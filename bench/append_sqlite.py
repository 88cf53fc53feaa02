"""Benchmark of appends to a SQLite file; each append is durable before it is acknowledged."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

from . import floor
from .case import Case, Environment, Job, Result
from .workload import Append, AsyncAppend, Message, write_each, write_for, write_from_many, write_together

GROUP = "append-sqlite"
NEW_GROUP = "append-new"
SLOW_GROUP = "slow-flush"
SLOW_FLUSH_US = 1_000
MANY = (1, 16, 64)
EACH = {16: 40, 64: 10}
"""Appends per session for 16 and for 64 new sessions, 640 in total."""
TENANT = "bench"
TOGETHER = "apsw in one commit for all"
"""The floor: the same rows, with one commit for all writers, without waiting for callers or returning results."""

_PEERS: dict[str, Environment] = {
    "SQLiteSession": "openai",
    "SQLAlchemySession": "openai",
    "ADK SqliteSessionService": "adk",
    "ADK DatabaseSessionService": "adk",
}


def cases() -> list[Case]:
    """Return all contenders on this disk, and the fastest ones on a slower disk."""
    ours = [Case(GROUP, "Holdfast", params={"writers": writers}) for writers in MANY]
    alone = [Case(GROUP, name, params={"writers": 1}) for name in SYNC]
    together = [Case(GROUP, TOGETHER, params={"writers": writers}) for writers in MANY[1:]]
    peers = [Case(GROUP, name, env, params={"writers": writers}) for name, env in _PEERS.items() for writers in MANY]
    return [*floor.cases(GROUP), *alone, *together, *ours, *peers, *_new_session_cases(), *_slow_cases()]


def _new_session_cases() -> list[Case]:
    both: dict[str, Environment] = {"Holdfast": "main", "SQLiteSession": "openai"}
    return [
        Case(NEW_GROUP, name, environment, params={"writers": writers, "each": item})
        for name, environment in both.items()
        for writers, item in EACH.items()
    ]


def _slow_cases() -> list[Case]:
    def slow(name: str, writers: int, environment: Environment = "main") -> Case:
        return Case(SLOW_GROUP, name, environment, params={"writers": writers}, flush_delay_us=SLOW_FLUSH_US)

    ours = [slow("Holdfast", writers) for writers in MANY]
    return [slow("apsw", 1), slow(TOGETHER, 64), *ours, *(slow("SQLiteSession", writers, "openai") for writers in MANY)]


def run(job: Job) -> Result:
    """Append for the given time, then verify that every acknowledged message is stored."""
    if job.contender == "fdatasync":
        return floor.run(job)
    path = str(Path(job.place) / "agents.db")
    writers = job.params["writers"]
    if job.contender in SYNC:
        with SYNC[job.contender](path) as append:
            result = write_for(job.seconds, append)
    elif job.contender == TOGETHER:
        result = asyncio.run(_run_together(path, writers, job.seconds))
    else:
        result = asyncio.run(_run_async(ASYNC[job.contender], path, writers, job))
    saved = stored_in(path)
    if saved != result["appended"]:
        raise RuntimeError(f"{result['appended']} messages were acknowledged, but {saved} are stored")
    return result


async def _run_async(open_contender: AsyncContender, path: str, writers: int, job: Job) -> Result:
    async with open_contender(path, writers) as append:
        if "each" in job.params:
            return await write_each(job.params["each"], append, writers)
        return await write_from_many(job.seconds, append, writers)


def stored_in(path: str) -> int:
    """Return the number of messages in a file."""
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    table = next(name for name in ("messages", "agent_messages", "events") if name in tables)
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


@contextmanager
def raw_apsw(path: str) -> Iterator[Append]:
    """Write Holdfast's rows by hand with apsw, the driver that Holdfast uses."""
    import apsw

    from .rows import by_hand

    (session,) = _empty_sessions(path)
    connection = apsw.Connection(path)
    yield by_hand(connection.execute, TENANT, session)
    connection.close()


async def _run_together(path: str, writers: int, seconds: float) -> Result:
    import apsw

    from .rows import by_hand_together

    sessions = _empty_sessions(path, writers)
    connection = apsw.Connection(path)
    append = by_hand_together(connection.execute, TENANT, sessions)

    async def append_together(messages: Sequence[Message]) -> None:
        append(messages)

    result = await write_together(seconds, append_together, writers)
    connection.close()
    return result


@contextmanager
def raw_sqlite3(path: str) -> Iterator[Append]:
    """Write Holdfast's rows by hand with the standard library's sqlite3."""
    from .rows import by_hand

    (session,) = _empty_sessions(path)
    connection = sqlite3.connect(path, isolation_level=None)
    yield by_hand(connection.execute, TENANT, session)
    connection.close()


@contextmanager
def holdfast_sync(path: str) -> Iterator[Append]:
    from holdfast import Holdfast

    with Holdfast(path) as hf:
        tenant = hf.tenant(TENANT)
        session, append = tenant.sessions.create().id, tenant.messages.append
        yield lambda _, message: append(session, role=message["role"], content=message["content"])


def _empty_sessions(path: str, count: int = 1) -> list[str]:
    """Create a file with Holdfast's schema and empty sessions; return the session ids."""
    from holdfast import Holdfast

    with Holdfast(path) as hf:
        return [hf.tenant(TENANT).sessions.create().id for _ in range(count)]


@asynccontextmanager
async def holdfast(path: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from holdfast import AsyncHoldfast

    async with AsyncHoldfast(path) as hf:
        tenant = hf.tenant(TENANT)
        sessions = [(await tenant.sessions.create()).id for _ in range(writers)]
        append = tenant.messages.append
        yield lambda writer, message: append(sessions[writer], role=message["role"], content=message["content"])


@asynccontextmanager
async def sqlite_session(path: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from agents.memory import SQLiteSession

    sessions = [SQLiteSession(f"session-{writer}", path) for writer in range(writers)]
    yield lambda writer, message: sessions[writer].add_items([message])
    for session in sessions:
        session.close()


@asynccontextmanager
async def sqlalchemy_session(path: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from .peers import sqlalchemy_sessions

    async with sqlalchemy_sessions(f"sqlite+aiosqlite:///{path}", writers) as sessions:
        yield lambda writer, message: sessions[writer].add_items([message])


@asynccontextmanager
async def adk_sqlite(path: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    from .peers import adk_append

    yield await adk_append(SqliteSessionService(path), writers)


@asynccontextmanager
async def adk_database(path: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from google.adk.sessions import DatabaseSessionService

    from .peers import adk_append

    async with DatabaseSessionService(f"sqlite+aiosqlite:///{path}") as service:
        yield await adk_append(service, writers)


SyncContender = Callable[[str], AbstractContextManager[Append]]
AsyncContender = Callable[[str, int], AbstractAsyncContextManager[AsyncAppend]]

SYNC: dict[str, SyncContender] = {
    "apsw": raw_apsw,
    "sqlite3": raw_sqlite3,
    "Holdfast, sync": holdfast_sync,
}
ASYNC: dict[str, AsyncContender] = {
    "Holdfast": holdfast,
    "SQLiteSession": sqlite_session,
    "SQLAlchemySession": sqlalchemy_session,
    "ADK SqliteSessionService": adk_sqlite,
    "ADK DatabaseSessionService": adk_database,
}
