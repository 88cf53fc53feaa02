"""Calls through pgbouncer, which assigns a connection to every transaction, have the same results."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Holdfast, NewMessage, PoolOptions
from holdfast.errors import AlreadyExists, Conflict, NotFound
from tests.engines.postgres_handles import ask, both_styles, database_of, opened, soon
from tests.servers import PgBouncer, PostgresServer

MANY = PoolOptions(min_connections=8, max_connections=16)
"""More than pgbouncer has to the server, so that they are really shared."""


@both_styles
def test_the_stores_work_through_a_transaction_pooler(style: str, pgbouncer: PgBouncer, postgres_url: str) -> None:
    async def main() -> None:
        async with opened(style, pgbouncer.url(database_of(postgres_url)), pool=MANY) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create(key="k", user="ada", metadata={"plan": "pro"}))
            with pytest.raises(AlreadyExists):
                await ask(acme.sessions.create(key="k", user="ada"))
            first = await ask(acme.messages.append(session.id, role="user", content="Hello"))
            again = await ask(acme.messages.append(session.id, role="user", content="Hello", id=first.id))
            assert again == first
            with pytest.raises(Conflict):
                await ask(acme.messages.append(session.id, role="user", content="Other", id=first.id))
            new = [NewMessage(role="assistant", content=str(number)) for number in range(5)]
            assert [message.seq for message in await ask(acme.messages.append_many(session.id, new))] == [2, 3, 4, 5, 6]
            assert [item.id for item in await ask(acme.sessions.list(metadata={"plan": "pro"}))] == [session.id]
            await ask(acme.messages.update(first.id, metadata={"a": 1}))
            assert await ask(acme.messages.delete(session.id, [first.id])) == 1
            assert (await ask(acme.sessions.get(session.id))).message_count == 5
            await ask(acme.sessions.delete(session.id))
            with pytest.raises(NotFound):
                await ask(acme.messages.list(session.id))
            assert (await ask(acme.sessions.restore(session.id))).message_count == 5
            await ask(acme.sessions.purge(session.id))
            with pytest.raises(NotFound):
                await ask(acme.sessions.get(session.id, deleted=True))

    asyncio.run(soon(main(), 60))


def test_many_tasks_through_a_transaction_pooler_get_distinct_positions(
    pgbouncer: PgBouncer, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened("async", pgbouncer.url(database_of(postgres_url)), pool=MANY) as hf:
            acme = hf.tenant("acme")
            sessions = [await acme.sessions.create() for _ in range(4)]

            async def work(number: int) -> None:
                for turn in range(10):
                    session = sessions[(number + turn) % 4]
                    await acme.messages.append(session.id, role="user", content=f"{number} {turn}")
                    await acme.sessions.update(session.id, metadata={"n": number})
                    await acme.messages.last(session.id, 3)

            await soon(asyncio.gather(*[work(number) for number in range(16)]), 60)
            for session in sessions:
                assert [message.seq for message in await acme.messages.list(session.id)] == list(range(1, 41))

    asyncio.run(main())


def test_many_threads_through_a_transaction_pooler_get_distinct_positions(
    pgbouncer: PgBouncer, postgres_url: str
) -> None:
    with Holdfast(pgbouncer.url(database_of(postgres_url)), pool=MANY) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for turn in range(15):
                    acme.messages.append(session.id, role="user", content=str(turn))
                    acme.sessions.update(session.id, metadata={"n": turn})
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert [message.seq for message in acme.messages.list(session.id)] == list(range(1, 151))


@both_styles
def test_a_schema_can_be_migrated_through_a_transaction_pooler(
    style: str, pgbouncer: PgBouncer, bare_postgres_url: str
) -> None:
    async def main() -> None:
        url = pgbouncer.url(database_of(bare_postgres_url))
        async with opened(style, url, auto_migrate=True) as hf:
            await ask(hf.tenant("acme").sessions.create())
        async with opened(style, url) as hf:
            assert await ask(hf.tenant("acme").sessions.count()) == 1

    asyncio.run(soon(main(), 60))


@both_styles
def test_calls_succeed_after_the_pooler_restarts(
    style: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        with PgBouncer(postgres_server) as pooler:
            async with opened(style, pooler.url(database_of(postgres_url))) as hf:
                acme = hf.tenant("acme")
                session = await ask(acme.sessions.create())
                for _ in range(2):
                    await asyncio.to_thread(pooler.stop)
                    await asyncio.to_thread(pooler.start)
                    assert (await soon(ask(acme.sessions.get(session.id)))).id == session.id

    asyncio.run(soon(main(), 60))
