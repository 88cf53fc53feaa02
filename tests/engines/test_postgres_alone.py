"""A single caller sends its item itself: neither its cancellation nor its failure affects other callers or delays them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

import psycopg
import pytest

from holdfast import AsyncHoldfast, PoolOptions
from holdfast.engines.postgres.pool import AsyncPool
from holdfast.errors import Unavailable
from tests.engines.postgres_handles import SMALL, crowd, soon

LARGE = PoolOptions(min_connections=1, max_connections=10)


@contextmanager
def held(url: str, session_id: str) -> Iterator[None]:
    """Let another transaction lock the session, so that an append to it waits."""
    with psycopg.connect(url) as other:
        other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [session_id])
        yield
        other.rollback()


@asynccontextmanager
async def opened(url: str, pool: PoolOptions = LARGE) -> AsyncIterator[tuple[Any, str, str]]:
    """A tenant and two sessions of it."""
    async with AsyncHoldfast(url, pool=pool) as hf:
        acme = hf.tenant("acme")
        yield acme, (await acme.sessions.create()).id, (await acme.sessions.create()).id


def appending(acme: Any, session_id: str, content: str = "hello") -> asyncio.Task[Any]:
    """An append that is under way."""
    return asyncio.create_task(acme.messages.append(session_id, role="user", content=content))


async def waits(task: asyncio.Task[Any]) -> None:
    """Return whether the task is still waiting after a while."""
    await asyncio.wait([task], timeout=0.3)
    assert not task.done()


async def no_lane_runs(acme: Any) -> None:
    """Wait until no lane is sending: a lane may return its connection after the last answer."""
    await asyncio.gather(*acme.messages._engine._batcher._running)


async def contents(acme: Any, session_id: str) -> list[Any]:
    """The messages of a session."""
    return [message.content[0]["text"] for message in await acme.messages.list(session_id)]


def test_a_single_caller_starts_no_task_and_one_of_many_does(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as (acme, first, second):
            for is_crowded in (False, True):
                if is_crowded:
                    await crowd(acme)
                    await no_lane_runs(acme)
                with held(postgres_url, first):
                    tasks = len(asyncio.all_tasks())
                    append = appending(acme, first)
                    await waits(append)
                    assert len(asyncio.all_tasks()) == tasks + 1 + is_crowded
                await soon(append)
                await no_lane_runs(acme)
            await acme.messages.append(second, role="user", content="alone again")
            await no_lane_runs(acme)
            with held(postgres_url, first):
                tasks = len(asyncio.all_tasks())
                append = appending(acme, first)
                await waits(append)
                assert len(asyncio.all_tasks()) == tasks + 1
            await soon(append)

    asyncio.run(main())


@pytest.mark.parametrize("pool", [LARGE, SMALL], ids=["two lanes", "one lane"])
def test_a_caller_that_joins_a_single_one_waits_no_longer_than_necessary(pool: PoolOptions, postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url, pool) as (acme, first, second):
            with held(postgres_url, first):
                alone = appending(acme, first)
                await waits(alone)
                others = [appending(acme, second, str(number)) for number in range(5)]
                if pool is LARGE:
                    await soon(asyncio.gather(*others))
                    assert not alone.done()
                else:
                    await waits(others[0])
            await soon(asyncio.gather(alone, *others))
            assert sorted(await contents(acme, second)) == ["0", "1", "2", "3", "4"]
            assert await contents(acme, first) == ["hello"]

    asyncio.run(main())


@pytest.mark.parametrize("pool", [LARGE, SMALL], ids=["two lanes", "one lane"])
def test_a_cancelled_caller_does_not_affect_the_others(
    pool: PoolOptions, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(postgres_url, pool) as (acme, first, second):
            for turn in range(1, 4):
                with held(postgres_url, first):
                    alone = appending(acme, first)
                    await waits(alone)
                    others = [appending(acme, second) for _ in range(3)]
                    await asyncio.sleep(0)
                    alone.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await soon(alone)
                    await soon(asyncio.gather(*others))
                assert len(await contents(acme, second)) == 3 * turn
                await acme.messages.append(first, role="user", content="after it")
                await no_lane_runs(acme)
            assert (await contents(acme, first)).count("after it") == 3
            await soon(asyncio.gather(*(appending(acme, first) for _ in range(10))))

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        asyncio.run(main())
    assert not caplog.records, "every future was asked what came of it"


def test_closing_a_handle_waits_for_a_single_caller(postgres_url: str) -> None:
    async def main() -> None:
        hf = AsyncHoldfast(postgres_url)
        async with hf:
            acme = hf.tenant("acme")
            session = (await acme.sessions.create()).id
            with held(postgres_url, session):
                append = appending(acme, session)
                await waits(append)
                closing = asyncio.create_task(hf.close())
                await waits(closing)
            await soon(asyncio.gather(append, closing))
            assert append.result().seq == 1

    asyncio.run(main())


def test_a_failed_connection_is_reported_and_the_next_caller_is_served(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def unhealthy(*_: object) -> bool:
        return False

    async def none(*_: object) -> None:
        raise Unavailable("the server cannot be reached")

    async def main() -> None:
        async with opened(postgres_url) as (acme, first, _):
            for _ in range(3):
                await acme.messages.append(first, role="user", content="before")
                with (
                    mock.patch.object(AsyncPool, "healthy", unhealthy),
                    mock.patch.object(AsyncPool, "take", none),
                    pytest.raises(Unavailable),
                ):
                    await soon(acme.messages.append(first, role="user", content="lost"))
            assert await contents(acme, first) == ["before"] * 3

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        asyncio.run(main())
    assert not caplog.records
