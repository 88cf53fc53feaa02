"""The connection pool of PostgreSQL: its size, the lifetime of connections, and dead connections."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import AsyncHoldfast, Holdfast, PoolOptions
from holdfast.cli.commands import root
from holdfast.cli.database import with_pool
from holdfast.engines.postgres.options import split_pool
from holdfast.engines.postgres.pool import CLOSE_S
from holdfast.errors import Closed, InvalidInput, SchemaMismatch, Unavailable
from tests.api.process import ServerProcess
from tests.engines.other_loops import refused_in_another_loop
from tests.engines.postgres_handles import (
    SMALL,
    ask,
    ask_aside,
    backends,
    both_styles,
    eventually,
    opened,
    outcome,
    soon,
    terminate,
    wait_for_connections,
)
from tests.engines.scripts import run_script
from tests.errors import raises
from tests.servers import PostgresServer


def test_the_defaults_suit_one_service_in_production() -> None:
    options = PoolOptions()
    assert (options.max_connections, options.min_connections) == (25, 5)
    assert (options.max_lifetime_s, options.max_idle_s, options.health_check_s) == (3_600, 1_800, 60)


def test_the_address_can_set_the_size_of_the_pool() -> None:
    url = "postgresql://u:p@h/d?pool_max_connections=50&sslmode=require&pool_max_idle_s=1.5"
    expected = PoolOptions(max_connections=50, max_idle_s=1.5)
    assert split_pool(url, None) == ("postgresql://u:p@h/d?sslmode=require", expected)
    assert split_pool("postgresql://h/d?pool_min_connections=0", None) == (
        "postgresql://h/d",
        PoolOptions(min_connections=0),
    )
    own = PoolOptions(max_connections=2)
    assert split_pool(url, own) == ("postgresql://u:p@h/d?sslmode=require", own)
    assert split_pool("postgresql://h/d", None) == ("postgresql://h/d", PoolOptions())


@pytest.mark.parametrize("mark", ["", "?sslmode=disable&pool_max_connections=50"])
def test_a_command_option_for_the_pool_precedes_the_address(mark: str) -> None:
    plain = f"postgresql://u:p@h/d{mark}"
    expected = PoolOptions(max_connections=7, min_connections=0)
    assert split_pool(with_pool(plain, 7, 0), None)[1] == expected
    assert with_pool(plain, None, None) == plain
    assert with_pool("a.db", 7, 0) == "a.db", "a file has no pool"


@pytest.mark.parametrize("name", ["serve", "worker"])
def test_serve_and_worker_have_the_options_of_the_pool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POOL_MAX_CONNECTIONS", "none")
    words = {"serve": [], "worker": ["--handler", "x:y"]}[name]
    completed = CliRunner().invoke(root, [name, "--database", "postgresql://127.0.0.1:1/d", *words])
    assert completed.exit_code == 2
    assert "--pool-max-connections" in completed.output


def test_a_server_keeps_the_configured_number_of_connections(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    Holdfast(postgres_url, auto_migrate=True).close()
    sizes = ["--pool-min-connections", "3", "--pool-max-connections", "3"]
    with ServerProcess(tmp_path, "--database", postgres_url, *sizes):
        asyncio.run(eventually(lambda: len(backends(postgres_server, postgres_url)) == 3))


@pytest.mark.parametrize(
    "option",
    ["pool_size=3", "pool_max_connections=x", "pool_max_connections=1.5", "pool_max_idle_s=-1", "pool_max_idle_s=nan"],
)
def test_an_invalid_pool_option_is_refused(option: str) -> None:
    with raises(InvalidInput, field=option.partition("=")[0]):
        Holdfast(f"postgresql://u:secret@127.0.0.1:1/d?{option}")


@both_styles
def test_the_pool_is_opened_with_the_options_of_the_address(
    style: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    mark = "&" if "?" in postgres_url else "?"
    url = f"{postgres_url}{mark}pool_min_connections=3&pool_max_connections=3"

    async def main() -> None:
        async with opened(style, url, pool=None) as hf:
            await ask(hf.tenant("acme").sessions.count())
            await eventually(lambda: len(backends(postgres_server, postgres_url)) == 3)

    asyncio.run(main())


@both_styles
def test_the_pool_keeps_its_minimum_and_never_exceeds_its_maximum(
    style: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        pool = PoolOptions(min_connections=2, max_connections=4, connect_timeout_s=60.0)
        async with opened(style, postgres_url, pool=pool) as hf:
            await eventually(lambda: 2 <= len(backends(postgres_server, postgres_url)) <= 4)
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            inner: Any = hf._engine._pool
            size = inner._pool.get_size if style == "async" else lambda: inner.get_stats()["pool_size"]
            most = 0

            async def work() -> None:
                nonlocal most
                for number in range(8):
                    await ask_aside(style, lambda: acme.sessions.get(session.id))
                    await ask_aside(style, lambda: acme.messages.append(session.id, role="user", content=str(number)))  # noqa: B023
                    most = max(most, size())

            await soon(asyncio.gather(*[work() for _ in range(12)]), 120)
            assert 2 <= most <= 4
            await eventually(lambda: 2 <= len(backends(postgres_server, postgres_url)) <= 4)
            assert (await ask(acme.sessions.get(session.id))).message_count == 96

    asyncio.run(main())


def test_a_single_caller_stays_on_one_connection(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Other connections would prepare every statement again."""
    with Holdfast(postgres_url, pool=PoolOptions(min_connections=3, max_connections=4)) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        asyncio.run(eventually(lambda: len(_rested(postgres_server, postgres_url)) >= 3))
        before = _rested(postgres_server, postgres_url)
        for number in range(10):
            acme.messages.append(session.id, role="user", content=str(number))
            acme.sessions.get(session.id)
        after = _rested(postgres_server, postgres_url)
        assert len([pid for pid in before if after.get(pid, before[pid]) != before[pid]]) == 1


