"""Programs that bring their own connection: each driver in each of its transaction modes, behind one small interface.

A ``Caller`` is what a user of the driver would write by hand: begin, commit, roll back, a savepoint, a statement of its own.
The tests say ``await`` to all of them; a blocking one simply answers at once.
"""

from __future__ import annotations

import inspect
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import apsw
import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

OWN_TABLE = "CREATE TABLE callers_own (label TEXT NOT NULL)"


async def done(value: Any) -> Any:
    """Return the result of a call, whether it blocks or suspends."""
    return await value if inspect.isawaitable(value) else value


class Caller:
    """A connection of the caller's. Its transaction begins by itself, or with ``begin``."""

    needs_transaction = True
    """Whether the connection opens a transaction without being told."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def execute(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = await done(self.raw.execute(sql))
        rows = await done(cursor.fetchall()) if getattr(cursor, "description", True) else []
        return [tuple(row) for row in rows]

    async def begin(self) -> None:
        """Nothing to do where the connection does it."""

    async def commit(self) -> None:
        await done(self.raw.commit())

    async def rollback(self) -> None:
        await done(self.raw.rollback())

    async def nested(self) -> Callable[[], Any]:
        """Set a savepoint; return a function that rolls back to it."""
        await self.execute("SAVEPOINT callers_own")
        return lambda: self.execute("ROLLBACK TO SAVEPOINT callers_own")

    async def add(self, label: str) -> None:
        """Write a row of the caller's own."""
        await self.execute(f"INSERT INTO callers_own (label) VALUES ('{label}')")

    async def labels(self) -> list[str]:
        """Return the caller's own rows, as this connection sees them."""
        return [row[0] for row in await self.execute("SELECT label FROM callers_own ORDER BY label")]


class Explicit(Caller):
    """A connection that opens no transaction by itself."""

    needs_transaction = False

    async def begin(self) -> None:
        await self.execute("BEGIN")

    async def commit(self) -> None:
        await self.execute("COMMIT")

    async def rollback(self) -> None:
        await self.execute("ROLLBACK")


class Apsw(Explicit):
    async def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self.raw.execute(sql).fetchall())


class Asyncpg(Caller):
    needs_transaction = False
    _block: Any = None

    async def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.raw.fetch(sql)]

    async def begin(self) -> None:
        self._block = self.raw.transaction()
        await self._block.start()

    async def commit(self) -> None:
        await self._block.commit()

    async def rollback(self) -> None:
        await self._block.rollback()

    async def nested(self) -> Callable[[], Any]:
        inner = self.raw.transaction()
        await inner.start()
        return inner.rollback


class Sqlalchemy(Caller):
    """Any of the four; ``begin`` is left to SQLAlchemy, which begins with the first statement."""

    async def execute(self, sql: str) -> list[tuple[Any, ...]]:
        result = await done(self.raw.execute(sqlalchemy.text(sql)))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def nested(self) -> Callable[[], Any]:
        inner = await done(self.raw.begin_nested())
        return inner.rollback


class Begun(Sqlalchemy):
    """SQLAlchemy told to begin, which is not the same as the driver having begun."""

    _block: Any = None

    async def begin(self) -> None:
        self._block = await done(self.raw.begin())

    async def commit(self) -> None:
        await done(self._block.commit())

    async def rollback(self) -> None:
        await done(self._block.rollback())


class Leg(NamedTuple):
    """A driver in one of its modes."""

    name: str
    engine: str
    connect: Callable[[str], Any]
    """From an address to an asynchronous context manager of a ``Caller``."""
    asynchronous: bool = False

    @property
    def library(self) -> Any:
        """The SQLite that Holdfast must use to share a file with this driver."""
        return "apsw" if self.name == "apsw" else "stdlib"


def _sqlite3(kind: type[Caller], **options: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connect(path: str) -> AsyncIterator[Caller]:
        raw = sqlite3.connect(path, check_same_thread=False, **options)
        try:
            yield kind(raw)
        finally:
            raw.close()

    return connect


def _aiosqlite(kind: type[Caller], **options: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connect(path: str) -> AsyncIterator[Caller]:
        async with aiosqlite.connect(path, **options) as raw:
            yield kind(raw)

    return connect


@asynccontextmanager
async def _apsw(path: str) -> AsyncIterator[Caller]:
    raw = apsw.Connection(path)
    raw.set_busy_timeout(5_000)
    try:
        yield Apsw(raw)
    finally:
        raw.close()


def _psycopg(kind: type[Caller], **options: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Caller]:
        raw = psycopg.connect(url, **options)
        try:
            yield kind(raw)
        finally:
            raw.close()

    return connect


def _psycopg_async(kind: type[Caller], **options: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Caller]:
        raw = await psycopg.AsyncConnection.connect(url, **options)
        try:
            yield kind(raw)
        finally:
            await raw.close()

    return connect


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Caller]:
    raw = await asyncpg.connect(url)
    try:
        yield Asyncpg(raw)
    finally:
        await raw.close()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as raw:
        yield Asyncpg(raw)


def _sqlalchemy(scheme: str, kind: type[Caller], *, session: bool = False) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Caller]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(scheme, url))
        with Session(engine) if session else engine.connect() as raw:
            yield kind(raw)
        engine.dispose()

    return connect


