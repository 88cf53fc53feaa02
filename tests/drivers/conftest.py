"""Databases that hold both our schema and a table of the caller's own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, Holdfast, PoolOptions
from tests.databases import TEMPLATE, Databases
from tests.drivers.callers import OWN_TABLE, Caller, Leg, add_own_table
from tests.servers import PostgresServer

_SMALL = PoolOptions(min_connections=1, max_connections=4)


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drivers") / "template.db"
    Holdfast(str(path)).close()
    add_own_table(path)
    return path


@pytest.fixture
def sqlite_path(_template: Path, tmp_path: Path) -> str:
    """A SQLite file with both."""
    return str(shutil.copy(_template, tmp_path / "callers.db"))


@pytest.fixture(scope="session")
def _shared_url(postgres_server: PostgresServer, _databases: Databases) -> Iterator[str]:
    name = _databases.make(TEMPLATE)
    postgres_server.execute(OWN_TABLE, database=name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_with_table(_shared_url: str, postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a PostgreSQL database with both, empty. Making one for each test would take a quarter of a second."""
    yield _shared_url
    database = _shared_url.partition("@/")[2].partition("?")[0]
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
    postgres_server.execute("TRUNCATE messages, sessions, tenants, callers_own CASCADE", database=database)


class Stage:
    """A Holdfast and a caller on the same database."""

    def __init__(self, leg: Leg, url: str, hf: Holdfast | AsyncHoldfast, stack: AsyncExitStack) -> None:
        self.leg, self.url, self.hf = leg, url, hf
        self._stack = stack

    async def connect(self) -> Caller:
        """One more connection of the caller's."""
        caller: Caller = await self._stack.enter_async_context(self.leg.connect(self.url))
        return caller

    def tenant(self, name: str = "acme") -> Any:
        """Return the tenant on Holdfast's own connections, as other callers see it."""
        return self.hf.tenant(name)


@pytest.fixture
def open_stage(request: pytest.FixtureRequest) -> Callable[[Leg], Any]:
    """Open a Holdfast for a leg, of the kind that leg belongs to."""

    @asynccontextmanager
    async def stage(leg: Leg) -> AsyncIterator[Stage]:
        async with AsyncExitStack() as stack:
            url = request.getfixturevalue("sqlite_path" if leg.engine == "sqlite" else "postgres_with_table")
            if leg.asynchronous:
                hf: Any = await stack.enter_async_context(AsyncHoldfast(url, sqlite=leg.library, pool=_SMALL))
            else:
                hf = stack.enter_context(Holdfast(url, sqlite=leg.library, pool=_SMALL))
            yield Stage(leg, url, hf, stack)

    return stage
