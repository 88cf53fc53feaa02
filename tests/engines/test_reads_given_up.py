"""Long reads do not block the event loop, and stop when their caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import AsyncHoldfast, NewMessage, PoolOptions
from holdfast.core import text
from holdfast.engines.heavy_calls import Cancellation, HeavyCall, compute
from holdfast.engines.sqlite import engine_async
from holdfast.engines.sqlite.engine_async import READERS
from holdfast.stores.conversation import deleted_messages
from holdfast.stores.conversation.message_log import HEAVY_CHARS

ENDLESS = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c"
LONG = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 2000000) SELECT COUNT(*) FROM c"
STALL_S = 60
"""A cap against a hang, not a measurement."""


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
@in_event_loop
async def test_cancelled_reads_on_sqlite_stop_and_free_their_threads(tmp_path: Path, library: Any) -> None:
    async with AsyncHoldfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        started = threading.Semaphore(0)

        async def endless(connection: Any) -> Any:
            started.release()
            return await connection.fetch(ENDLESS, ())

        reads = [asyncio.ensure_future(hf._engine.read(HeavyCall(endless))) for _ in range(2 * READERS)]
        for _ in range(READERS):
            assert await asyncio.to_thread(started.acquire, timeout=STALL_S), "every reading thread is busy"
        for item in reads:
            item.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        read = hf._engine.read(HeavyCall(lambda connection: connection.fetch("SELECT 7", ())))
        assert await asyncio.wait_for(read, STALL_S) == [(7,)]
        assert not started.acquire(blocking=False), "a call that was cancelled while it waited never ran"


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
@in_event_loop
async def test_a_long_read_leaves_the_event_loop(tmp_path: Path, library: Any) -> None:
    async with AsyncHoldfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        threads: list[int] = []

        async def long(connection: Any) -> Any:
            threads.append(threading.get_ident())
            return await connection.fetch(LONG, ())

        assert await hf._engine.read(long) == [(2_000_000,)]
        assert threads[0] == threading.get_ident()
        assert threads[-1] != threading.get_ident()
        assert await hf._engine.read(lambda connection: connection.fetch("SELECT 7", ())) == [(7,)]


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
@in_event_loop
async def test_a_read_of_few_large_rows_leaves_the_event_loop_between_them(
    tmp_path: Path, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring a content reads all of it, in one instruction of SQLite's virtual machine."""
    monkeypatch.setattr(engine_async, "INLINE_READ_S", -1.0)
    async with AsyncHoldfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        threads: list[int] = []

        async def measured(connection: Any) -> Any:
            threads.append(threading.get_ident())
            return await connection.fetch(
                "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 20)"
                " SELECT LENGTH(randomblob(n)) FROM c",
                (),
            )

        assert len(await hf._engine.read(measured)) == 20
        assert threads[-1] != threading.get_ident()


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
@in_event_loop
async def test_a_large_result_is_decoded_outside_of_the_event_loop(
    tmp_path: Path, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_async, "WEIGH_AFTER_S", 0.0)
    async with AsyncHoldfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        decoded: list[int] = []

        async def read(connection: Any, size: int) -> Any:
            rows = await connection.fetch("SELECT hex(zeroblob(?1))", (size // 2,))
            decoded.append(threading.get_ident())
            return len(rows[0][0])

        few, many = 1_000, engine_async.INLINE_BYTES + 2
        assert await hf._engine.read(lambda connection: read(connection, few)) == few
        assert decoded == [threading.get_ident()]
        assert await hf._engine.read(lambda connection: read(connection, many)) == many
        assert len(decoded) == 2
        assert decoded[1] != threading.get_ident()


@in_event_loop
async def test_a_large_append_is_encoded_and_written_outside_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = text.dump

    def seen(value: Any, **options: Any) -> str:
        threads.append(threading.get_ident())
        return real(value, **options)

    monkeypatch.setattr(text, "dump", seen)
    async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = await acme.sessions.create()
        for content in ("\ud800" * HEAVY_CHARS, [{"type": "x", "values": [0] * 20_000}]):
            threads.clear()
            made = await acme.messages.append(session.id, role="user", content=content)
            assert threads
            assert threading.get_ident() not in threads
            assert (await acme.messages.get(made.id)).content == made.content
            threads.clear()
            await acme.messages.append_many(session.id, [NewMessage(role="user", content=content)] * 2)
            assert threading.get_ident() not in threads
        threads.clear()
        await acme.messages.append(session.id, role="user", content="small")
        assert set(threads) == {threading.get_ident()}


@in_event_loop
async def test_messages_are_removed_outside_of_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    real = deleted_messages.keep

    async def seen(*args: Any, **options: Any) -> None:
        threads.append(threading.get_ident())
        await real(*args, **options)

    monkeypatch.setattr(deleted_messages, "keep", seen)
    async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = await acme.sessions.create()
        made = await acme.messages.append(session.id, role="user", content="x" * HEAVY_CHARS)
        assert await acme.messages.delete(session.id, [made.id]) == 1
        assert threads
        assert threading.get_ident() not in threads
        assert await acme.messages.restore(session.id, [made.id]) == 1
        assert [*await acme.messages.list(session.id)] == [made]


@in_event_loop
async def test_a_cancelled_read_on_postgres_stops_on_the_server(postgres_url: str) -> None:
    pool = PoolOptions(min_connections=1, max_connections=2)
    async with AsyncHoldfast(postgres_url, pool=pool) as hf:
        read = asyncio.ensure_future(hf._engine.read(lambda connection: connection.fetch("SELECT pg_sleep(600)", ())))
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:

            async def until(sleeping: int) -> None:
                expected = (
                    "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(600)'"
                )
                while await (await connection.execute(expected)).fetchone() != (sleeping,):
                    pass

            await asyncio.wait_for(until(1), STALL_S)
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
            await asyncio.wait_for(until(0), STALL_S)
        assert await hf._engine.read(lambda connection: connection.fetch("SELECT 7", ())) == [(7,)]


@in_event_loop
async def test_a_cancelled_computation_stops_at_its_next_check(tmp_path: Path) -> None:
    started, stopped = threading.Event(), threading.Event()

    def endless(progress: Cancellation) -> None:
        started.set()
        try:
            while True:
                progress.check()
        finally:
            stopped.set()

    async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
        task = asyncio.ensure_future(compute(hf._engine, endless, chars=10**9))
        assert await asyncio.to_thread(started.wait, STALL_S)
        task.cancel()
        assert await asyncio.to_thread(stopped.wait, STALL_S)
        await asyncio.gather(task, return_exceptions=True)
