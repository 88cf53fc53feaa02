"""A primary with a synchronous standby: acknowledged writes are on both, and a frozen primary does not block its callers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, PoolOptions
from holdfast.engines.postgres.errors import NoAnswer
from holdfast.engines.postgres.retries import REPLICATED_COMMIT
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ids import RandomIds
from tests.engines.postgres_handles import SMALL, ask_aside, both_styles, opened, soon
from tests.engines.replication import Standby, TcpPostgres, freeze, require_standby, thaw

SOON_S = 60.0
"""A cap against a stall, on however busy a machine."""


@pytest.fixture(scope="module")
def primary() -> Iterator[TcpPostgres]:
    with TcpPostgres() as server:
        Holdfast(server.create_database("agents"), auto_migrate=True, pool=SMALL).close()
        yield server


@pytest.fixture(scope="module")
def standby(primary: TcpPostgres) -> Iterator[Standby]:
    with Standby(primary) as server:
        require_standby(primary)
        yield server


async def waiting_for_standby(watcher: psycopg.Connection[Any]) -> list[int]:
    """Return the processes whose commit waits for the standby."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"
    return [pid for (pid,) in watcher.execute(query)]


async def first_of(task: asyncio.Future[Any], watcher: psycopg.Connection[Any]) -> list[int]:
    """Wait until a commit waits for the standby; return ``None`` if the call ended first."""
    while True:
        waiting = await waiting_for_standby(watcher)
        if waiting or task.done():
            return waiting
        await asyncio.sleep(0.01)


@both_styles
@pytest.mark.parametrize("what", ["append", "create"])
def test_a_repeated_id_is_not_acknowledged_while_the_standby_lacks_the_row(
    style: str, what: str, primary: TcpPostgres, standby: Standby
) -> None:
    """The first commit was waiting for the standby when its connection ended: the row is on the primary, and only there."""

    async def main() -> None:
        async with opened(style, primary.url("agents")) as hf:
            acme = hf.tenant("acme")
            session = await soon(ask_aside(style, acme.sessions.create), SOON_S)
            name = RandomIds().new()
            calls: dict[str, Callable[[], Any]] = {
                "append": lambda: acme.messages.append(session.id, role="user", content="x", id=name),
                "create": lambda: acme.sessions.create(id=name),
            }
            with psycopg.connect(primary.url("agents"), autocommit=True) as watcher:
                await asyncio.to_thread(standby.stop)
                try:
                    first = asyncio.ensure_future(outcome_aside(style, calls[what]))
                    waiting = await soon(first_of(first, watcher), SOON_S)
                    assert waiting, f"the first call did not wait for the standby: {first}"
                    watcher.execute("SELECT pg_terminate_backend(pid, 30000) FROM unnest(%s::int[]) AS pid", [waiting])
                    assert isinstance(await soon(first, SOON_S), OutcomeUnknown)
                    again = asyncio.ensure_future(outcome_aside(style, calls[what]))
                    assert await soon(first_of(again, watcher), SOON_S), "it was acknowledged without the standby"
                    assert not again.done()
                finally:
                    await asyncio.to_thread(standby.start)
                answer = await soon(again, SOON_S)
            assert not isinstance(answer, HoldfastError), repr(answer)
            with psycopg.connect(standby.url("agents"), autocommit=True) as copy:
                existing = {
                    "append": "SELECT count(*) FROM messages WHERE id = %s",
                    "create": "SELECT count(*) FROM sessions WHERE id = %s",
                }[what]
                assert copy.execute(existing.encode(), [name]).fetchone() == (1,)

    asyncio.run(main())


