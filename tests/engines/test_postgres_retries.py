"""Deadlocks and serialization failures on PostgreSQL are retried a limited number of times."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast.engines.postgres.retries import TRIES
from holdfast.engines.protocol import Connection
from holdfast.errors import Unavailable
from holdfast.sync_runner import step
from tests.engines.postgres_handles import ask, ask_aside, both_styles, opened, soon


@both_styles
def test_two_calls_that_deadlock_both_succeed(style: str, postgres_url: str) -> None:
    """Each locks a row, waits until the other has locked its row, and then locks that one."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '20ms'")

    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            sessions = [(await ask(hf.tenant("acme").sessions.create())).id for _ in range(2)]
            locked = [asyncio.Event(), asyncio.Event()]
            runs = [0, 0]
            loop = asyncio.get_running_loop()

            async def lock_both(connection: Connection, me: int) -> str:
                runs[me] += 1
                await touch(connection, sessions[me], me)
                loop.call_soon_threadsafe(locked[me].set)
                if style == "async":
                    await locked[1 - me].wait()
                else:
                    asyncio.run_coroutine_threadsafe(locked[1 - me].wait(), loop).result(60)
                await touch(connection, sessions[1 - me], me)
                return f"done {me}"

            def call(me: int) -> Any:
                write = hf._engine.write(lambda connection: lock_both(connection, me))
                return write if style == "async" else step(write)

            answers = await soon(asyncio.gather(*[ask_aside(style, lambda me=me: call(me)) for me in range(2)]), 120)
            assert answers == ["done 0", "done 1"]
            assert sum(runs) > 2, "nothing was retried, so there was no deadlock"
            for session in sessions:
                touched = (await ask(hf.tenant("acme").sessions.get(session))).metadata
                assert touched in ({"by": 0}, {"by": 1})

    try:
        asyncio.run(main())
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {database} RESET deadlock_timeout")


async def touch(connection: Connection, session: str, by: int) -> None:
    await connection.fetch(
        f"""UPDATE sessions SET metadata = '{{"by": {by}}}' WHERE tenant_id = 'acme' AND id = '{session}'""", ()
    )


class Failing:
    """A call that fails with a SQLSTATE its first times, and then works."""

    def __init__(self, sqlstate: str, times: int) -> None:
        self._sqlstate, self._times = sqlstate, times
        self._trace = f"fails {times} times, run "
        self.runs = 0

    async def __call__(self, connection: Connection) -> str:
        self.runs += 1
        await connection.fetch(
            "INSERT INTO tenants (id, created_at, updated_at) VALUES ($1, now(), now())", [f"{self._trace}{self.runs}"]
        )
        if self.runs <= self._times:
            await connection.fetch(
                f"DO $$ BEGIN RAISE EXCEPTION 'as the test asked' USING ERRCODE = '{self._sqlstate}'; END $$", ()
            )
        return "done"


@both_styles
@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_call_is_retried_up_to_the_limit_and_only_the_last_try_has_effects(
    style: str, sqlstate: str, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            lucky = Failing(sqlstate, TRIES - 1)
            write = hf._engine.write(lucky)
            assert await soon(write if style == "async" else ask_aside(style, lambda: step(write))) == "done"
            assert lucky.runs == TRIES
            assert [tenant.id for tenant in await ask(hf.tenants.list())] == [f"fails {TRIES - 1} times, run {TRIES}"]
            unlucky = Failing(sqlstate, 1_000)
            write = hf._engine.write(unlucky)
            with pytest.raises(Unavailable, match=rf"\b{TRIES}\b"):
                await soon(write if style == "async" else ask_aside(style, lambda: step(write)))
            assert unlucky.runs == TRIES
            assert len(await ask(hf.tenants.list())) == 1

    asyncio.run(main())


@both_styles
def test_another_failure_is_not_retried(style: str, postgres_url: str) -> None:
    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            failing = Failing("22012", 1_000)
            write = hf._engine.write(failing)
            with pytest.raises(Exception, match="as the test asked"):
                await soon(write if style == "async" else ask_aside(style, lambda: step(write)))
            assert failing.runs == 1
            assert await ask(hf.tenants.list()) == []

    asyncio.run(main())


def test_appends_to_the_same_sessions_from_many_handles_never_deadlock_permanently(postgres_url: str) -> None:
    """Groups of appends lock several sessions at once; two handles send theirs at the same time."""

    async def main() -> None:
        async with opened("async", postgres_url) as one, opened("async", postgres_url) as two:
            sessions = [await one.tenant("acme").sessions.create() for _ in range(5)]
            appends = [
                hf.tenant("acme").messages.append(session.id, role="user", content=str(number))
                for number in range(30)
                for hf in (one, two)
                for session in (sessions if number % 2 else sessions[::-1])
            ]
            await soon(asyncio.gather(*appends), 60)
            for session in sessions:
                messages = await one.tenant("acme").messages.list(session.id)
                assert [message.seq for message in messages] == list(range(1, 61))

    asyncio.run(main())


@both_styles
def test_real_serialization_failures_are_retried(style: str, postgres_url: str) -> None:
    """With serializable transactions, two that change one row cannot both commit."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'")

    async def main() -> None:
        async with opened(style, postgres_url) as hf:
            acme = hf.tenant("acme")
            session = await ask(acme.sessions.create())
            met = asyncio.Barrier(2)
            loop = asyncio.get_running_loop()
            runs = 0

            async def change(connection: Connection) -> None:
                nonlocal runs
                runs += 1
                await connection.fetch("SELECT * FROM sessions", ())  # both look before either changes anything
                if runs <= 2:
                    await (met.wait() if style == "async" else blocking_wait(met, loop))
                await touch(connection, session.id, 1)

            def call() -> Any:
                write = hf._engine.write(change)
                return write if style == "async" else step(write)

            await soon(asyncio.gather(ask_aside(style, call), ask_aside(style, call)))
            assert runs == 3, "one of the two was run again"
            append = lambda: acme.messages.append(session.id, role="user", content="x")  # noqa: E731
            for _ in range(10):
                await soon(asyncio.gather(ask_aside(style, append), ask_aside(style, append)))
            existing = await ask(acme.messages.list(session.id))
            assert [message.seq for message in existing] == list(range(1, 21))

    try:
        asyncio.run(main())
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {database} RESET default_transaction_isolation")


async def blocking_wait(barrier: asyncio.Barrier, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(barrier.wait(), loop).result(60)
