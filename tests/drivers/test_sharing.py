"""Concurrent callers: separate transactions on one database, and threads or tasks that share one connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import aiosqlite
import apsw
import psycopg
import pytest

from holdfast import AsyncHoldfast, Holdfast
from holdfast.drivers.psycopg import MAX_REUSED_ROWS, PsycopgConnection
from holdfast.errors import AlreadyExists, SchemaMismatch
from tests.drivers.callers import LEGS, Leg, done, joined, leg

WRITERS, EACH = 5, 4
ASYNCHRONOUS = [
    pytest.param(item, id=item.name) for item in LEGS if item.asynchronous and "SQLAlchemy" not in item.name
]


def _texts(history: Any) -> list[str]:
    return [message.content[0]["text"] for message in history]


@pytest.mark.parametrize("leg", [pytest.param(item, id=item.name) for item in LEGS if item.engine == "postgres"])
def test_concurrent_transactions_get_distinct_positions(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    """Each writer appends to one session in a transaction of its own; half of them roll back."""

    async def one(stage: Any, session_id: str, writer: int) -> None:
        for turn in range(EACH):
            async with leg.connect(stage.url) as caller:
                await caller.begin()
                text = f"{writer}.{turn}"
                await done(stage.tenant().join(caller.raw).messages.append(session_id, role="user", content=text))
                await (caller.rollback() if (writer + turn) % 2 else caller.commit())

    async def run() -> None:
        async with open_stage(leg) as stage:
            session = await done(stage.tenant().sessions.create(key="k"))
            if leg.asynchronous:
                await asyncio.gather(*(one(stage, session.id, writer) for writer in range(WRITERS)))
            else:
                with ThreadPoolExecutor(WRITERS) as threads:
                    list(threads.map(lambda writer: asyncio.run(one(stage, session.id, writer)), range(WRITERS)))
            history = await done(stage.tenant().messages.list(session.id))
            kept = {f"{writer}.{turn}" for writer in range(WRITERS) for turn in range(EACH) if not (writer + turn) % 2}
            assert sorted(_texts(history)) == sorted(kept)
            assert [message.seq for message in history] == list(range(1, len(kept) + 1))

    asyncio.run(run())


@pytest.mark.parametrize("level", ["", "IMMEDIATE", "EXCLUSIVE", None])
def test_concurrent_sqlite_connections_get_distinct_positions(level: str | None, sqlite_path: str) -> None:
    def one(writer: int) -> None:
        caller = sqlite3.connect(sqlite_path, isolation_level=level, timeout=30)  # type: ignore[arg-type]
        acme = hf.tenant("acme").join(caller)
        for turn in range(EACH):
            acme.messages.append(session.id, role="user", content=f"{writer}.{turn}")
            caller.commit()
        caller.close()

    with Holdfast(":memory:") as hf:
        first = sqlite3.connect(sqlite_path)
        session = hf.tenant("acme").join(first).sessions.create(key="k")
        first.commit()
        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(one, range(WRITERS)))
        history = hf.tenant("acme").join(first).messages.list(session.id)
        first.close()
    assert sorted(_texts(history)) == sorted(f"{writer}.{turn}" for writer in range(WRITERS) for turn in range(EACH))
    assert [message.seq for message in history] == list(range(1, WRITERS * EACH + 1))


@contextmanager
def _shared_by_threads(kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[Any, str]]:
    """Return a connection that several threads may use, and the statement that begins a transaction on it."""
    if kind == "psycopg":
        with psycopg.connect(request.getfixturevalue("postgres_with_table")) as raw:
            yield raw, "SELECT 1"
        return
    path = request.getfixturevalue("sqlite_path")
    raw = apsw.Connection(path) if kind == "apsw" else sqlite3.connect(path, check_same_thread=False)
    yield raw, "BEGIN IMMEDIATE"
    raw.close()


@pytest.mark.parametrize("kind", ["sqlite3", "apsw", "psycopg"])
def test_threads_that_share_a_connection_take_turns(kind: str, request: pytest.FixtureRequest) -> None:
    """Each thread uses its own handle in one transaction; a failed call undoes only its own writes."""
    url = ":memory:" if kind != "psycopg" else request.getfixturevalue("postgres_with_table")
    with Holdfast(url) as hf, _shared_by_threads(kind, request) as (raw, begin):
        raw.execute(begin)
        session = hf.tenant("acme").join(raw).sessions.create(key="k")
        start = threading.Barrier(WRITERS)

        def one(writer: int) -> None:
            acme = hf.tenant("acme").join(raw)
            start.wait()
            for turn in range(EACH):
                acme.messages.append(session.id, role="user", content=f"{writer}.{turn}")
                with pytest.raises(AlreadyExists):
                    acme.sessions.create(key="k")

        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(one, range(WRITERS)))
        history = hf.tenant("acme").join(raw).messages.list(session.id)
        assert [message.seq for message in history] == list(range(1, WRITERS * EACH + 1))
        raw.execute("COMMIT")


@pytest.mark.parametrize("leg", ASYNCHRONOUS)
def test_tasks_that_share_a_connection_take_turns(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    """Concurrent reads, writes and failures on one connection succeed or fail as they would alone."""

    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            await caller.begin()
            session = await stage.tenant().join(caller.raw).sessions.create(key="k")

            async def one(writer: int) -> None:
                acme = stage.tenant().join(caller.raw)
                for turn in range(EACH):
                    await acme.messages.append(session.id, role="user", content=f"{writer}.{turn}")
                    with pytest.raises(AlreadyExists):
                        await acme.sessions.create(key="k")
                    assert (await acme.sessions.get(session.id)).key == "k"

            await asyncio.gather(*(one(writer) for writer in range(WRITERS)))
            await caller.commit()
            history = await stage.tenant().messages.list(session.id)
            assert [message.seq for message in history] == list(range(1, WRITERS * EACH + 1))

    asyncio.run(run())


@pytest.mark.parametrize("leg", ASYNCHRONOUS)
@pytest.mark.parametrize("inside", [True, False], ids=["in a transaction", "outside one"])
def test_a_task_cancelled_at_any_moment_leaves_the_connection_usable(
    leg: Leg, inside: bool, open_stage: Callable[[Leg], Any]
) -> None:
    """The task is cancelled after each number of steps of the event loop; its calls are complete or absent."""

    async def run() -> None:
        async with open_stage(leg) as stage:
            session, caller, acme = await joined(stage, inside=inside)
            for steps in range(1, 40):
                await _cut(acme.messages.append(session.id, role="user", content="cut"), steps)
            last = await acme.messages.append(session.id, role="user", content="last")
            if inside or caller.needs_transaction:
                await caller.commit()
            # Every write acknowledged since is visible to others: no transaction was left open.
            session = await stage.tenant().sessions.get(session.id)
            history = await stage.tenant().messages.list(session.id)
            assert session.message_count == len(history) == last.seq
            assert [message.seq for message in history] == list(range(1, last.seq + 1))
            assert await caller.labels() == (["before"] if inside else [])

    asyncio.run(run())


async def _cut(call: Any, steps: int) -> None:
    """Start a call and cancel it after a number of steps of the loop."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    await asyncio.wait([task])


