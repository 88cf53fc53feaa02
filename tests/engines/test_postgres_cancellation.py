"""Calls cancelled during an exchange with PostgreSQL are complete or absent, and each answer belongs to its own request."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from holdfast import PoolOptions
from holdfast.errors import HoldfastError
from holdfast.ids import RandomIds
from tests.engines.postgres_handles import backends, database_of, eventually, opened, outcome, soon
from tests.engines.replication import freeze, thaw
from tests.servers import PostgresServer

ROUNDS = 10
TINY = PoolOptions(min_connections=1, max_connections=2, connect_timeout_s=30.0, health_check_s=0.0)
"""Few connections, so that each is used right after another caller's cancelled call, and each is checked before it is used."""


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_each_result_belongs_to_its_request_when_others_are_cancelled(
    seed: int, postgres_server: PostgresServer, postgres_url: str
) -> None:
    random = Random(seed)

    async def main() -> int:
        async with opened("async", postgres_url, pool=TINY) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            sessions = [await acme.sessions.create(metadata={"nonce": number}) for number in range(10)]
            ids = RandomIds()
            acknowledged: set[str] = set()

            async def read(number: int) -> None:
                actual = await acme.sessions.get(sessions[number].id)
                assert actual.metadata == {"nonce": number}

            async def append(name: str) -> None:
                message = await acme.messages.append(session.id, role="user", content=name, id=name)
                assert (message.id, message.content[0]["text"]) == (name, name)
                acknowledged.add(name)

            async def update(number: int) -> None:
                changed = await acme.sessions.update(sessions[number].id, agent=f"agent {number}")
                assert (changed.id, changed.agent) == (sessions[number].id, f"agent {number}")

            cancelled = 0
            for _ in range(25):
                calls: list[Any] = [read(n) for n in range(4)] + [append(ids.new()) for _ in range(3)]
                calls += [update(n) for n in range(3)]
                random.shuffle(calls)
                tasks = [asyncio.create_task(call) for call in calls]
                for task in random.sample(tasks, 6):
                    await asyncio.sleep(random.choice((0, 0, 0, 0.0005, 0.001)))
                    task.cancel()
                for answer in await soon(asyncio.gather(*tasks, return_exceptions=True)):
                    cancelled += isinstance(answer, asyncio.CancelledError)
                    assert answer is None or isinstance(answer, asyncio.CancelledError), repr(answer)
            for number in range(10):
                await soon(read(number))
            messages = await acme.messages.list(session.id)
            assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
            assert {message.id for message in messages} >= acknowledged
            # The process of a connection that was thrown away ends a moment after it.
            await eventually(lambda: len(backends(postgres_server, postgres_url)) <= TINY.max_connections)
        return cancelled

    assert asyncio.run(soon(main(), 120)) > 0


def test_a_call_cancelled_during_an_exchange_leaves_no_transaction_open(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened("async", postgres_url, pool=TINY) as hf:
            acme = hf.tenant("acme")
            for number in range(40):
                task = asyncio.create_task(acme.sessions.create(key=f"key {number}"))
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await soon(asyncio.gather(task, return_exceptions=True))
                again = await soon(acme.sessions.upsert(f"key {number}"))  # would wait for ever for an open transaction
                assert again.key == f"key {number}"
            assert await acme.sessions.count() == 40
        query = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = '{}'"
        assert postgres_server.execute(query.format(database_of(postgres_url))) == [(0,)]

    asyncio.run(soon(main(), 180))


@pytest.mark.parametrize("what", ["append", "create", "get"])
def test_a_caller_with_a_deadline_does_not_wait_for_a_frozen_server(what: str, own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database("frozen")

    async def main() -> None:
        async with opened("async", url, auto_migrate=True) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            await acme.messages.append(session.id, role="user", content="x")
            call = {
                "append": lambda: acme.messages.append(session.id, role="user", content="y"),
                "create": acme.sessions.create,
                "get": lambda: acme.sessions.get(session.id),
            }[what]
            frozen = freeze(own_postgres)
            try:
                waiting = asyncio.ensure_future(asyncio.wait_for(call(), 0.3))
                completed, _ = await asyncio.wait([waiting], timeout=60)
            finally:
                thaw(own_postgres, frozen)
            assert completed, "the deadline was not kept"
            assert isinstance(waiting.exception(), TimeoutError)
            while True:
                answer = await soon(outcome(acme.sessions.get, session.id))
                if not isinstance(answer, HoldfastError):
                    break
                await asyncio.sleep(0.05)
            assert answer.id == session.id

    asyncio.run(soon(main(), 180))
