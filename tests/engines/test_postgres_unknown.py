"""The answer to a commit is lost: the caller gets OutcomeUnknown, and a repetition with the same id has exactly one effect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import NewMessage
from holdfast.errors import AlreadyExists, OutcomeUnknown, Unavailable
from holdfast.ids import SeededIds
from tests.engines.postgres_handles import ask, both_styles, crowd, database_of, opened, outcome, soon
from tests.engines.proxy import Moment, Proxy
from tests.servers import PostgresServer

CUTS_IN_TESTS = 50
"""Of each style; twice that in all."""
CUTS_IN_SOAK = 5_000


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server) as proxy:
        yield proxy


async def cut_appends(style: str, proxy: Proxy, url: str, cuts: int) -> None:
    moments: list[Moment] = ["answer", "request", "answer"]
    ids = SeededIds(cuts)
    async with opened(style, url) as hf:
        acme = hf.tenant("acme")
        session = await ask(acme.sessions.create())
        expected: list[str] = []
        for number in range(cuts):
            names = [ids.new() for _ in range(1 if number % 4 else 3)]
            messages = [NewMessage(role="user", content=name, id=name) for name in names]
            proxy.arm(moments[number % 3])
            first = await soon(outcome(acme.messages.append_many, session.id, messages))
            assert isinstance(first, OutcomeUnknown), f"cut {number}: {first!r}"
            assert first.id == names[0]
            assert not proxy.is_armed
            again = await soon(ask(acme.messages.append_many(session.id, messages)))
            assert [message.id for message in again] == names
            expected += names
        existing = await ask(acme.messages.list(session.id))
        assert [message.id for message in existing] == expected
        assert [message.seq for message in existing] == list(range(1, len(expected) + 1))
        assert (await ask(acme.sessions.get(session.id))).message_count == len(expected)
    assert proxy.cuts == cuts


@both_styles
def test_an_append_whose_answer_is_lost_is_unknown_and_repeating_it_settles_it(
    style: str, proxy: Proxy, postgres_url: str
) -> None:
    asyncio.run(cut_appends(style, proxy, proxy.url(database_of(postgres_url)), CUTS_IN_TESTS))


@pytest.mark.soak
@both_styles
def test_many_appends_whose_answers_are_lost_are_settled_by_repeating_them(
    style: str, proxy: Proxy, postgres_url: str
) -> None:
    asyncio.run(cut_appends(style, proxy, proxy.url(database_of(postgres_url)), CUTS_IN_SOAK))


@both_styles
def test_a_transaction_whose_commit_is_not_answered_is_unknown_and_happened_once(
    style: str, proxy: Proxy, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened(style, proxy.url(database_of(postgres_url))) as hf:
            acme = hf.tenant("acme")
            for number in range(10):
                name = SeededIds(number).new()
                proxy.arm("commit")
                first = await soon(outcome(acme.sessions.create, key=f"key {number}", id=name))
                assert isinstance(first, OutcomeUnknown), f"cut {number}: {first!r}"
                again = await soon(ask(acme.sessions.create(key=f"key {number}", id=name)))
                assert again.id == name
            assert await ask(acme.sessions.count()) == 10
        assert proxy.cuts == 10

    asyncio.run(main())


@both_styles
def test_a_statement_lost_before_the_commit_is_retried_silently(style: str, proxy: Proxy, postgres_url: str) -> None:
    """Before the commit the outcome is certain: the call is repeated without an error."""

    async def main() -> None:
        async with opened(style, proxy.url(database_of(postgres_url))) as hf:
            acme = hf.tenant("acme")
            for number in range(10):
                proxy.arm("request")
                session = await soon(ask(acme.sessions.create(key=f"key {number}")))
                assert not proxy.is_armed
                proxy.arm("answer")
                assert (await soon(ask(acme.sessions.get(session.id)))).id == session.id
                assert not proxy.is_armed
            assert await ask(acme.sessions.count()) == 10
            taken = await soon(outcome(acme.sessions.create, key="key 3"))
            assert isinstance(taken, AlreadyExists)

    asyncio.run(main())


def test_appends_of_a_lost_statement_all_have_an_unknown_outcome_and_settle_separately(
    proxy: Proxy, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened("async", proxy.url(database_of(postgres_url))) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            ids = SeededIds(1)
            for moment in ("answer", "request", "answer"):
                names = [ids.new() for _ in range(20)]

                async def append(name: str) -> Any:
                    return await acme.messages.append(session.id, role="user", content=name, id=name)

                await crowd(acme)
                proxy.arm(moment)
                answers = await soon(asyncio.gather(*map(append, names), return_exceptions=True))
                lost = [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, OutcomeUnknown)]
                assert [answer.id for answer in answers] == names  # the error's id is the message's
                assert len(lost) >= 2
                again = await soon(asyncio.gather(*map(append, names)))
                assert [message.id for message in again] == names
            messages = await acme.messages.list(session.id)
            assert sorted(message.seq for message in messages) == list(range(1, 61))
            assert len({message.id for message in messages}) == 60

    asyncio.run(main())


def test_items_queued_behind_a_lost_statement_are_sent_on_another_connection(proxy: Proxy, postgres_url: str) -> None:
    """Only the statement that was sent is in doubt; the step behind it never left."""

    async def main() -> None:
        async with opened("async", proxy.url(database_of(postgres_url))) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            run = await acme.runs.start(session.id)
            held = await acme.leases.claim("test", run_id=run.id, ttl_ms=600_000)
            name = SeededIds(1).new()
            await crowd(acme)
            proxy.arm("request")
            lost, step = await soon(
                asyncio.gather(
                    acme.messages.append(session.id, role="user", content="x", id=name),
                    acme.runs.step(run.id, epoch=held.epoch, iteration=1, state={"n": 1}),
                    return_exceptions=True,
                )
            )
            assert isinstance(lost, OutcomeUnknown), repr(lost)
            assert lost.id == name
            assert step.step.iteration == 1

    asyncio.run(main())


REPORTS = """
CREATE FUNCTION reports() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.content::text LIKE '%fails%' THEN RAISE EXCEPTION 'a worker is away' USING ERRCODE = '08006'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER reports BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION reports()"""


def own_pids(hf: Any) -> set[int]:
    """Return the server processes of a handle's connections."""
    actual = [holder._con for holder in hf._engine._pool._pool._holders]
    return {raw.get_server_pid() for raw in actual if raw is not None and not raw.is_closed()}


def test_a_lost_connection_that_the_server_reports_costs_only_the_append_that_met_it(postgres_url: str) -> None:
    """The error concerns the server's own connection to another server: the handle's connection works and is kept."""

    async def main() -> None:
        async with opened("async", postgres_url) as hf:
            acme = hf.tenant("acme")
            sessions = [await hf.tenant(tenant).sessions.create() for tenant in ("acme", "globex")]
            await crowd(acme)
            before = own_pids(hf)
            appends = [
                hf.tenant(tenant).messages.append(session.id, role="user", content=content)
                for content in ("fails", "works")
                for tenant, session in zip(("acme", "globex"), sessions, strict=True)
            ]
            failed, other, *worked = await soon(asyncio.gather(*appends, return_exceptions=True))
            for item in (failed, other):
                assert isinstance(item, (OutcomeUnknown, Unavailable)), repr(item)
            assert [message.content[0]["text"] for message in worked] == ["works", "works"]
            assert before
            assert own_pids(hf) >= before

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(REPORTS)
        try:
            asyncio.run(main())
        finally:
            connection.execute("DROP FUNCTION reports CASCADE")
