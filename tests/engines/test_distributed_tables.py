"""Statements sent when Citus distributes the tables: one change each, in one commit, and none to tables that every
machine has a copy of. The statements are plain SQL, so PostgreSQL alone shows what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast import AsyncHoldfast, Holdfast, NewMessage, PoolOptions
from holdfast.core.queries import Statement
from holdfast.drivers import asyncpg_connection
from holdfast.drivers import psycopg as psycopg_driver
from holdfast.engines import joined
from holdfast.engines.dialect import Dialect
from holdfast.engines.postgres import engine, pool
from holdfast.engines.postgres.citus import is_distributed
from holdfast.engines.postgres.retries import REPLICATED_COMMIT
from holdfast.errors import NotFound, OutcomeUnknown, Unavailable
from holdfast.stores.conversation import message_log
from holdfast.stores.execution.checkpoints import reader
from holdfast.stores.execution.runs import ledger, step_log
from holdfast.sync_runner import step
from holdfast.types import Message
from tests.contract.cases import can, cases, play
from tests.contract.legs import OwnLeg, PostgresPlace
from tests.engines.postgres_handles import soon
from tests.migrations.citus_rules import UNDISTRIBUTED
from tests.migrations.sharding import GLOBAL

GROUPED = ("messages", "concurrency", "tool_calls")
PLAYED = {False: (*GROUPED, "runs", "run_endings", "checkpoint_steps"), True: GROUPED}
"""The cases that write in groups or, in the synchronous style, otherwise differ where tables are distributed."""


async def _yes(connection: object) -> bool:
    return True


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every handle treat the tables as distributed, and let statements that Citus would send to every machine fail."""
    for module in (engine, joined, pool):
        monkeypatch.setattr(module, "is_distributed", _yes)
    refused = {Dialect.POSTGRES: Statement("SELECT sent_to_every_machine()", Dialect.POSTGRES)}
    actual = set()
    for queries in (message_log.queries, step_log.queries, ledger.queries, reader.queries):
        for name in UNDISTRIBUTED & queries.by_name.keys():
            monkeypatch.setattr(queries.by_name[name], "_static", refused)
            actual.add(name)
    assert actual == UNDISTRIBUTED


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the statements that are sent."""
    statements: list[str] = []
    ways = {
        psycopg_driver.PsycopgConnection: ("execute", "many"),
        asyncpg_connection.AsyncpgConnection: ("fetch", "many"),
    }
    for driver, names in ways.items():
        for name in names:
            monkeypatch.setattr(driver, name, _noting(getattr(driver, name), statements))
    return statements


def _noting(method: Callable[..., Any], statements: list[str]) -> Callable[..., Any]:
    def note(self: object, sql: str, args: Sequence[Any] = ()) -> Any:
        statements.append(sql)
        return method(self, sql, args)

    return note


@pytest.fixture
def place(postgres_url: str) -> Iterator[PostgresPlace]:
    made = PostgresPlace(postgres_url)
    yield made
    made.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS callers_notes")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.usefixtures("distributed")
def test_grouped_writes_send_no_statement_to_every_machine(asynchronous: bool, place: PostgresPlace) -> None:
    leg = OwnLeg("postgres, as if distributed", place, asynchronous=asynchronous)
    played = [case for case in cases() if str(case).partition(".")[0] in PLAYED[asynchronous] and can(leg, case)]
    assert len(played) > 30
    for case in played:
        play(case, leg)


@pytest.mark.usefixtures("distributed")
def test_frequent_writes_do_not_touch_reference_tables(postgres_url: str, sent: list[str]) -> None:
    with Holdfast(postgres_url) as hf:
        acme = hf.tenant("acme")
        acme.sessions.create(key="first")  # which registers the tenant
        sent.clear()
        session = acme.sessions.create(key="k")
        acme.sessions.upsert("k", metadata={"n": 1})
        acme.messages.append(session.id, role="user", content="x")
        run = acme.leases.claim("me", run_id=acme.runs.start(session.id).id)
        assert run is not None
        acme.runs.step(run.id, epoch=run.epoch, iteration=1, state={})
        acme.runs.finish(run.id, epoch=run.epoch, stop_reason="done")
    copies = GLOBAL - {"run_queue"}  # that one is kept on the coordinator
    written = [sql for sql in sent for table in copies if f"INTO {table} " in sql or f"UPDATE {table} " in sql]
    assert written == []
    assert any("INTO run_queue" in sql for sql in sent)


@pytest.mark.usefixtures("distributed")
def test_an_append_is_one_commit_of_two_statements(postgres_url: str, sent: list[str]) -> None:
    with Holdfast(postgres_url) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        sent.clear()
        acme.messages.append(session.id, role="user", content="x")
        assert [sql.split()[0] for sql in sent[:-1]] == ["BEGIN", "UPDATE", "INSERT"]
        assert sent[-1] == REPLICATED_COMMIT


@pytest.mark.usefixtures("distributed")
def test_a_step_whose_session_is_deleted_halfway_leaves_no_trace(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(postgres_url) as hf, Holdfast(postgres_url) as other:
        acme, theirs = hf.tenant("acme"), other.tenant("acme")
        session = acme.sessions.create()
        run = acme.leases.claim("me", run_id=acme.runs.start(session.id).id)
        assert run is not None
        advance = message_log.queries.advance

        async def deleted_before(connection: Any, params: Any) -> Any:
            theirs.sessions.delete(session.id)
            return await type(advance).all_of_each(advance, connection, params)

        monkeypatch.setattr(advance, "all_of_each", deleted_before)
        with pytest.raises(NotFound):
            acme.runs.step(
                run.id, epoch=run.epoch, iteration=1, state={}, messages=[NewMessage(role="user", content="hello")]
            )
        monkeypatch.undo()
        theirs.sessions.restore(session.id)
        assert theirs.runs.get(run.id).iteration == 0


def test_an_unopened_holdfast_asks_the_first_joined_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def noting(connection: Any) -> bool:
        asked.append(connection)
        return await is_distributed(connection)

    monkeypatch.setattr(joined, "is_distributed", noting)

    async def main() -> None:
        raw = await asyncpg.connect(postgres_url)
        try:
            hf = AsyncHoldfast(postgres_url)
            for name in ("acme", "other"):
                session = await hf.tenant(name).join(raw).sessions.create()
                await hf.tenant(name).join(raw).messages.append(session.id, role="user", content="x")
        finally:
            await raw.close()

    asyncio.run(main())
    assert len(asked) == 1


# What a coordinator reports about a worker

FAILING = """
CREATE FUNCTION worker_lost() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.tenant_id = 'acme' THEN
        RAISE EXCEPTION 'failure on connection marked as essential: 10.0.0.2:5432' USING ERRCODE = '{state}';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER worker_lost AFTER INSERT ON messages DEFERRABLE INITIALLY {when}
