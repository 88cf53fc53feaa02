"""Connections that cannot be joined are rejected with advice, and driver errors become errors of Holdfast."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiosqlite
import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.ext.asyncio.exc import AsyncContextNotStarted
from sqlalchemy.orm import Session

from holdfast import AsyncHoldfast, Holdfast
from holdfast.engines.postgres.errors import FailedTransaction
from holdfast.engines.sqlite.errors import Busy
from holdfast.errors import Closed, InvalidInput, ReadOnly, SchemaMismatch, Unavailable
from tests.drivers.callers import LEGS, POSTGRES_LEGS, SQLITE_LEGS, Leg, done, leg
from tests.errors import raises

ALL = pytest.mark.parametrize("leg", [pytest.param(item, id=item.name) for item in LEGS])
ONE_OF_EACH = [*SQLITE_LEGS[:1], leg("apsw"), leg("aiosqlite"), leg("SQLAlchemy Session on sqlite3"), *POSTGRES_LEGS]


@pytest.mark.parametrize("thing", [None, "agents.db", 42, object(), sqlite3])
def test_an_unsupported_connection_is_refused_with_the_supported_types(thing: object) -> None:
    with Holdfast(":memory:") as hf, raises(InvalidInput, field="connection") as caught:
        hf.tenant("acme").join(thing)
    for kind in ("psycopg.Connection", "sqlite3.Connection", "apsw.Connection", "sqlalchemy.orm.session.Session"):
        assert kind in str(caught.value)


def test_a_cursor_or_an_engine_is_not_a_connection(sqlite_path: str) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_path}")
    connection = sqlite3.connect(sqlite_path)
    with Holdfast(":memory:") as hf:
        for thing in (engine, connection.cursor()):
            with raises(InvalidInput, field="connection") as caught:
                hf.tenant("acme").join(thing)
            assert type(thing).__name__ in str(caught.value)
    connection.close()
    engine.dispose()


@ALL
def test_a_blocking_connection_in_asynchronous_code_is_rejected_and_vice_versa(
    leg: Leg, open_stage: Callable[[Leg], Any]
) -> None:
    """Join a blocking connection in asynchronous code, and an asynchronous one in blocking code."""

    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            if leg.asynchronous:
                with (
                    Holdfast(":memory:") as other,
                    raises(InvalidInput, field="style"),
                ):
                    other.tenant("acme").join(caller.raw)
            else:
                async with AsyncHoldfast(":memory:") as other:
                    with raises(InvalidInput, field="style"):
                        other.tenant("acme").join(caller.raw)

    asyncio.run(run())


@ALL
def test_a_connection_to_the_other_engine_is_refused(
    leg: Leg, open_stage: Callable[[Leg], Any], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_with_table" if leg.engine == "sqlite" else "sqlite_path")

    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            kind = AsyncHoldfast if leg.asynchronous else Holdfast
            other: Any = kind(url)
            await done(other.open() if leg.asynchronous else None)
            try:
                with raises(InvalidInput, field="dialect"):
                    other.tenant("acme").join(caller.raw)
            finally:
                await done(other.close())

    asyncio.run(run())


@pytest.mark.parametrize("leg", [pytest.param(item, id=item.name) for item in ONE_OF_EACH])
def test_a_database_without_the_schema_raises(
    leg: Leg, tmp_path: Path, postgres_server: Any, request: pytest.FixtureRequest
) -> None:
    bare = str(tmp_path / "bare.db") if leg.engine == "sqlite" else request.getfixturevalue("bare_postgres_url")
    ours = str(tmp_path / "ours.db") if leg.engine == "sqlite" else request.getfixturevalue("postgres_with_table")

    async def run() -> None:
        kind = AsyncHoldfast if leg.asynchronous else Holdfast
        hf: Any = kind(ours)
        await done(hf.open() if leg.asynchronous else None)
        try:
            async with leg.connect(bare) as caller:
                acme = hf.tenant("acme").join(caller.raw)
                await caller.begin()
                await caller.execute("CREATE TABLE callers_own (label TEXT NOT NULL)")
                await caller.add("before")
                with pytest.raises(SchemaMismatch, match=r"sessions|tenants"):
                    await done(acme.sessions.create(key="k"))
                await caller.commit()
                assert await caller.labels() == ["before"]
        finally:
            await done(hf.close())

    asyncio.run(run())


@ALL
def test_a_closed_connection_raises_a_holdfast_error(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            async with leg.connect(stage.url) as caller:
                acme = stage.tenant().join(caller.raw)
                await done(acme.sessions.list())
                await done(caller.raw.close())
                if "Session" in leg.name:  # a closed Session of SQLAlchemy can be used again
                    assert await done(acme.sessions.list()) == []
                    return
                for call in (lambda: acme.sessions.create(key="k"), acme.sessions.list):
                    with pytest.raises((Closed, Unavailable)):
                        await done(call())

    asyncio.run(run())


def test_a_locked_database_raises_unavailable_and_leaves_no_transaction_open(sqlite_path: str) -> None:
    holder = sqlite3.connect(sqlite_path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Holdfast(sqlite_path, sqlite="stdlib") as hf:
        for level in ("", "IMMEDIATE", "EXCLUSIVE", None):
            caller = sqlite3.connect(sqlite_path, timeout=0, isolation_level=level)  # type: ignore[arg-type]
            with raises(Busy):
                hf.tenant("acme").join(caller).sessions.create(key="k")
            assert not caller.in_transaction
            caller.close()
        assert hf.tenant("acme").sessions.count() == 0
    holder.close()


@pytest.mark.parametrize("kind", ["sqlite3", "apsw", "aiosqlite"])
def test_a_failed_commit_leaves_no_transaction_open(kind: str, sqlite_path: str) -> None:
    """With a rollback journal, a reader blocks the commit. An open transaction would contain all later writes."""
    # Two copies of SQLite in one process do not see each other's locks, so the reader is of the writer's kind.
    reader: Any = apsw.Connection(sqlite_path) if kind == "apsw" else sqlite3.connect(sqlite_path, isolation_level=None)
    reader.execute("PRAGMA journal_mode = DELETE").fetchall()

    async def run(acme: Any) -> None:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM sessions").fetchall()
        with pytest.raises(Unavailable):
            await done(acme.sessions.create(key="k"))
        reader.execute("COMMIT")
        await done(acme.sessions.create(key="k"))
        assert reader.execute("SELECT COUNT(*) FROM sessions").fetchall() == [(1,)]

    async def joined() -> None:
        if kind == "aiosqlite":
            async with AsyncHoldfast(":memory:") as hf:
                async with aiosqlite.connect(sqlite_path, isolation_level=None, timeout=0) as caller:
                    await run(hf.tenant("acme").join(caller))
            return
        patience = {"timeout": 0, "isolation_level": None}
        blocking: Any = apsw.Connection(sqlite_path) if kind == "apsw" else sqlite3.connect(sqlite_path, **patience)
        with Holdfast(":memory:") as hf:
            await run(hf.tenant("acme").join(blocking))
        blocking.close()

    asyncio.run(joined())
    reader.close()


def test_a_read_only_connection_can_read_and_not_write(sqlite_path: str) -> None:
    caller = sqlite3.connect(f"file:{sqlite_path}?mode=ro", uri=True)
    with Holdfast(sqlite_path, sqlite="stdlib") as hf:
        acme = hf.tenant("acme").join(caller)
        with pytest.raises(ReadOnly):
            acme.sessions.create(key="k")
        assert acme.sessions.list() == []
    caller.close()


def test_a_connection_of_another_thread_is_rejected_with_the_message_of_sqlite3(sqlite_path: str) -> None:
    caller = sqlite3.connect(sqlite_path)
    caught: list[BaseException] = []

    def use() -> None:
        try:
            hf.tenant("acme").join(caller).sessions.create(key="k")
        except InvalidInput as error:
            caught.append(error)

    with Holdfast(sqlite_path, sqlite="stdlib") as hf:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert "can only be used in that same thread" in str(caught[0])
    caller.close()


def test_aiosqlite_that_was_not_awaited_is_refused(sqlite_path: str) -> None:
    async def run() -> None:
        async with AsyncHoldfast(sqlite_path, sqlite="stdlib") as hf:
            caller = aiosqlite.connect(sqlite_path)
            with raises(Closed):
                await hf.tenant("acme").join(caller).sessions.create(key="k")

    asyncio.run(run())


class TestSqlalchemy:
    """Invalid uses of SQLAlchemy."""

    def test_an_unbound_session_raises(self) -> None:
        with Holdfast(":memory:") as hf, Session() as session, raises(InvalidInput, field="bind"):
            hf.tenant("acme").join(session)

    def test_a_connection_that_was_not_awaited_is_refused(self, sqlite_path: str) -> None:
        async def run() -> None:
            engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
            async with AsyncHoldfast(sqlite_path, sqlite="stdlib") as hf:
                with raises(InvalidInput, field="connection") as caught:
                    hf.tenant("acme").join(engine.connect())
                assert isinstance(caught.value.__cause__, AsyncContextNotStarted)
            await engine.dispose()

        asyncio.run(run())

    def test_another_database_is_refused(self) -> None:
        engine = sqlalchemy.create_mock_engine("mysql://", lambda *args: None)
        with Holdfast(":memory:") as hf, raises(InvalidInput, field="dialect"):
            hf.tenant("acme").join(Session(bind=engine))  # type: ignore[arg-type]

    def test_a_stopped_server_raises_unavailable(self, sqlite_path: str, tmp_path: Path) -> None:
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/no/such/folder.db")
        with Holdfast(sqlite_path, sqlite="stdlib") as hf, Session(engine) as session:
            with raises(Unavailable) as caught:
                hf.tenant("acme").join(session).sessions.create(key="k")
            assert isinstance(caught.value.__cause__, sqlalchemy.exc.OperationalError)
        engine.dispose()

    def test_a_session_with_a_failed_transaction_raises(self, sqlite_path: str) -> None:
        engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_path}")
        with Holdfast(sqlite_path, sqlite="stdlib") as hf, Session(engine) as session:
            session.begin()
            with pytest.raises(sqlalchemy.exc.OperationalError), session.begin_nested():
                session.execute(sqlalchemy.text("SELECT * FROM nothing_of_that_name"))
            hf.tenant("acme").join(session).sessions.create(key="fine")
            session.rollback()
            assert hf.tenant("acme").sessions.count() == 0
        engine.dispose()

    def test_the_error_for_an_unsupported_driver_of_sqlalchemy_names_it(self) -> None:
        class Odd:
            """A driver's connection of an unknown type."""

            def __init__(self) -> None:
                self._inner = sqlite3.connect(":memory:")

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

        engine = sqlalchemy.create_engine("sqlite://", creator=Odd)
        with Holdfast(":memory:") as hf, engine.connect() as connection:
            with raises(InvalidInput, field="connection") as caught:
                hf.tenant("acme").join(connection).sessions.create(key="k")
            assert "Odd" in str(caught.value)
        engine.dispose()

    def test_an_unbound_async_session_raises(self) -> None:
        async def run() -> None:
            async with AsyncHoldfast(":memory:") as hf, AsyncSession() as session:
                with raises(InvalidInput, field="bind"):
                    hf.tenant("acme").join(session)

        asyncio.run(run())


