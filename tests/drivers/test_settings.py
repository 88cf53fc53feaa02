"""Settings of the caller's connection do not affect Holdfast, and Holdfast does not change them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import aiosqlite
import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import AsyncHoldfast, Holdfast, NewMessage, column, meta
from holdfast.errors import SchemaMismatch
from tests.drivers.callers import done, sqlalchemy_url
from tests.errors import raises

META = {"plan": "pro", "n": 1, "deep": {"list": [1, 2.5, None, True, "ü"]}}
BLOCKS = [{"type": "text", "text": "Hello"}, {"type": "tool_use", "id": "t", "name": "search", "input": {"q": "x"}}]


async def exercise(acme: Any) -> None:
    """Write and read every type of column through a joined handle, by every kind of call."""
    session = await done(acme.sessions.create(key="k", user="ada", agent="helper", metadata=META))
    first = await done(acme.messages.append(session.id, role="user", content=BLOCKS, metadata=META, token_count=7))
    await done(acme.messages.append_many(session.id, [NewMessage(role="assistant", content=BLOCKS, token_count=0)] * 3))
    assert (
        await done(acme.messages.append(session.id, role="user", content=BLOCKS, metadata=META, id=first.id))
    ) == first
    await done(acme.messages.update(first.id, metadata={"seen": True}, is_preserved=True))
    actual = await done(acme.sessions.get(session.id))
    assert (actual.key, actual.metadata, actual.message_count, actual.token_count) == ("k", META, 4, 7)
    assert actual.created_at.utcoffset() is not None
    assert actual.created_at == session.created_at
    history = await done(acme.messages.list(session.id))
    assert [message.content for message in history] == [BLOCKS] * 4
    assert [message.seq for message in history] == [1, 2, 3, 4]
    assert (history[0].metadata, history[0].is_preserved, history[0].is_summary) == ({"seen": True}, True, False)
    assert type(history[0].id) is str
    assert type(history[0].is_preserved) is bool
    where = [
        meta("plan").eq("pro"),
        meta("n").ge(1),
        column("created_at").le(session.created_at),
        column("id").eq(session.id),
    ]
    assert [item.id for item in await done(acme.sessions.list(user="ada", where=where))] == [session.id]
    await done(acme.messages.delete(session.id, [history[1].id]))
    upserted = await done(acme.sessions.upsert("k", user="ada", metadata={"plan": "free"}))
    assert (upserted.id, upserted.metadata) == (session.id, {"plan": "free"})
    await done(acme.sessions.delete(session.id))
    assert (await done(acme.sessions.restore(session.id))).key == "k"


def _dict_factory(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip([item[0] for item in cursor.description], row, strict=True))


FACTORIES: list[tuple[Any, Any]] = [
    (None, str),
    (sqlite3.Row, str),
    (_dict_factory, bytes),
    (lambda cursor, row: None, bytearray),
    (sqlite3.Row, lambda raw: raw.decode("latin-1").upper()),
]


class TestSqlite3:
    @pytest.mark.parametrize(("row_factory", "text_factory"), FACTORIES)
    def test_factories_of_the_caller_are_ignored_and_unchanged(
        self, row_factory: Any, text_factory: Any, sqlite_path: str
    ) -> None:
        caller = sqlite3.connect(sqlite_path)
        caller.row_factory, caller.text_factory = row_factory, text_factory
        with Holdfast(":memory:") as hf:
            asyncio.run(exercise(hf.tenant("acme").join(caller)))
        assert caller.row_factory is row_factory
        assert caller.text_factory is text_factory
        caller.commit()
        caller.close()

    def test_factories_of_the_caller_are_unchanged_after_an_error(self, sqlite_path: str) -> None:
        caller = sqlite3.connect(":memory:")
        caller.text_factory = bytes
        with Holdfast(":memory:") as hf, raises(SchemaMismatch):
            hf.tenant("acme").join(caller).sessions.list()
        assert caller.text_factory is bytes
        caller.close()

    def test_types_declared_in_the_schema_are_not_converted(self, sqlite_path: str) -> None:
        caller = sqlite3.connect(sqlite_path, detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
        with Holdfast(":memory:") as hf:
            asyncio.run(exercise(hf.tenant("acme").join(caller)))
        caller.close()

    def test_a_subclass_of_a_connection_can_be_joined(self, sqlite_path: str) -> None:
        class Mine(sqlite3.Connection):
            def cursor(self, *args: Any, **kwargs: Any) -> Any:
                raise AssertionError("this cursor is the caller's own business")

        caller = sqlite3.connect(sqlite_path, factory=Mine)
        with Holdfast(":memory:") as hf:
            asyncio.run(exercise(hf.tenant("acme").join(caller)))
        caller.close()

    def test_foreign_keys_may_be_on_or_off(self, sqlite_path: str) -> None:
        for setting in ("ON", "OFF"):
            caller = sqlite3.connect(sqlite_path)
            caller.execute(f"PRAGMA foreign_keys = {setting}")
            with Holdfast(":memory:") as hf:
                acme = hf.tenant(f"acme {setting}").join(caller)
                session = acme.sessions.create(key="k")
                acme.messages.append(session.id, role="user", content="x")
                acme.sessions.purge(session.id)
                assert caller.execute("SELECT COUNT(*) FROM messages").fetchone() == (0,)
            caller.close()


class TestAiosqlite:
    @pytest.mark.parametrize(("row_factory", "text_factory"), FACTORIES)
    def test_factories_of_the_caller_are_ignored_and_unchanged(
        self, row_factory: Any, text_factory: Any, sqlite_path: str
    ) -> None:
        async def run() -> None:
            async with AsyncHoldfast(":memory:") as hf, aiosqlite.connect(sqlite_path) as caller:
                caller.row_factory, caller.text_factory = row_factory, text_factory
                await exercise(hf.tenant("acme").join(caller))
                assert caller.row_factory is row_factory
                assert caller.text_factory is text_factory
                await caller.commit()

        asyncio.run(run())


class TestApsw:
    def test_tracers_of_the_caller_are_ignored_and_unchanged(self, sqlite_path: str) -> None:
        caller = apsw.Connection(sqlite_path)
        caller.row_trace = lambda cursor, row: {"traced": row}
        seen: list[str] = []
        caller.exec_trace = lambda cursor, sql, args: not seen.append(sql)
        with Holdfast(":memory:") as hf:
            asyncio.run(exercise(hf.tenant("acme").join(caller)))
        assert caller.execute("SELECT 1").fetchall() == [{"traced": (1,)}]
        assert seen
        caller.close()


class TestPsycopg:
    def test_row_factories_and_loaders_of_the_caller_are_ignored(self, postgres_with_table: str) -> None:
        with Holdfast(postgres_with_table) as hf, psycopg.connect(postgres_with_table, row_factory=dict_row) as caller:
            set_json_loads(lambda data: pytest.fail("our JSON was decoded by the caller"), caller)
            set_json_dumps(lambda value: pytest.fail("our JSON was encoded by the caller"), caller)
            caller.execute("SET timezone = 'Asia/Kathmandu'")
            asyncio.run(exercise(hf.tenant("acme").join(caller)))
            caller.commit()
            assert caller.execute("SELECT COUNT(*) AS n FROM sessions").fetchone() == {"n": 1}

    def test_row_factories_of_an_asynchronous_connection_are_ignored(self, postgres_with_table: str) -> None:
        async def run() -> None:
            async with AsyncHoldfast(postgres_with_table) as hf:
                async with await psycopg.AsyncConnection.connect(postgres_with_table, row_factory=dict_row) as caller:
                    set_json_loads(lambda data: pytest.fail("our JSON was decoded by the caller"), caller)
                    await exercise(hf.tenant("acme").join(caller))
                    await caller.commit()

        asyncio.run(run())


def _no(*args: Any) -> Any:
    raise AssertionError("our value went through the caller's codec")


CODECS: dict[str, dict[str, tuple[Callable[..., Any], Callable[..., Any], str]]] = {
    "json as objects": {"jsonb": (json.dumps, json.loads, "text")},
    "uuid as text": {"uuid": (str, str, "text")},
    "uuid as hex": {"uuid": (lambda value: value.hex, lambda data: uuid.UUID(data).hex, "text")},
    "nothing passes": {name: (_no, lambda data: None, "text") for name in ("jsonb", "json", "uuid")},
}


class TestAsyncpg:
    @pytest.mark.parametrize("codecs", CODECS)
    def test_codecs_of_the_caller_are_ignored(self, codecs: str, postgres_with_table: str) -> None:
        async def run() -> None:
            async with AsyncHoldfast(postgres_with_table) as hf:
                caller = await asyncpg.connect(postgres_with_table)
                for name, (encoder, decoder, form) in CODECS[codecs].items():
                    await caller.set_type_codec(
                        name, encoder=encoder, decoder=decoder, schema="pg_catalog", format=form
                    )
                try:
                    async with caller.transaction():
                        await exercise(hf.tenant("acme").join(caller))
                    assert await caller.fetchval("SELECT metadata::text FROM sessions") == '{"plan": "free"}'
                    kinds = await caller.fetchval("SELECT jsonb_typeof(content) FROM messages LIMIT 1")
                    assert kinds == "array"
                finally:
                    await caller.close()

        asyncio.run(run())

    def test_a_text_codec_for_times_is_ignored(self, postgres_with_table: str) -> None:
        async def run() -> None:
            async with AsyncHoldfast(postgres_with_table) as hf:
                caller = await asyncpg.connect(postgres_with_table, server_settings={"timezone": "Asia/Kathmandu"})
                try:
                    async with caller.transaction():
                        await exercise(hf.tenant("acme").join(caller))
                finally:
                    await caller.close()

        asyncio.run(run())


class TestSqlalchemy:
    def test_sqlalchemys_json_serializer_is_ignored(self, postgres_with_table: str) -> None:
        async def run() -> None:
            for scheme in ("postgresql+asyncpg", "postgresql+psycopg"):
                engine = create_async_engine(
                    sqlalchemy_url(scheme, postgres_with_table), json_serializer=_no, json_deserializer=_no
                )
                async with AsyncHoldfast(postgres_with_table) as hf, engine.connect() as caller:
                    await exercise(hf.tenant(scheme).join(caller))
                    await caller.commit()
                await engine.dispose()

        asyncio.run(run())

    def test_with_autocommit_each_write_is_committed_immediately(self, postgres_with_table: str) -> None:
        engine = sqlalchemy.create_engine(
            sqlalchemy_url("postgresql+psycopg", postgres_with_table), isolation_level="AUTOCOMMIT"
        )
        with Holdfast(postgres_with_table) as hf, engine.connect() as caller:
            hf.tenant("acme").join(caller).sessions.create(key="k")
            assert hf.tenant("acme").sessions.count() == 1
            caller.rollback()
            assert hf.tenant("acme").sessions.count() == 1
        engine.dispose()

    def test_the_recipe_for_real_transactions_on_sqlite_works(self, sqlite_path: str) -> None:
        """SQLAlchemy's documentation tells users of sqlite3 to switch its transactions off and to emit BEGIN themselves."""
        engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_path}")

        @sqlalchemy.event.listens_for(engine, "connect")
        def connect(raw: sqlite3.Connection, record: Any) -> None:
            raw.isolation_level = None

        @sqlalchemy.event.listens_for(engine, "begin")
        def begin(connection: sqlalchemy.Connection) -> None:
            connection.exec_driver_sql("BEGIN")

        with Holdfast(sqlite_path, sqlite="stdlib") as hf:
            for ending, expected in (("rollback", 0), ("commit", 1)):
                with engine.connect() as caller:
                    hf.tenant("acme").join(caller).sessions.create(key=ending)
                    getattr(caller, ending)()
                assert hf.tenant("acme").sessions.count() == expected
        engine.dispose()
