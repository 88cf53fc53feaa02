"""The legs on which the contract runs: each engine and driver, sync and async, on its own connections or joined to a caller's.

A *place* is a database that can be reset for each case and dumped. Every place except memory contains a *resident*, a tenant
with some data that no case knows: whatever a case does, the resident's rows must not change, and on a joined leg the
whole database must not, because the caller rolls back. The table ``callers_notes`` is for the callers' own writes.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import cached_property, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import apsw
from msgspec import Struct

from holdfast import NewAgent
from holdfast.address import Library
from holdfast.clock import FixedClock
from holdfast.core.blocking import Blocking
from holdfast.engines.postgres.options import PoolOptions
from holdfast.handles import AsyncHoldfast, Holdfast
from holdfast.ids import SeededIds
from holdfast.limits import Limits
from holdfast.stores.conversation.buffer.buffered import BufferedSession
from holdfast.stores.execution.runs.leases import AsyncRunQueue
from holdfast.stores.execution.runs.ledger import NewToolCall
from holdfast.stores.lifecycle.api_keys import AsyncApiKeys
from holdfast.stores.lifecycle.tenants import AsyncTenants
from holdfast.tenant_handles import AsyncTenantHandle, TenantHandle
from tests.contract import callers
from tests.contract.cases.world import Caller, World

RESIDENT = "resident"
LATER = datetime(2200, 1, 1, tzinfo=UTC)
"""After the end of the test run."""
_NOTES = "CREATE TABLE IF NOT EXISTS callers_notes (note TEXT)"
Dump = dict[str, list[Any]]
Connect = Callable[[str], AbstractAsyncContextManager[Caller]]

KEY = "5e" * 32
"""The key for secrets."""
POOL = PoolOptions(min_connections=1, max_connections=6)
MEMORY_LACKS = {"reopening": "the database in memory ends with the handle", "joining": "the connection is our own"}
OWN_LACKS = MappingProxyType({"joining": "the connection is our own"})
JOINED_LACKS = MappingProxyType(
    {
        "concurrency": "a caller's connection does one thing at a time",
        "tenants": "tenants are kept through a Holdfast of one's own",
        "reopening": "the connection is the caller's to close",
    }
)


class Place(Protocol):
    """A test database."""

    def fresh(self) -> tuple[str, Dump]:
        """Reset it to contain only the resident; return its address and every row."""

    def dump(self) -> Dump:
        """Return every row of every table."""

    def renew(self) -> None:
        """Create the resident again, after a test that changed it on purpose."""


class MemoryPlace:
    """SQLite in memory. No other connection can read it, so it has neither a dump nor a resident."""

    def fresh(self) -> tuple[str, Dump]:
        return ":memory:", {}

    def dump(self) -> Dump:
        return {}

    def renew(self) -> None:
        return


class SqlitePlace:
    """SQLite files in a folder: each case gets a copy of a template."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        self._folder, self._number = folder, 0
        self._new: Dump = {}

    def fresh(self) -> tuple[str, Dump]:
        if not self._template.exists():
            self._folder.mkdir(exist_ok=True)
            with Holdfast(str(self._template), ids=SeededIds(7), clock=FixedClock()) as hf:
                _move_in(hf)
            connection = apsw.Connection(str(self._template))
            connection.execute(_NOTES)
            connection.close()
            self._new = _dump_file(str(self._template))
        # Never reuse a name: a failed case may have left a connection open.
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._file}{suffix}").unlink(missing_ok=True)
        self._number += 1
        shutil.copyfile(self._template, self._file)
        return self._file, self._new

    @property
    def _file(self) -> str:
        return str(self._folder / f"case-{self._number}.db")

    def dump(self) -> Dump:
        return _dump_file(self._file)

    def renew(self) -> None:
        self._template.unlink(missing_ok=True)


def _dump_file(path: str) -> Dump:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        schema = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        # A virtual table is read through its backing tables.
        plain = [name for name, sql in schema if not str(sql).startswith("CREATE VIRTUAL TABLE")]
        rows: Dump = {str(name): _sorted(connection.execute(f'SELECT * FROM "{name}"')) for name in plain}
        rows["the schema"] = schema
    finally:
        connection.close()
    return rows