FOR EACH ROW EXECUTE FUNCTION worker_lost()"""
WHEN = [("IMMEDIATE", Unavailable), ("DEFERRED", OutcomeUnknown)]


@pytest.mark.parametrize("state", ["08006", "58030", "57P01", "XX000"])
@pytest.mark.parametrize(("when", "kind"), WHEN, ids=["before the commit", "on the commit"])
@pytest.mark.usefixtures("distributed")
def test_a_failed_worker_keeps_the_connection_and_is_reported(
    state: str, when: str, kind: type[Exception], postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(FAILING.format(state=state, when=when).encode())

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            waiting = [acme.messages.append(session.id, role="user", content=str(n)) for n in range(3)]
            for failure in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(failure, kind), failure
                assert isinstance(failure, OutcomeUnknown) is (kind is OutcomeUnknown)
            assert (await acme.sessions.get(session.id)).message_count == 0

    asyncio.run(main())
    with Holdfast(postgres_url, pool=PoolOptions(min_connections=1, max_connections=1)) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        before = _own_pid(hf)
        with pytest.raises(kind):
            acme.messages.append(session.id, role="user", content="x")
        assert _own_pid(hf) == before


@pytest.mark.parametrize(("when", "kind"), WHEN, ids=["before the commit", "on the commit"])
@pytest.mark.usefixtures("distributed")
def test_a_failed_worker_affects_only_its_own_tenants(when: str, kind: type[Exception], postgres_url: str) -> None:
    """Appends of both tenants wait together, several times; those of the other tenant are all there."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(FAILING.format(state="08006", when=when).encode())

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            tenants = [hf.tenant(name) for name in ("acme", "globex")]
            sessions = [await tenant.sessions.create() for tenant in tenants]
            for _ in range(3):
                appends = [
                    tenant.messages.append(session.id, role="user", content="x")
                    for _ in range(5)
                    for tenant, session in zip(tenants, sessions, strict=True)
                ]
                answers = await soon(asyncio.gather(*appends, return_exceptions=True))
                assert {type(answer) for answer in answers[1::2]} == {Message}
                assert all(isinstance(answer, kind) for answer in answers[::2])
            assert (await tenants[1].sessions.get(sessions[1].id)).message_count == 15

    asyncio.run(main())


def _own_pid(hf: Holdfast) -> int:
    """The process that serves the handle's one connection."""
    ((pid,),) = step(hf._engine.read(lambda connection: connection.fetch("SELECT pg_backend_pid()", ())))
    return int(pid)