def _rested(server: PostgresServer, url: str) -> dict[int, Any]:
    """Return the time since which all server processes of a database are idle, or nothing while one is busy."""
    actual = backends(server, url)
    query = f"SELECT pid, state_change FROM pg_stat_activity WHERE pid = ANY(ARRAY{actual}::int[]) AND state = 'idle'"
    rested = dict(server.execute(query))
    return rested if len(rested) == len(actual) else {}


@both_styles
def test_an_old_connection_is_replaced(style: str, postgres_server: PostgresServer, postgres_url: str) -> None:
    async def main() -> None:
        pool = PoolOptions(min_connections=1, max_connections=1, max_lifetime_s=0.3)
        async with opened(style, postgres_url, pool=pool) as hf:
            await ask(hf.tenant("acme").sessions.list())
            before = set(backends(postgres_server, postgres_url))
            assert before

            async def is_replaced() -> bool:
                await ask(hf.tenant("acme").sessions.list())
                return not before & set(backends(postgres_server, postgres_url))

            deadline = time.monotonic() + 60
            while not await is_replaced():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(main())


@both_styles
def test_a_dead_idle_connection_is_noticed_by_the_health_check(
    style: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        pool = PoolOptions(min_connections=1, max_connections=2, health_check_s=0.0)
        async with opened(style, postgres_url, pool=pool) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            for number in range(1, 6):
                assert await asyncio.to_thread(terminate, postgres_server, postgres_url) > 0
                assert (await soon(ask(acme.messages.append(session.id, role="user", content="x")))).seq == number

    asyncio.run(main())


@both_styles
def test_a_call_is_refused_in_time_if_every_connection_is_busy(
    style: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """All connections wait for a row that another transaction holds; one more caller gets an error, and succeeds later."""
    import psycopg

    async def main() -> None:
        pool = PoolOptions(min_connections=2, max_connections=2, connect_timeout_s=60.0)
        async with opened(style, postgres_url, pool=pool) as hf:
            await eventually(lambda: len(backends(postgres_server, postgres_url)) == 2)
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT 1 FROM sessions FOR UPDATE")
                waiting = [
                    asyncio.ensure_future(ask_aside(style, lambda: acme.sessions.update(session.id, metadata={"a": 1})))
                    for _ in range(2)
                ]
                deadline = time.monotonic() + 60
                while other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() < (2,):
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)
                wait_for_connections(hf, 0.5)
                refused = await soon(outcome(acme.sessions.get, session.id))
                assert isinstance(refused, Unavailable)
                wait_for_connections(hf, 60.0)
            await soon(asyncio.gather(*waiting))
            assert (await ask(acme.sessions.get(session.id))).metadata == {"a": 1}

    asyncio.run(main())


@both_styles
def test_connection_options_of_a_url_are_accepted_in_both_styles(style: str, postgres_url: str) -> None:
    output = "connect_timeout=5&keepalives=1&keepalives_idle=30&gssencmode=disable&channel_binding=prefer"

    async def main() -> None:
        url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}{output}&application_name=agents"
        async with opened(style, url) as hf:
            assert await ask(hf.tenant("acme").sessions.count()) == 0

    asyncio.run(soon(main()))


@both_styles
def test_a_missing_server_raises_unavailable_immediately_with_its_address(style: str, tmp_path: Any) -> None:
    async def main() -> None:
        url = f"postgresql://postgres@/x?host={tmp_path}"
        with raises(Unavailable):
            async with opened(style, url, pool=SMALL):
                pass

    asyncio.run(soon(main()))