class PostgresPlace:
    """A migrated PostgreSQL test database: all rows but the resident's are removed before each case."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None
        self._new: Dump = {}
        self._left: Dump = {}
        """Every row at the end of the last case; nothing while a case runs, and after one that failed."""

    def fresh(self) -> tuple[str, Dump]:
        left, self._left = self._left, {}
        # Most cases change few tables, and those that are rolled back change none.
        changed = [table for table in left if left[table] != self._new[table]]
        if not left or not all(self._is_emptied(table, left[table]) for table in changed):
            self._start_over()
        elif changed:
            self._connect().execute(self._emptying(changed))
        return self._url, self._new

    def _is_emptied(self, table: str, rows: Sequence[Any]) -> bool:
        """Return whether only the resident's rows remain without the other tenants' rows, all of them unchanged."""
        existing = set(rows)
        return table in dict(self._columns) and all(row in existing for row in self._new[table])

    def _start_over(self) -> None:
        connection = self._connect()
        connection.execute(self._emptying(self._tables))
        if not connection.execute("SELECT 1 FROM tenants").fetchall():
            with Holdfast(self._url, ids=SeededIds(7), clock=FixedClock(), pool=POOL) as hf:
                _move_in(hf)
        self._new = self.dump()
        self._left = {}

    def dump(self) -> Dump:
        result: Dump = {table: [] for table in self._tables}
        for table, row in self._connect().execute(self._reading, prepare=True):
            result[table].append((row,))
        self._left = {table: _sorted(rows) for table, rows in result.items()}
        return self._left

    @cached_property
    def _tables(self) -> list[str]:
        return [table for (table,) in self._connect().execute(_TABLES).fetchall()]

    @cached_property
    def _reading(self) -> str:
        """Return one statement that reads all tables: there are many, and most are empty."""
        return " UNION ALL ".join(f"SELECT '{table}', t::text FROM {table} AS t" for table in self._tables)

    def _emptying(self, tables: Sequence[str]) -> str:
        """Remove all tenants but the resident from some tables, with one statement."""
        chosen = [(table, column) for table, column in self._columns if table in tables]
        deletions = [f"DELETE FROM {table} WHERE {column} <> '{RESIDENT}'" for table, column in chosen]
        return ";".join(["SET session_replication_role = replica", *deletions, "RESET session_replication_role"])

    @cached_property
    def _columns(self) -> list[tuple[str, str]]:
        """Return each table with its column that names a tenant."""
        return list(dict.fromkeys(self._connect().execute(_TENANT_COLUMNS).fetchall()))

    def renew(self) -> None:
        self._connect().execute(f"TRUNCATE {', '.join(table for table, _ in self._columns)} CASCADE")
        self._left = {}

    def close(self) -> None:
        """Close the connections to the database."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Any:
        import psycopg

        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True)
            self._connection.execute(_NOTES)
        return self._connection


_TABLES = """SELECT quote_ident(relname) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') ORDER BY 1"""
_TENANT_COLUMNS = """SELECT quote_ident(relname), attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
      AND (attname IN ('tenant_id', 'tenant') OR (relname = 'tenants' AND attname = 'id'))
ORDER BY relname = 'tenants', 1"""


class OwnLeg(Struct, frozen=True):
    """A leg on which Holdfast opens its own connections."""

    name: str
    place: Place
    asynchronous: bool
    sqlite: Library | None = None
    missing: Mapping[str, str] = OWN_LACKS

    @asynccontextmanager
    async def open(self, limits: Limits) -> AsyncIterator[World]:
        url, before = self.place.fresh()
        opened = _Opened(url, limits, asynchronous=self.asynchronous, sqlite=self.sqlite)
        await opened.open()
        try:
            yield World(
                opened.tenant,
                clock=opened.clock,
                limits=limits,
                blocking=not self.asynchronous,
                tenants=opened.tenants,
                api_keys=opened.api_keys,
                run_queue=opened.run_queue,
                reopen=opened.reopen,
            )
        finally:
            await opened.close()
        _unharmed(before, self.place.dump())


class JoinedLeg(Struct, frozen=True):
    """A leg that joins the transaction of a caller, who connects with ``connect`` and rolls back at the end."""

    name: str
    place: Place
    connect: Connect
    asynchronous: bool
    sqlite: Library | None = None
    missing: Mapping[str, str] = JOINED_LACKS

    @asynccontextmanager
    async def open(self, limits: Limits) -> AsyncIterator[World]:
        url, before = self.place.fresh()
        watched = _Watched()
        async with AsyncExitStack() as stack:
            opened = _Opened(url, limits, asynchronous=self.asynchronous, sqlite=self.sqlite)
            if not self.asynchronous:  # an asynchronous handle can be joined before it is open
                await opened.open()
            stack.push_async_callback(opened.close)
            watched.caller = await stack.enter_async_context(self.connect(url))

            yield World(
                lambda name: opened.tenant(name, join=watched.connection),
                clock=opened.clock,
                limits=limits,
                blocking=not self.asynchronous,
                caller=watched,
                outside=opened.outside,
            )
            if watched.in_transaction:
                await watched.rollback()
        after = self.place.dump()
        if watched.committed:
            _unharmed(before, after)
        elif after != before:
            raise AssertionError(f"the caller rolled back, but the database has changed: {_first(before, after)}")


