"""Events that request an erasure are read, recorded once and carried out despite interruptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast import AsyncHoldfast
from holdfast.erasure import ErasureConsumer, ErasureRequest, read_event
from holdfast.errors import Closed, InvalidInput, NotFound
from holdfast.types import Erasure
from tests.errors import raises
from tests.stores.lifecycle.conftest import Lines

EVENT = "identity.user.erased"
STREAM = "koder:events:id"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ENTRY = f"{int(AT.timestamp() * 1000)}-7"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": EVENT, "koder_user_id": "u1"}, ErasureRequest("u1", ENTRY, AT)),
        ({"event": EVENT, "tenant": "u1", "event_id": "e9"}, ErasureRequest("u1", "e9", AT)),
        ({"event_type": EVENT, "data": '{"user_id": "u1", "id": "e9"}'}, ErasureRequest("u1", "e9", AT)),
        ({"payload": f'{{"type": "{EVENT}", "koder_user_id": "u1"}}'}, ErasureRequest("u1", ENTRY, AT)),
        ({"type": EVENT, "tenant": "a", "data": '{"tenant": "b"}'}, ErasureRequest("a", ENTRY, AT)),
        ({"type": EVENT, "tenant": "a", "data": "[1"}, ErasureRequest("a", ENTRY, AT)),
        ({"type": "identity.user.created", "koder_user_id": "u1"}, None),
        ({"data": "[]", "payload": "7"}, None),
        ({}, None),
    ],
)
def test_an_event_is_read_in_every_format(fields: dict[str, str], expected: ErasureRequest | None) -> None:
    assert read_event(ENTRY, fields, EVENT) == expected


@pytest.mark.parametrize("fields", [{}, {"tenant": ""}, {"data": '{"tenant": 7}'}, {"data": '{"tenant": ["x"]}'}])
def test_an_event_without_a_subject_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=EVENT):
        read_event(ENTRY, {"type": EVENT, **fields}, EVENT)


@pytest.mark.parametrize("entry", ["", "x-1", "-1", "99999999999999999-0", "٣-0"])
def test_an_entry_without_a_time_is_requested_now(entry: str) -> None:
    assert read_event(entry, {"type": EVENT, "tenant": "a"}, EVENT) == ErasureRequest("a", entry, None)


Use = Callable[[AsyncHoldfast], Awaitable[Any]]


def within(tmp_path: Path, use: Use) -> Any:
    async def run() -> Any:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            return await use(holdfast)

    return asyncio.run(run())


def publish(url: str, **fields: str) -> str:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return str(client.xadd(STREAM, {"type": EVENT, **fields}))


def pending(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.xpending(STREAM, "holdfast")["pending"])


def test_events_of_a_dead_consumer_are_taken_over_and_carried_out_once(tmp_path: Path, redis_url: str) -> None:
    publish(redis_url, tenant="acme", event_id="e1")
    publish(redis_url, tenant="acme", event_id="e1")

    async def die(holdfast: AsyncHoldfast) -> None:
        """Read, and die before anything is recorded."""
        await holdfast.tenant("acme").sessions.create()
        consumer = ErasureConsumer(holdfast, redis_url, consumer="the dead")
        await consumer._ensure_group()
        await consumer._redis.xreadgroup("holdfast", "the dead", {STREAM: ">"}, count=10)
        await consumer.close()

    async def come(holdfast: AsyncHoldfast, idle_ms: int) -> tuple[int, list[Erasure]]:
        consumer = ErasureConsumer(holdfast, redis_url, idle_ms=idle_ms)
        handled = await consumer.once()
        await consumer.close()
        return handled, list(await holdfast.erasures.list())

    within(tmp_path, die)
    assert pending(redis_url) == 2
    assert within(tmp_path, lambda holdfast: come(holdfast, 10**9)) == (0, []), (
        "entries of a consumer that may be alive are left"
    )
    handled, (erasure,) = within(tmp_path, lambda holdfast: come(holdfast, 0))
    assert (handled, pending(redis_url)) == (2, 0)
    assert (erasure.tenant, erasure.event_id) == ("acme", "e1")
    assert erasure.finished_at is not None

    async def again(holdfast: AsyncHoldfast) -> None:
        """Send the same event again after the name is in use again: the erasure is finished, and stays finished."""
        kept = await holdfast.tenant("acme").sessions.create()
        publish(redis_url, tenant="acme", event_id="e1")
        assert await come(holdfast, 0) == (1, [erasure])
        assert await holdfast.tenant("acme").sessions.get(kept.id) == kept
        with raises(NotFound, noun="erasure", key="acme"):
            await holdfast.erasures.carry_out("acme")

    within(tmp_path, again)


def test_unreadable_events_are_acknowledged_and_unrecorded_ones_are_not(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(redis_url, data="absent")
    publish(redis_url, tenant="x" * 1_000)
    publish(redis_url, tenant="acme")

    async def use(holdfast: AsyncHoldfast) -> None:
        consumer = ErasureConsumer(holdfast, redis_url, idle_ms=0)
        await holdfast.close()
        with pytest.raises(Closed):
            await consumer.once()
        await consumer.close()

    within(tmp_path, use)
    assert pending(redis_url) >= 1, "the database was unavailable"

    async def back(holdfast: AsyncHoldfast) -> list[str]:
        consumer = ErasureConsumer(holdfast, redis_url, idle_ms=0)
        await consumer.once()
        await consumer.close()
        return [erasure.tenant for erasure in await holdfast.erasures.list()]

    assert within(tmp_path, back) == ["acme"]
    assert pending(redis_url) == 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) >= 2
    assert {record.name for record in errors} == {"holdfast.erasure"}


def test_open_erasures_are_carried_out_while_redis_is_down(tmp_path: Path) -> None:
    async def use(holdfast: AsyncHoldfast) -> None:
        await holdfast.tenant("acme").sessions.create()
        await holdfast.erasures.request("acme", requested_at=AT)
        consumer = ErasureConsumer(holdfast, "redis://127.0.0.1:1/0")
        with pytest.raises(redis.RedisError):
            await consumer.once()
        await consumer.close()
        assert await holdfast.tenants.list() == []

    within(tmp_path, use)


def test_without_an_address_open_erasures_are_carried_out(tmp_path: Path, lines: Lines) -> None:
    async def use(holdfast: AsyncHoldfast) -> None:
        await holdfast.tenant("acme").sessions.create()
        asked = await holdfast.erasures.request("acme", requested_at=AT)
        assert (asked.due_at, asked.is_whole) == (AT + timedelta(days=1), True)
        for nowhere in (None, ""):
            consumer = ErasureConsumer(holdfast, nowhere)
            await asyncio.wait_for(consumer.work(), 60)
            assert await consumer.once() == 0
            await consumer.close()
        assert await holdfast.tenants.list() == []
        assert [erasure.tenant for erasure in await holdfast.erasures.list(only_open=True)] == []
        assert len(await holdfast.erasures.list(limit=5)) == 1

    within(tmp_path, use)
    with raises(InvalidInput, field="url"):
        ErasureConsumer(None, "nowhere")  # type: ignore[arg-type]


def test_a_consumer_works_until_it_is_stopped(tmp_path: Path, redis_url: str) -> None:
    async def use(holdfast: AsyncHoldfast) -> None:
        await holdfast.tenant("acme").sessions.create()
        consumer = ErasureConsumer(holdfast, redis_url, block_ms=10)
        task = asyncio.ensure_future(consumer.work())
        publish(redis_url, tenant="acme")
        while not await holdfast.erasures.list() or await holdfast.erasures.list(only_open=True):  # noqa: ASYNC110
            await asyncio.sleep(0)
        consumer.stop()
        await asyncio.wait_for(task, 60)
        assert await holdfast.tenants.list() == []

    within(tmp_path, use)


def test_requests_are_listed_page_by_page_the_most_urgent_first(tmp_path: Path) -> None:
    async def use(holdfast: AsyncHoldfast) -> None:
        for number in (2, 0, 1):
            await holdfast.erasures.request(f"t{number}", event_id="e", requested_at=AT + timedelta(hours=number))
        result, cursor = [], None
        while not result or cursor is not None:
            page = await holdfast.erasures.list(limit=1, cursor=cursor)
            result += [erasure.tenant for erasure in page]
            cursor = page.next
        assert result == ["t0", "t1", "t2"]
        for wrong in ({"event_id": ""}, {"requested_at": datetime(2026, 1, 1)}, {"whole": 1}):  # noqa: DTZ001
            with pytest.raises(InvalidInput):
                await holdfast.erasures.request("x", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await holdfast.erasures.request("")

    within(tmp_path, use)
