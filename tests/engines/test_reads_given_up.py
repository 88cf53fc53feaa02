"""Long reads: they do not stall the event loop, and they stop when their caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import AsyncHoldfast, PoolOptions
from holdfast.engines.offload import Heavy, Progress, compute
from holdfast.engines.sqlite.asynchronous import READERS

ENDLESS = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c"
LONG = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 2000000) SELECT COUNT(*) FROM c"
STALL_S = 30
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

        reads = [asyncio.ensure_future(hf._engine.read(Heavy(endless))) for _ in range(2 * READERS)]
        for _ in range(READERS):
            assert await asyncio.to_thread(started.acquire, timeout=STALL_S), "every reading thread is busy"
        for each in reads:
            each.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        read = hf._engine.read(Heavy(lambda connection: connection.fetch("SELECT 7", ())))
        assert await asyncio.wait_for(read, STALL_S) == [(7,)]
        assert not started.acquire(blocking=False), "what was cancelled while it waited never ran"


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
@in_event_loop
async def test_a_read_that_takes_long_leaves_the_event_loop(tmp_path: Path, library: Any) -> None:
    async with AsyncHoldfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        threads: list[int] = []

        async def long(connection: Any) -> Any:
            threads.append(threading.get_ident())
            return await connection.fetch(LONG, ())

        assert await hf._engine.read(long) == [(2_000_000,)]
        assert threads[0] == threading.get_ident()
        assert threads[-1] != threading.get_ident()
        assert await hf._engine.read(lambda connection: connection.fetch("SELECT 7", ())) == [(7,)]


@in_event_loop
async def test_a_cancelled_read_on_postgres_stops_on_the_server(postgres_url: str) -> None:
    pool = PoolOptions(min_connections=1, max_connections=2)
    async with AsyncHoldfast(postgres_url, pool=pool) as hf:
        read = asyncio.ensure_future(hf._engine.read(lambda connection: connection.fetch("SELECT pg_sleep(600)", ())))
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:

            async def until(sleeping: int) -> None:
                wanted = (
                    "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(600)'"
                )
                while await (await connection.execute(wanted)).fetchone() != (sleeping,):
                    pass

            await asyncio.wait_for(until(1), STALL_S)
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
            await asyncio.wait_for(until(0), STALL_S)
        assert await hf._engine.read(lambda connection: connection.fetch("SELECT 7", ())) == [(7,)]


@in_event_loop
async def test_a_cancelled_computation_stops_at_its_next_check(tmp_path: Path) -> None:
    started, stopped = threading.Event(), threading.Event()

    def endless(progress: Progress) -> None:
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