class _Watched:
    """A caller that records commits: after a commit, the database may differ at the end."""

    caller: Caller
    committed = False
    in_transaction = True

    @property
    def connection(self) -> Any:
        return self.caller.connection

    async def execute(self, sql: str) -> Any:
        return await self.caller.execute(sql)

    async def begin(self) -> None:
        await self.caller.begin()
        self.in_transaction = True

    async def rollback(self) -> None:
        self.in_transaction = False
        await self.caller.rollback()

    async def commit(self) -> None:
        self.committed, self.in_transaction = True, False
        await self.caller.commit()


class _Opened:
    """A Holdfast of either style with one asynchronous interface."""

    def __init__(self, url: str, limits: Limits, *, asynchronous: bool, sqlite: Library | None) -> None:
        self._url, self._limits, self._sqlite = url, limits, sqlite
        self.clock = FixedClock()
        self._ids = SeededIds(1)
        self._sync: Holdfast | None = None
        self._async: AsyncHoldfast | None = None
        self._is_open = False
        if asynchronous:
            self._async = AsyncHoldfast(self._url, **self._options())

    async def open(self) -> None:
        if self._async is not None:
            await self._async.open()
        else:
            self._sync = Holdfast(self._url, **self._options())
        self._is_open = True

    async def outside(self, name: str) -> AsyncTenantHandle:
        """Return a tenant on a separate connection of Holdfast's own, while a caller's connection is joined."""
        if not self._is_open:
            await self.open()
        return self.tenant(name)

    async def close(self) -> None:
        if self._async is not None:
            await self._async.close()
        if self._sync is not None:
            self._sync.close()

    async def reopen(self) -> None:
        await self.close()
        if self._async is not None:
            self._async = AsyncHoldfast(self._url, **self._options())
        await self.open()

    def tenant(self, name: str, join: Any = None) -> AsyncTenantHandle:
        if self._async is not None:
            handle = self._async.tenant(name)
            return handle if join is None else handle.join(join)
        assert self._sync is not None
        blocking = self._sync.tenant(name)
        return awaited(blocking if join is None else blocking.join(join))

    def _options(self) -> dict[str, Any]:
        return {
            "encryption_key": KEY,
            "limits": self._limits,
            "clock": self.clock,
            "ids": self._ids,
            "pool": POOL,
            "sqlite": self._sqlite,
        }

    def tenants(self) -> AsyncTenants:
        if self._async is not None:
            return self._async.tenants
        assert self._sync is not None
        return cast("AsyncTenants", _Awaited(self._sync.tenants))

    def api_keys(self) -> AsyncApiKeys:
        if self._async is not None:
            return self._async.api_keys
        assert self._sync is not None
        return cast("AsyncApiKeys", _Awaited(self._sync.api_keys))

    def run_queue(self) -> AsyncRunQueue:
        if self._async is not None:
            return self._async.run_queue
        assert self._sync is not None
        return cast("AsyncRunQueue", _Awaited(self._sync.run_queue))


def awaited(handle: TenantHandle) -> AsyncTenantHandle:
    """Wrap a synchronous handle so that its calls can be awaited; the public synchronous classes are called."""
    return cast("AsyncTenantHandle", _AwaitedHandle(handle))


class _AwaitedHandle:
    def __init__(self, handle: TenantHandle) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._handle, name)
        return _Awaited(result) if isinstance(result, Blocking) else result


class _Awaited:
    def __init__(self, store: Blocking[Any]) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)

        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            return _AwaitedBuffer(answer) if isinstance(answer, BufferedSession) else answer

        return call


class _AwaitedBuffer:
    """A buffered session whose database calls can be awaited."""

    def __init__(self, buffer: BufferedSession) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AwaitedBuffer) and self._buffer is other._buffer

    def __hash__(self) -> int:
        return hash(self._buffer)

    async def save(self) -> None:
        self._buffer.save()

    async def reload(self, **options: Any) -> None:
        self._buffer.reload(**options)


def _move_in(hf: Holdfast) -> None:
    """Create rows of the resident in every store."""
    resident = hf.tenant(RESIDENT)
    for number in range(3):
        created = resident.sessions.create(
            key=f"resident:{number}", user="resident", agent="helper", metadata={"n": number}
        )
        for text in ("one", "two"):
            resident.messages.append(created.id, role="user", content=f"{text} of {number}", token_count=2)
    resident.messages.search("one")
    resident.sessions.delete(created.id)
    _keep_agents_busy(resident)