async def outcome_aside(style: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call or its error, without blocking the loop."""
    try:
        return await ask_aside(style, call)
    except HoldfastError as error:
        return error


async def patiently(style: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call, repeated as often as a busy machine misses the deadline."""

    async def answered() -> Any:
        while True:
            answer = await outcome_aside(style, call)
            if not isinstance(answer, (Unavailable, OutcomeUnknown)):
                return answer
            await asyncio.sleep(0.01)

    answer = await soon(answered(), SOON_S)
    assert not isinstance(answer, HoldfastError), repr(answer)
    return answer


async def open_patiently(stack: AsyncExitStack, style: str, url: str, pool: PoolOptions) -> Any:
    """Open a handle, repeatedly if a busy machine misses the connect timeout."""
    while True:
        try:
            return await stack.enter_async_context(opened(style, url, pool=pool))
        except Unavailable:
            await asyncio.sleep(0.01)


def test_a_read_only_transaction_without_a_synchronous_standby_writes_no_wal(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(REPLICATED_COMMIT.partition(";")[0].encode()).fetchall() == []
        assert connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)


@both_styles
def test_a_frozen_primary_blocks_no_caller_and_a_promoted_standby_takes_over_on_the_same_handle(style: str) -> None:
    """A frozen server closes no connection and accepts new ones without a response, so that only deadlines help."""
    pool = PoolOptions(min_connections=1, max_connections=4, connect_timeout_s=10.0, statement_deadline_s=1.0)

    async def main(primary: TcpPostgres, standby: Standby) -> None:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/agents?target_session_attrs=read-write&connect_timeout=2"
        async with AsyncExitStack() as stack:
            hf = await soon(open_patiently(stack, style, url, pool), SOON_S)
            acme = hf.tenant("acme")
            key, first, name = (RandomIds().new() for _ in range(3))
            session = await patiently(style, lambda: acme.sessions.create(id=key))
            await patiently(style, lambda: acme.messages.append(session.id, role="user", content="before", id=first))
            append = lambda: acme.messages.append(session.id, role="user", content="after", id=name)  # noqa: E731
            standby.catch_up()
            frozen = freeze(primary)
            try:
                unknown = await soon(outcome_aside(style, append), SOON_S)
                assert isinstance(unknown, OutcomeUnknown), repr(unknown)
                assert unknown.id == name
                refused = await soon(outcome_aside(style, lambda: acme.sessions.get(session.id)), SOON_S)
                assert isinstance(refused, Unavailable), repr(refused)
                standby.promote()
                assert (await patiently(style, append)).id == name
                existing = await patiently(style, lambda: acme.messages.list(session.id))
                assert [message.content[0]["text"] for message in existing] == ["before", "after"]
            finally:
                thaw(primary, frozen)

    with TcpPostgres() as primary:
        Holdfast(primary.create_database("agents"), auto_migrate=True, pool=SMALL).close()
        with Standby(primary) as standby:
            asyncio.run(main(primary, standby))


@both_styles
def test_a_statement_over_its_deadline_in_a_transaction_is_not_retried(style: str, postgres_url: str) -> None:
    """Nothing was committed, and an immediate retry would wait as long again."""
    pool = PoolOptions(min_connections=1, max_connections=3, statement_deadline_s=0.5)

    async def main() -> None:
        async with opened(style, postgres_url, pool=pool) as hf:
            acme = hf.tenant("acme")
            key = RandomIds().new()
            session = await patiently(style, lambda: acme.sessions.create(id=key))
            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT 1 FROM sessions FOR UPDATE")
                update = lambda: acme.sessions.update(session.id, metadata={"a": 1})  # noqa: E731
                refused = await soon(outcome_aside(style, update), SOON_S)
                assert isinstance(refused, NoAnswer), repr(refused)
            assert (await patiently(style, lambda: acme.sessions.get(session.id))).metadata == {}

    asyncio.run(main())


def test_keepalives_of_the_address_reach_the_socket_of_asyncpg(primary: TcpPostgres, standby: Standby) -> None:
    url = f"postgresql://postgres@127.0.0.1:{primary.port}/agents?keepalives_idle=17&tcp_user_timeout=9000"

    async def main() -> None:
        async with opened("async", url) as hf:
            await hf.tenant("acme").sessions.list()
            (raw,) = [holder._con for holder in hf._engine._pool._pool._holders if holder._con is not None]
            existing = raw._transport.get_extra_info("socket")
            assert existing.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert existing.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 17
            assert existing.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9_000

    asyncio.run(main())
