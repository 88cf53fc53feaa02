"""Callers: each opens its own connection, as users of its driver do, and begins a transaction for Holdfast to join."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import apsw

Rows = Sequence[Sequence[Any]]


class Sqlite3Caller:
    """A caller with the standard library's ``sqlite3``, unconfigured."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, sql: str) -> Rows:
        return list(self.connection.execute(sql).fetchall())

    async def begin(self) -> None:
        self.connection.execute("BEGIN")

    async def commit(self) -> None:
        self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        self.connection.execute("ROLLBACK")


@asynccontextmanager
async def sqlite3_caller(url: str) -> AsyncIterator[Sqlite3Caller]:
    """``sqlite3.Connection``, with default settings: foreign keys are not enforced."""
    import sqlite3

    connection = sqlite3.connect(url)
    try:
        caller = Sqlite3Caller(connection)
        await caller.begin()
        yield caller
    finally:
        connection.close()


@asynccontextmanager
async def apsw_caller(url: str) -> AsyncIterator[Sqlite3Caller]:
    """``apsw.Connection``."""
    connection = apsw.Connection(url)
    try:
        caller = Sqlite3Caller(connection)
        await caller.begin()
        yield caller
    finally:
        connection.close()


class AiosqliteCaller(Sqlite3Caller):
    """The asynchronous counterpart of ``Sqlite3Caller``."""

    async def execute(self, sql: str) -> Rows:
        async with self.connection.execute(sql) as cursor:
            return list(await cursor.fetchall())

    async def begin(self) -> None:
        await self.connection.execute("BEGIN")

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


@asynccontextmanager
async def aiosqlite_caller(url: str) -> AsyncIterator[AiosqliteCaller]:
    """``aiosqlite.Connection``."""
    import aiosqlite

    async with aiosqlite.connect(url) as connection:
        caller = AiosqliteCaller(connection)
        await caller.begin()
        yield caller


class PsycopgCaller:
    """A caller with psycopg, which begins a transaction implicitly with the first statement."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, sql: str) -> Rows:
        cursor = self.connection.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        return

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


@asynccontextmanager
async def psycopg_caller(url: str) -> AsyncIterator[PsycopgCaller]:
    """``psycopg.Connection``."""
    import psycopg

    with psycopg.connect(url) as connection:
        yield PsycopgCaller(connection)


class AsyncPsycopgCaller(PsycopgCaller):
    """The same, awaited."""

    async def execute(self, sql: str) -> Rows:
        cursor = await self.connection.execute(sql)
        return list(await cursor.fetchall()) if cursor.description else []

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


@asynccontextmanager
async def async_psycopg_caller(url: str) -> AsyncIterator[AsyncPsycopgCaller]:
    """``psycopg.AsyncConnection``."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield AsyncPsycopgCaller(connection)


class AsyncpgCaller:
    """A caller with asyncpg, whose transactions are objects."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, sql: str) -> Rows:
        return list(await self.connection.fetch(sql))

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


@asynccontextmanager
async def asyncpg_caller(url: str) -> AsyncIterator[AsyncpgCaller]:
    """``asyncpg.Connection``."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        caller = AsyncpgCaller(connection)
        await caller.begin()
        yield caller
    finally:
        await connection.close()


class SqlalchemyCaller:
    """A caller with SQLAlchemy's Connection or Session, which begin, commit and roll back in the same way."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, sql: str) -> Rows:
        connection = self.connection if hasattr(self.connection, "exec_driver_sql") else self.connection.connection()
        result = connection.exec_driver_sql(sql)
        return list(result.fetchall()) if result.returns_rows else []

    async def begin(self) -> None:
        self.connection.begin()

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[SqlalchemyCaller]:
    """``sqlalchemy.Connection``."""
    from sqlalchemy import create_engine

    engine = create_engine(_sqlalchemy_url(url, "", "+psycopg"))
    try:
        with engine.connect() as connection:
            caller = SqlalchemyCaller(connection)
            await caller.begin()
            yield caller
    finally:
        engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[SqlalchemyCaller]:
    """``sqlalchemy.orm.Session``."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(_sqlalchemy_url(url, "", "+psycopg"))
    try:
        with Session(engine) as session:
            caller = SqlalchemyCaller(session)
            await caller.begin()
            yield caller
    finally:
        engine.dispose()


class AsyncSqlalchemyCaller(SqlalchemyCaller):
    """The same, awaited."""

    async def execute(self, sql: str) -> Rows:
        theirs = self.connection
        connection = theirs if hasattr(theirs, "exec_driver_sql") else await theirs.connection()
        result = await connection.exec_driver_sql(sql)
        return list(result.fetchall()) if result.returns_rows else []

    async def begin(self) -> None:
        await self.connection.begin()

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[AsyncSqlalchemyCaller]:
    """``sqlalchemy.ext.asyncio.AsyncConnection``."""
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(_sqlalchemy_url(url, "+aiosqlite", "+asyncpg"))
    try:
        async with engine.connect() as connection:
            caller = AsyncSqlalchemyCaller(connection)
            await caller.begin()
            yield caller
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[AsyncSqlalchemyCaller]:
    """``sqlalchemy.ext.asyncio.AsyncSession``."""
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(_sqlalchemy_url(url, "+aiosqlite", "+asyncpg"))
    try:
        async with AsyncSession(engine) as session:
            caller = AsyncSqlalchemyCaller(session)
            await caller.begin()
            yield caller
    finally:
        await engine.dispose()


def _sqlalchemy_url(url: str, sqlite: str, postgres: str) -> str:
    if url.startswith("postgresql://"):
        return url.replace("postgresql://", f"postgresql{postgres}://", 1)
    return f"sqlite{sqlite}:///{url}"