def _keep_agents_busy(resident: TenantHandle) -> None:
    """Create an agent with a block, and a run of each kind that no worker claims."""
    agent = resident.agents.create(NewAgent("helper", display_name="Helper", tags=["resident"]))
    resident.blocks.set(agent.id, "persona", "kind")
    session = resident.sessions.create(key="resident:runs")
    for ending in ("paused", "waiting", "completed"):
        run = resident.leases.claim("resident", run_id=resident.runs.start(session.id, agent=agent.id).id)
        assert run is not None
        if ending != "completed":
            calls = [NewToolCall(id="call", tool_name="mail")]
            resident.tool_calls.intend(run.id, epoch=run.epoch, calls=calls)
        resident.runs.step(run.id, epoch=run.epoch, iteration=1, state={"ending": ending})
        if ending == "completed":
            resident.runs.finish(run.id, epoch=run.epoch, stop_reason="end_turn")
        else:
            resident.runs.pause(run.id, epoch=run.epoch, until=LATER if ending == "paused" else None)


def _sorted(rows: Any) -> list[Any]:
    return sorted((tuple(row) for row in rows), key=repr)


def _unharmed(before: Dump, after: Dump) -> None:
    """Check that all of the resident's rows exist unchanged."""
    for table, rows in before.items():
        if table.startswith("message_index_"):
            continue  # SQLite's full-text index, whose rows belong to no single tenant
        lost = [row for row in rows if row not in after.get(table, [])]
        if lost:
            raise AssertionError(f"a row of another tenant in {table} was changed or removed: {lost[0]}")


def _first(before: Dump, after: Dump) -> str:
    for table in sorted(before.keys() | after.keys()):
        was, now = before.get(table, []), after.get(table, [])
        for row in [item for item in was if item not in now] + [item for item in now if item not in was]:
            return f"{table}: {row}"
    return "the tables themselves"


def sqlite_legs(folder: Path) -> list[OwnLeg | JoinedLeg]:
    """Return every leg on SQLite, with files in a folder."""
    place, memory = SqlitePlace(folder), MemoryPlace()
    joined: list[tuple[str, Connect, bool, Library]] = [
        ("sqlite3", callers.sqlite3_caller, False, "stdlib"),
        ("apsw", callers.apsw_caller, False, "apsw"),
        ("aiosqlite", callers.aiosqlite_caller, True, "stdlib"),
        ("sqlalchemy connection", callers.sqlalchemy_connection, False, "stdlib"),
        ("sqlalchemy session", callers.sqlalchemy_session, False, "stdlib"),
        ("sqlalchemy async connection", callers.sqlalchemy_async_connection, True, "stdlib"),
        ("sqlalchemy async session", callers.sqlalchemy_async_session, True, "stdlib"),
    ]
    return [
        OwnLeg("sqlite file sync", place, asynchronous=False),
        OwnLeg("sqlite file async", place, asynchronous=True),
        OwnLeg("sqlite stdlib sync", place, asynchronous=False, sqlite="stdlib"),
        OwnLeg("sqlite stdlib async", place, asynchronous=True, sqlite="stdlib"),
        OwnLeg("sqlite memory sync", memory, asynchronous=False, missing=MEMORY_LACKS),
        OwnLeg("sqlite memory async", memory, asynchronous=True, missing=MEMORY_LACKS),
        *[JoinedLeg(f"sqlite joined {name}", place, connect, how, library) for name, connect, how, library in joined],
    ]


def postgres_legs(url: str) -> list[OwnLeg | JoinedLeg]:
    """Return every leg on PostgreSQL, in a migrated test database."""
    place = PostgresPlace(url)
    joined: list[tuple[str, Connect, bool]] = [
        ("psycopg", callers.psycopg_caller, False),
        ("psycopg async", callers.async_psycopg_caller, True),
        ("asyncpg", callers.asyncpg_caller, True),
        ("sqlalchemy connection", callers.sqlalchemy_connection, False),
        ("sqlalchemy session", callers.sqlalchemy_session, False),
        ("sqlalchemy async connection", callers.sqlalchemy_async_connection, True),
        ("sqlalchemy async session", callers.sqlalchemy_async_session, True),
    ]
    return [
        OwnLeg("postgres sync", place, asynchronous=False),
        OwnLeg("postgres async", place, asynchronous=True),
        *[JoinedLeg(f"postgres joined {name}", place, connect, how) for name, connect, how in joined],
    ]
