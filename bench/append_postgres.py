"""Benchmark of appends to PostgreSQL; each append is durable before it is acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from .case import Case, Environment, Job, Result
from .workload import AsyncAppend, Message, write_from_many, write_together

GROUP = "append-postgres"
MANY = (1, 16, 64)
MAX_POOL = 16
TENANT = "bench"

# An append by hand: update the session and insert the message in one statement, and so in one transaction.
_APPEND = """
WITH head AS (
    UPDATE sessions SET next_seq = next_seq + 1, message_count = message_count + 1, updated_at = $3, updated_minute = $4
    WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL
    RETURNING id, next_seq - 1 AS seq
)
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT $1, head.id, head.seq, $5, 'message', $6, $7, 0, '{}', FALSE, FALSE, $3, $3 FROM head
RETURNING seq
"""

# The same for one message to each of several sessions: the floor of every group commit of these rows.
_APPEND_TOGETHER = """
WITH head AS (
    UPDATE sessions SET next_seq = next_seq + 1, message_count = message_count + 1, updated_at = $3, updated_minute = $4
    WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL
    RETURNING id, next_seq - 1 AS seq
)
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT $1, head.id, head.seq, i.id, 'message', i.role, i.content, 0, '{}', FALSE, FALSE, $3, $3
FROM unnest($2::uuid[], $5::uuid[], $6::text[], $7::jsonb[]) AS i (session_id, id, role, content)
JOIN head ON head.id = i.session_id
RETURNING seq
"""
TOGETHER = "asyncpg in one statement for all"


def cases() -> list[Case]:
    """Return all contenders; a single connection has only one writer."""
    collected = []
    for name, (environment, _) in CONTENDERS.items():
        for writers in (1,) if "connection" in name else MANY:
            collected.append(Case(GROUP, name, environment, "postgres", {"writers": writers}))
    return [
        *collected,
        *(Case(GROUP, TOGETHER, engine="postgres", params={"writers": writers}) for writers in MANY[1:]),
    ]


def run(job: Job) -> Result:
    """Append for the given time, then verify that every acknowledged message is stored."""
    return asyncio.run(_run(job))


async def _run(job: Job) -> Result:
    writers = job.params["writers"]
    if job.contender == TOGETHER:
        result = await _write_together(job.place, writers, job.seconds)
    else:
        async with CONTENDERS[job.contender][1](job.place, writers) as append:
            result = await write_from_many(job.seconds, append, writers)
    saved = await stored_in(job.place)
    if saved != result["appended"]:
        raise RuntimeError(f"{result['appended']} messages were acknowledged, but {saved} are stored")
    return result


async def stored_in(url: str) -> int:
    """Return the number of messages in a database."""
    import asyncpg

    connection = await asyncpg.connect(url)
    tables = {row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    table = next(name for name in ("messages", "agent_messages", "events") if name in tables)
    count: int = await connection.fetchval(f"SELECT count(*) FROM {table}")
    await connection.close()
    return count


@asynccontextmanager
async def holdfast(url: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from holdfast import AsyncHoldfast

    async with AsyncHoldfast(url, auto_migrate=True) as hf:
        tenant = hf.tenant(TENANT)
        sessions = [(await tenant.sessions.create()).id for _ in range(writers)]
        append = tenant.messages.append
        yield lambda writer, message: append(sessions[writer], role=message["role"], content=message["content"])


async def _empty_sessions(url: str, count: int) -> list[str]:
    """Create Holdfast's schema and empty sessions; return the session ids."""
    from holdfast import AsyncHoldfast

    async with AsyncHoldfast(url, auto_migrate=True) as hf:
        return [(await hf.tenant(TENANT).sessions.create()).id for _ in range(count)]


def _arguments(session: str, message: Message) -> tuple[Any, ...]:
    from .rows import content, new_id

    now = time.time_ns() // 1_000
    at = datetime.fromtimestamp(now / 1e6, UTC)
    return (TENANT, session, at, now // 60_000_000, new_id(), message["role"], content(message))


@asynccontextmanager
async def asyncpg_connection(url: str, writers: int) -> AsyncIterator[AsyncAppend]:
    import asyncpg

    sessions = await _empty_sessions(url, writers)
    connection = await asyncpg.connect(url)
    yield lambda writer, message: connection.fetchval(_APPEND, *_arguments(sessions[writer], message))
    await connection.close()


async def _write_together(url: str, writers: int, seconds: float) -> Result:
    import asyncpg

    sessions = await _empty_sessions(url, writers)
    connection = await asyncpg.connect(url)

    async def append(messages: Sequence[Message]) -> None:
        item = [_arguments(session, message) for session, message in zip(sessions, messages, strict=True)]
        _, _, at, minute, *_ = item[-1]
        _, _, _, _, ids, roles, contents = zip(*item, strict=True)
        await connection.fetch(_APPEND_TOGETHER, TENANT, sessions, at, minute, ids, roles, contents)

    result = await write_together(seconds, append, writers)
    await connection.close()
    return result


@asynccontextmanager
async def asyncpg_pool(url: str, writers: int) -> AsyncIterator[AsyncAppend]:
    import asyncpg

    sessions, size = await _empty_sessions(url, writers), min(writers, MAX_POOL)
    async with asyncpg.create_pool(url, min_size=size, max_size=size) as pool:
        yield lambda writer, message: pool.fetchval(_APPEND, *_arguments(sessions[writer], message))


@asynccontextmanager
async def psycopg_pool(url: str, writers: int) -> AsyncIterator[AsyncAppend]:
    import psycopg
    from psycopg_pool import AsyncConnectionPool

    sessions, size = await _empty_sessions(url, writers), min(writers, MAX_POOL)

    async def prepare(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.set_autocommit(True)
        connection.prepare_threshold = 0

    async def append(writer: int, message: Message) -> None:
        async with pool.connection() as connection:
            # This cursor class accepts numbered placeholders.
            cursor = psycopg.AsyncRawCursor(connection)
            await cursor.execute(_APPEND, _arguments(sessions[writer], message), binary=True)
            await cursor.fetchone()

    async with AsyncConnectionPool(url, min_size=size, max_size=size, configure=prepare) as pool:
        yield append


@asynccontextmanager
async def sqlalchemy_session(url: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from .peers import sqlalchemy_sessions, sqlalchemy_url

    async with sqlalchemy_sessions(sqlalchemy_url(url), writers) as sessions:
        yield lambda writer, message: sessions[writer].add_items([message])


@asynccontextmanager
async def adk_database(url: str, writers: int) -> AsyncIterator[AsyncAppend]:
    from google.adk.sessions import DatabaseSessionService

    from .peers import adk_append, sqlalchemy_url

    async with DatabaseSessionService(sqlalchemy_url(url)) as service:
        yield await adk_append(service, writers)


Contender = Callable[[str, int], AbstractAsyncContextManager[AsyncAppend]]

CONTENDERS: dict[str, tuple[Environment, Contender]] = {
    "Holdfast": ("main", holdfast),
    "asyncpg connection": ("main", asyncpg_connection),
    "asyncpg pool": ("main", asyncpg_pool),
    "psycopg pool": ("main", psycopg_pool),
    "SQLAlchemySession": ("openai", sqlalchemy_session),
    "ADK DatabaseSessionService": ("adk", adk_database),
}
