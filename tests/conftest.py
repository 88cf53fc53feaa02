"""Fixtures: servers and databases for tests. One PostgreSQL serves all workers of a run."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from tests.databases import BARE, TEMPLATE, Databases, shared_server
from tests.servers import PgBouncer, PostgresServer, RedisServer, hold
from tests.skips import without

pytest_plugins = ["tests.reporting"]

settings.register_profile("test", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("soak", database=None, deadline=None, print_blob=True, max_examples=2_000)
ROOT = Path.cwd()
SOAK = bool(os.environ.get("HOLDFAST_SOAK"))
if os.access("/dev/shm", os.W_OK):
    # Files of tests are in memory: faults of a disk are simulated, and waiting for a real one proves nothing more.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
SERVERS = {"postgres_server", "own_postgres", "_redis", "s3_server"}
"""Fixtures that start a server. Tests that use one in a few of their cases have its name in the ids of these."""
_SESSION: pytest.StashKey[Path] = pytest.StashKey()
_OWNED: pytest.StashKey[int] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("soak" if SOAK else "test")
    config.addinivalue_line("markers", "server: needs a server; `make quick` leaves these tests out")
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[_SESSION] = Path(worker["holdfast_session"])
        return
    config.stash[_SESSION] = Path(tempfile.mkdtemp(prefix="holdfast-session-"))
    # The servers of this run end when this lock is free, however this process ends.
    config.stash[_OWNED] = hold(config.stash[_SESSION] / "owner")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["holdfast_session"] = str(node.config.stash[_SESSION])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if _OWNED not in config.stash:
        return
    session = config.stash[_SESSION]
    note = session / "postgres"
    if note.exists():
        PostgresServer(Path(note.read_text())).close()
    os.close(config.stash[_OWNED])
    shutil.rmtree(session, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that leaves the process in another working directory: later tests start programs in it."""
    yield
    if Path.cwd() != ROOT:
        os.chdir(ROOT)
        pytest.fail("the test changed the working directory: use contextlib.chdir or monkeypatch.chdir")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        case = item.name.partition("[")[2].rstrip("]").split("-")
        if SERVERS & {*item.fixturenames} or {"postgres", "redis", "s3"} & {*case}:  # type: ignore[attr-defined]
            item.add_marker("server")
    if not SOAK:
        deep = {item for item in items if item.get_closest_marker("soak")}
        config.hook.pytest_deselected(items=[*deep])
        items[:] = [item for item in items if item not in deep]


def pytest_collection_finish() -> None:
    # Thousands of tests are millions of objects that stay until the end: a tenth of all time went into looking at them again.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> PostgresServer:
    """The PostgreSQL that all tests share. Do not stop it: for that there is ``own_postgres``."""
    return shared_server(pytestconfig.stash[_SESSION])


@pytest.fixture(scope="session")
def _databases(postgres_server: PostgresServer, pytestconfig: pytest.Config) -> Databases:
    worker = getattr(pytestconfig, "workerinput", {}).get("workerid", "main")
    return Databases(postgres_server, worker)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, _databases: Databases) -> Iterator[str]:
    """The address of a database that is migrated, empty and this test's own."""
    name = _databases.take()
    yield postgres_server.url(name)
    _databases.give_back(name)


@pytest.fixture
def new_postgres_url(postgres_server: PostgresServer, _databases: Databases) -> Iterator[str]:
    """The URL of a migrated database that no other test has used, for tests of query plans: files of tables never shrink."""
    name = _databases.make(TEMPLATE)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def bare_postgres_url(postgres_server: PostgresServer, _databases: Databases) -> Iterator[str]:
    """The address of a database with nothing in it, not even a schema."""
    name = _databases.make(BARE)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that this test may stop, kill and start again. It costs about two seconds."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler by transaction in front of the shared PostgreSQL."""
    if PgBouncer.program() is None:
        without("pgbouncer", "pgbouncer is not installed, and `make test` could not install it")
    with PgBouncer(postgres_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer]:
    if RedisServer.program() is None:
        without("redis", "there is no redis-server: no package brings one for this Python, and none is installed")
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(_redis: RedisServer) -> str:
    """The address of an empty Redis that is this test's own."""
    _redis.execute("FLUSHALL")
    return _redis.url


@pytest.fixture
def closing() -> Iterator[Callable[..., object]]:
    """Enter a context manager and leave it when the test ends: ``hf = closing(Holdfast(url))``."""
    with ExitStack() as stack:
        yield stack.enter_context
