"""Connections or the whole server are lost during use: no write is lost, no call hangs, and handles recover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, PoolOptions
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ids import RandomIds
from tests.engines.postgres_handles import (
    SMALL,
    ask,
    ask_aside,
    both_styles,
    crowd,
    opened,
    outcome,
    soon,
    terminate,
    wait_for_connections,
)
from tests.servers import PostgresServer

QUICK_S = 2.0
"""How long calls wait for a connection while the server is away."""
BACK_S = 60.0
"""After the server is back, a call must succeed within this time: far less than the lifetime of a connection."""


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server for this module, which may be stopped and killed; it is running when a test begins."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def mortal_url(mortal: PostgresServer) -> Iterator[str]:
    if mortal.pid is None:
        mortal.start()
    url = mortal.create_database("mortal")
    Holdfast(url, auto_migrate=True, pool=SMALL).close()
    yield url
    if mortal.pid is None:
        mortal.start()
    mortal.drop_database("mortal")


@both_styles
@pytest.mark.parametrize("what", ["append", "create", "get"])
def test_connections_lost_while_idle_are_replaced_without_an_error(
    style: str, what: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            call = {
                "append": lambda: acme.messages.append(session.id, role="user", content="x"),
                "create": acme.sessions.create,
                "get": lambda: acme.sessions.get(session.id),
            }[what]
            for _ in range(5):
                await soon(ask(call()))
                assert await asyncio.to_thread(terminate, postgres_server, postgres_url) > 0
            await soon(ask(call()))
            if what == "append":
                assert [item.seq for item in await ask(acme.messages.list(session.id))] == [1, 2, 3, 4, 5, 6]

    asyncio.run(main())


FAREWELL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


@pytest.mark.parametrize("what", ["append", "appends"])
def test_a_connection_that_is_being_closed_is_replaced_without_an_error(what: str, postgres_url: str) -> None:
    """The server's last message has arrived, but not the end of the stream: asyncpg sends nothing more and is not closed."""

    async def main() -> None:
        async with opened("async", postgres_url) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            await crowd(acme)
            append = lambda: acme.messages.append(session.id, role="user", content="x")  # noqa: E731
            call: Any = {
                "append": append,
                "appends": lambda: asyncio.gather(append(), append(), append()),
            }[what]
            open_ones = [holder._con for holder in hf._engine._pool._pool._holders if holder._con is not None]
            assert open_ones
            for raw in open_ones:
                raw._protocol.data_received(b"E" + (len(FAREWELL) + 4).to_bytes(4) + FAREWELL)
                assert not raw.is_closed()
            await soon(call())
            existing = [message.seq for message in await acme.messages.list(session.id)]
            assert existing == list(range(1, {"append": 1, "appends": 3}[what] + 1))

    asyncio.run(main())


def lock_waiters(connection: psycopg.Connection[Any]) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return [pid for (pid,) in connection.execute(query)]


@both_styles
@pytest.mark.parametrize("what", ["append", "update"])
def test_a_terminated_backend_is_unknown_for_an_append_and_retried_for_a_transaction(
    style: str, what: str, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            name = RandomIds().new()
            call = {
                "append": lambda: acme.messages.append(session.id, role="user", content="x", id=name),
                "update": lambda: acme.sessions.update(session.id, metadata={"a": 1}),
            }[what]
            with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url, autocommit=True) as watcher:
                other.execute("SELECT 1 FROM sessions FOR UPDATE")
                waiting = asyncio.ensure_future(ask_aside(style, call))
                deadline = time.monotonic() + 60
                while not (waiters := lock_waiters(watcher)):
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)
                watcher.execute("SELECT pg_terminate_backend(pid, 60000) FROM unnest(%s::int[]) AS pid", [waiters])
                if what == "append":
                    with pytest.raises(OutcomeUnknown) as caught:
                        await soon(waiting)
                    assert caught.value.id == name
            if what == "append":
                assert (await soon(ask(call()))).seq == 1
            else:
                assert (await soon(waiting)).metadata == {"a": 1}
            assert (await ask(acme.sessions.get(session.id))).message_count == (what == "append")

    asyncio.run(main())