@both_styles
def test_a_missing_database_raises_unavailable(style: str, postgres_server: PostgresServer) -> None:
    async def main() -> None:
        with pytest.raises(Unavailable, match="no_such_database"):
            async with opened(style, postgres_server.url("no_such_database"), pool=SMALL):
                pass

    asyncio.run(soon(main()))


@both_styles
def test_a_database_without_the_schema_raises_schema_mismatch(style: str, bare_postgres_url: str) -> None:
    async def main() -> None:
        with pytest.raises(SchemaMismatch, match="holdfast migrate up"):
            async with opened(style, bare_postgres_url):
                pass

    asyncio.run(soon(main()))


@both_styles
def test_a_closed_handle_raises_and_leaves_no_connection(
    style: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            await ask(acme.messages.append(session.id, role="user", content="x"))
            await ask(hf.close())
        for call in (
            lambda: acme.sessions.get(session.id),
            acme.sessions.create,
            lambda: acme.messages.append(session.id, role="user", content="x"),
        ):
            with pytest.raises(Closed):
                await ask(call())
        await eventually(lambda: backends(postgres_server, postgres_url) == [])

    asyncio.run(main())


def test_closing_finishes_appends_that_were_accepted(postgres_url: str) -> None:
    async def main() -> None:
        hf = await AsyncHoldfast(postgres_url, pool=SMALL).open()
        acme = hf.tenant("acme")
        session = await acme.sessions.create()
        appends = [asyncio.create_task(acme.messages.append(session.id, role="user", content="x")) for _ in range(50)]
        await asyncio.sleep(0)
        await soon(hf.close())
        assert sorted(message.seq for message in await asyncio.gather(*appends)) == list(range(1, 51))

    asyncio.run(main())


def test_opening_twice_is_harmless_and_a_closed_handle_can_be_opened_again(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> list[int]:
        hf = await AsyncHoldfast(postgres_url, pool=SMALL).open()
        pool = hf._engine._pool._pool
        async with hf:
            await hf.open()
            assert hf._engine._pool._pool is pool
            await hf.tenant("acme").sessions.create()
        await eventually(lambda: backends(postgres_server, postgres_url) == [])
        counts: list[int] = []
        for _ in range(2):
            await asyncio.gather(hf.open(), hf.open())
            await hf.tenant("acme").sessions.create()
            counts.append(await hf.tenant("acme").sessions.count())
            await hf.close()
            await eventually(lambda: backends(postgres_server, postgres_url) == [])
        return counts

    assert asyncio.run(asyncio.wait_for(main(), 180.0)) == [2, 3]


def test_a_call_from_another_event_loop_is_refused_and_has_no_effect(postgres_url: str) -> None:
    refused_in_another_loop(AsyncHoldfast(postgres_url, pool=SMALL))


def test_closing_waits_for_running_calls_and_no_longer(postgres_url: str) -> None:
    async def main() -> None:
        hf = await AsyncHoldfast(postgres_url, pool=SMALL).open()
        started = asyncio.Event()

        async def slow(connection: Any) -> Any:
            await connection.fetch("SELECT 1", ())
            started.set()
            await connection.fetch("SELECT pg_sleep(0.3)", ())
            return "done"

        call = asyncio.create_task(hf._engine.write(slow))
        await started.wait()
        begun = time.monotonic()
        await hf.close()
        assert time.monotonic() - begun < CLOSE_S  # the time it would wait for a call that never ends
        assert await call == "done"
        with pytest.raises(Closed):
            await hf._engine._pool.take()

    asyncio.run(main())


def test_threads_share_the_pool_and_each_append_has_its_own_position(postgres_url: str) -> None:
    with Holdfast(postgres_url, pool=SMALL) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()

        def write() -> None:
            for _ in range(25):
                acme.messages.append(session.id, role="user", content="x")

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        messages = acme.messages.list(session.id)
        assert [message.seq for message in messages] == list(range(1, 201))


ABANDONED = """
    import sys
    from holdfast import Holdfast

    hf = Holdfast(sys.argv[1])
    hf.tenant("acme").sessions.create()
    print("leaving")
"""

ABANDONED_ASYNC = """
    import asyncio, sys
    from holdfast import AsyncHoldfast

    async def main():
        hf = await AsyncHoldfast(sys.argv[1]).open()
        session = await hf.tenant("acme").sessions.create()
        await hf.tenant("acme").messages.append(session.id, role="user", content="x")
        print("leaving")

    asyncio.run(main())
"""


@pytest.mark.parametrize("script", [ABANDONED, ABANDONED_ASYNC])
def test_a_program_that_does_not_close_its_handle_still_exits(script: str, postgres_url: str) -> None:
    assert run_script(script, postgres_url, warnings="ignore") == "leaving\n"