def test_an_aborted_postgres_transaction_raises_failed_transaction(postgres_with_table: str) -> None:
    with Holdfast(postgres_with_table) as hf, psycopg.connect(postgres_with_table) as caller:
        with pytest.raises(psycopg.Error):
            caller.execute("SELECT 1 / 0")
        with raises(FailedTransaction):
            hf.tenant("acme").join(caller).sessions.create(key="k")
        caller.rollback()
        hf.tenant("acme").join(caller).sessions.create(key="k")
        caller.commit()
        assert hf.tenant("acme").sessions.count() == 1


@pytest.mark.parametrize("name", ["psycopg", "psycopg async"])
def test_a_connection_in_pipeline_mode_is_refused_and_nothing_is_queued(
    name: str, open_stage: Callable[[Leg], Any]
) -> None:
    """In pipeline mode, statements are only queued and their results appear empty."""

    async def run() -> None:
        async with open_stage(leg(name)) as stage:
            caller = await stage.connect()
            joined = stage.tenant("acme").join(caller.raw)
            session = await done(joined.sessions.create())
            async with AsyncExitStack() as stack:
                pipeline = caller.raw.pipeline()
                await stack.enter_async_context(pipeline) if leg(name).asynchronous else stack.enter_context(pipeline)
                for call in (
                    lambda: joined.sessions.get(session.id),
                    lambda: joined.messages.append(session.id, role="user", content="x"),
                ):
                    with raises(InvalidInput, field="pipeline"):
                        await done(call())
            assert (await done(joined.sessions.get(session.id))).message_count == 0
            assert (await done(joined.messages.append(session.id, role="user", content="x"))).seq == 1
            await caller.rollback()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["apsw", "sqlite3"])
def test_a_write_in_an_outdated_read_transaction_must_be_restarted(name: str, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg(name)) as stage:
            acme = stage.tenant("acme")
            session = acme.sessions.create()
            caller = await stage.connect()
            await caller.execute("BEGIN")
            joined = acme.join(caller.raw)
            assert joined.sessions.get(session.id).message_count == 0
            acme.messages.append(session.id, role="user", content="first")
            with pytest.raises(Unavailable, match="BEGIN IMMEDIATE") as error:
                joined.messages.append(session.id, role="user", content="x")
            assert "retry is safe" not in str(error.value)
            await caller.execute("ROLLBACK")

    asyncio.run(run())


@pytest.mark.parametrize("name", ["psycopg", "asyncpg"])
def test_the_error_for_a_failed_transaction_advises_a_rollback(name: str, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg(name)) as stage:
            session = await done(stage.tenant("acme").sessions.create())
            caller = await stage.connect()
            await caller.begin()
            joined = stage.tenant("acme").join(caller.raw)
            with pytest.raises((psycopg.Error, asyncpg.PostgresError)):
                await caller.execute("SELECT 1 / 0")
            with raises(FailedTransaction):
                await done(joined.sessions.get(session.id))
            await caller.rollback()

    asyncio.run(run())