async def first_success_s(call: Any) -> float:
    """Return the seconds until a call succeeds again."""
    started = time.monotonic()
    while isinstance(await soon(outcome(call)), HoldfastError):
        assert time.monotonic() - started < BACK_S
        await asyncio.sleep(0.01)
    return time.monotonic() - started


@both_styles
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_after_a_restart_calls_succeed_again_on_the_same_handle(
    style: str, end: str, mortal: PostgresServer, mortal_url: str
) -> None:
    async def main() -> None:
        async with opened(style, mortal_url) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            await ask(acme.messages.append(session.id, role="user", content="before"))
            await asyncio.to_thread(mortal.stop if end == "stop" else mortal.kill)
            wait_for_connections(hf, QUICK_S)
            for call in (
                lambda: acme.messages.append(session.id, role="user", content="meanwhile"),
                acme.sessions.create,
                lambda: acme.sessions.get(session.id),
            ):
                started = time.monotonic()
                refused = await soon(outcome(call))
                assert isinstance(refused, Unavailable), repr(refused)
                assert time.monotonic() - started < BACK_S
            await asyncio.to_thread(mortal.start)
            wait_for_connections(hf, SMALL.connect_timeout_s)
            assert await first_success_s(lambda: acme.sessions.get(session.id)) < BACK_S
            assert await first_success_s(acme.sessions.create) < BACK_S
            assert await first_success_s(lambda: acme.messages.append(session.id, role="user", content="x")) < BACK_S
            texts = [message.content[0]["text"] for message in await ask(acme.messages.list(session.id))]
            assert texts == ["before", "x"]

    asyncio.run(main())


def test_a_call_made_in_an_outage_succeeds_when_the_server_is_back_within_the_time_to_connect(
    mortal: PostgresServer, mortal_url: str
) -> None:
    """The pool has given up by then, so the call must ask it again."""

    async def main() -> None:
        pool = PoolOptions(min_connections=1, max_connections=3, connect_timeout_s=90.0)
        async with opened("sync", mortal_url, pool=pool) as hf:
            session = hf.tenant("acme").sessions.create()
            mortal.stop()
            call = asyncio.create_task(asyncio.to_thread(hf.tenant("acme").sessions.get, session.id))
            await asyncio.sleep(4.0)
            await asyncio.to_thread(mortal.start)
            assert (await soon(call, 90)).id == session.id

    asyncio.run(main())


@both_styles
def test_a_server_that_has_not_started_raises_unavailable(style: str, mortal: PostgresServer, mortal_url: str) -> None:
    async def main() -> None:
        await asyncio.to_thread(mortal.stop)
        with pytest.raises(Unavailable):
            async with opened(style, mortal_url):
                pass

    asyncio.run(soon(main()))


@both_styles
def test_a_server_killed_in_the_middle_of_many_appends_loses_nothing(
    style: str, mortal: PostgresServer, mortal_url: str
) -> None:
    """Every append is acknowledged and stored, refused and absent, or unknown and settled by a repetition."""

    async def main() -> None:
        async with opened(style, mortal_url) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            wait_for_connections(hf, QUICK_S)
            ids, acknowledged = RandomIds(), set()
            stopping = False

            async def write() -> None:
                while not stopping:
                    name = ids.new()
                    while True:
                        try:
                            await ask_aside(
                                style,
                                lambda: acme.messages.append(session.id, role="user", content=name, id=name),  # noqa: B023
                            )
                            acknowledged.add(name)
                            break
                        except (Unavailable, OutcomeUnknown):
                            if stopping:
                                return
                            await asyncio.sleep(0.02)

            writers = [asyncio.create_task(write()) for _ in range(4)]
            for end in (mortal.kill, mortal.stop, mortal.kill):
                reached = len(acknowledged) + 30
                deadline = time.monotonic() + 60
                while len(acknowledged) < reached:
                    assert time.monotonic() < deadline, "the writers hang"
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(end)
                await asyncio.to_thread(mortal.start)
            stopping = True
            await soon(asyncio.gather(*writers))
            existing = await soon(ask(acme.messages.list(session.id)))
            assert [message.seq for message in existing] == list(range(1, len(existing) + 1))
            assert {message.id for message in existing} >= acknowledged
            assert len({message.id for message in existing}) == len(existing)

    asyncio.run(main())