def _sqlalchemy_async(scheme: str, kind: type[Caller], *, session: bool = False) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(sqlalchemy_url(scheme, url))
        async with AsyncSession(engine) if session else engine.connect() as raw:
            yield kind(raw)
        await engine.dispose()

    return connect


def sqlalchemy_url(scheme: str, url: str) -> str:
    """Return the address in SQLAlchemy's form."""
    return f"{scheme}:///{url}" if scheme.startswith("sqlite") else url.replace("postgresql", scheme, 1)


SQLITE_LEGS = [
    Leg("sqlite3", "sqlite", _sqlite3(Caller)),
    Leg("sqlite3 IMMEDIATE", "sqlite", _sqlite3(Caller, isolation_level="IMMEDIATE")),
    Leg("sqlite3 EXCLUSIVE", "sqlite", _sqlite3(Caller, isolation_level="EXCLUSIVE")),
    Leg("sqlite3 isolation_level=None", "sqlite", _sqlite3(Explicit, isolation_level=None)),
    Leg("apsw", "sqlite", _apsw),
    Leg("aiosqlite", "sqlite", _aiosqlite(Caller), asynchronous=True),
    Leg("aiosqlite isolation_level=None", "sqlite", _aiosqlite(Explicit, isolation_level=None), asynchronous=True),
    Leg("SQLAlchemy Connection on sqlite3", "sqlite", _sqlalchemy("sqlite", Sqlalchemy)),
    Leg("SQLAlchemy Connection on sqlite3, begun", "sqlite", _sqlalchemy("sqlite", Begun)),
    Leg("SQLAlchemy Session on sqlite3", "sqlite", _sqlalchemy("sqlite", Sqlalchemy, session=True)),
    Leg(
        "SQLAlchemy AsyncConnection on aiosqlite",
        "sqlite",
        _sqlalchemy_async("sqlite+aiosqlite", Sqlalchemy),
        asynchronous=True,
    ),
    Leg(
        "SQLAlchemy AsyncSession on aiosqlite",
        "sqlite",
        _sqlalchemy_async("sqlite+aiosqlite", Sqlalchemy, session=True),
        asynchronous=True,
    ),
]
if sys.version_info >= (3, 12):
    SQLITE_LEGS += [
        Leg("sqlite3 autocommit=False", "sqlite", _sqlite3(Caller, autocommit=False)),
        Leg("sqlite3 autocommit=True", "sqlite", _sqlite3(Explicit, autocommit=True)),
        Leg("aiosqlite autocommit=False", "sqlite", _aiosqlite(Caller, autocommit=False), asynchronous=True),
        Leg("aiosqlite autocommit=True", "sqlite", _aiosqlite(Explicit, autocommit=True), asynchronous=True),
    ]

POSTGRES_LEGS = [
    Leg("psycopg", "postgres", _psycopg(Caller)),
    Leg("psycopg autocommit", "postgres", _psycopg(Explicit, autocommit=True)),
    Leg("psycopg async", "postgres", _psycopg_async(Caller), asynchronous=True),
    Leg("psycopg async autocommit", "postgres", _psycopg_async(Explicit, autocommit=True), asynchronous=True),
    Leg("asyncpg", "postgres", _asyncpg, asynchronous=True),
    Leg("asyncpg from a pool", "postgres", _asyncpg_pool, asynchronous=True),
    Leg("SQLAlchemy Connection on psycopg", "postgres", _sqlalchemy("postgresql+psycopg", Sqlalchemy)),
    Leg("SQLAlchemy Connection on psycopg, begun", "postgres", _sqlalchemy("postgresql+psycopg", Begun)),
    Leg("SQLAlchemy Session on psycopg", "postgres", _sqlalchemy("postgresql+psycopg", Sqlalchemy, session=True)),
    Leg(
        "SQLAlchemy AsyncConnection on asyncpg",
        "postgres",
        _sqlalchemy_async("postgresql+asyncpg", Sqlalchemy),
        asynchronous=True,
    ),
    Leg(
        "SQLAlchemy AsyncConnection on asyncpg, begun",
        "postgres",
        _sqlalchemy_async("postgresql+asyncpg", Begun),
        asynchronous=True,
    ),
    Leg(
        "SQLAlchemy AsyncSession on asyncpg",
        "postgres",
        _sqlalchemy_async("postgresql+asyncpg", Sqlalchemy, session=True),
        asynchronous=True,
    ),
    Leg(
        "SQLAlchemy AsyncSession on psycopg",
        "postgres",
        _sqlalchemy_async("postgresql+psycopg", Sqlalchemy, session=True),
        asynchronous=True,
    ),
]
LEGS = [*SQLITE_LEGS, *POSTGRES_LEGS]


def leg(name: str) -> Leg:
    """The leg of that name."""
    return next(item for item in LEGS if item.name == name)


def add_own_table(path: Path) -> None:
    """Give a SQLite file the caller's own table."""
    connection = sqlite3.connect(path)
    connection.execute(OWN_TABLE)
    connection.commit()
    connection.close()


async def joined(stage: Any, *, inside: bool) -> tuple[Any, Caller, Any]:
    """A session, an asynchronous caller that has written something of its own if it is ``inside`` a transaction, and the tenant
    joined to it."""
    session = await stage.tenant().sessions.create(key="k")
    caller: Caller = await stage.connect()
    if inside:
        await caller.begin()
        await caller.add("before")
    return session, caller, stage.tenant().join(caller.raw)