def test_the_connection_lock_is_released_with_its_handles(sqlite_path: str) -> None:
    from holdfast.drivers import connection_lock

    caller = sqlite3.connect(sqlite_path)
    with Holdfast(":memory:") as hf:
        handles = [hf.tenant(name).join(caller) for name in ("acme", "globex")]
        assert connection_lock.for_threads(caller) is handles[0]._engine._lock is handles[1]._engine._lock  # type: ignore[attr-defined]
        del handles
        assert id(caller) not in connection_lock._thread_locks
    caller.close()


def test_a_cancelled_task_leaves_no_transaction_open_on_aiosqlite(sqlite_path: str) -> None:
    async def run() -> None:
        async with AsyncHoldfast(":memory:") as hf, aiosqlite.connect(sqlite_path, isolation_level=None) as caller:
            acme = hf.tenant("acme").join(caller)
            for steps in range(1, 30):
                await _cut(acme.sessions.create(key=f"k{steps}"), steps)
                await caller.execute("SELECT 1")  # whatever was queued before this is done by now
                assert not caller.in_transaction

    asyncio.run(run())


def test_every_named_leg_exists() -> None:
    assert {param.values[0].name for param in ASYNCHRONOUS} >= {"aiosqlite", "asyncpg", "psycopg async"}  # type: ignore[attr-defined]
    assert leg("psycopg").engine == "postgres"


def test_a_cursor_is_reused_but_keeps_no_large_result(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        connection = PsycopgConnection(raw)
        assert connection.execute("SELECT 1") == [(1,)]
        first = connection._cursor
        assert connection.execute("SELECT $1::int + 1", (2,)) == [(3,)]
        assert connection._cursor is first
        with pytest.raises(SchemaMismatch):
            connection.execute("SELECT nothing")
        assert len(connection.execute("SELECT generate_series(1, $1)", (MAX_REUSED_ROWS,))) == MAX_REUSED_ROWS
        assert connection._cursor is first
        assert len(connection.execute("SELECT generate_series(1, $1)", (MAX_REUSED_ROWS + 1,))) == MAX_REUSED_ROWS + 1
        assert connection._cursor is None
        assert connection.execute("SELECT 1") == [(1,)]
