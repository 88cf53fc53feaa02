"""Servers for the HTTP tests: one per engine and worker, because starting one takes a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from holdfast.encryption import new_key
from tests.api.kagent import Kagent, open_kagent
from tests.api.process import Api, ServerProcess
from tests.api.v1 import V1Client, open_here
from tests.databases import TEMPLATE
from tests.servers import PostgresServer

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def _sqlite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def _postgres_http_server(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, worker_id: str
) -> Iterator[ServerProcess]:
    name = f"http_{worker_id}"
    url = postgres_server.create_database(name, template=TEMPLATE)
    # On a SQLite file of its own the server creates a key.
    with ServerProcess(
        tmp_path_factory.mktemp("server"), "--database", url, HOLDFAST_ENCRYPTION_KEY=new_key()
    ) as server:
        yield server
    postgres_server.drop_database(name)


@pytest.fixture(
    params=[
        pytest.param("_sqlite_server", id="sqlite", marks=pytest.mark.leg("http sqlite")),
        pytest.param("_postgres_http_server", id="postgres", marks=pytest.mark.leg("http postgres")),
    ]
)
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """A running server on each engine. It is shared by tests: do not stop it, and use a tenant of your own."""
    result: ServerProcess = request.getfixturevalue(request.param)
    return result


@pytest.fixture
def api(server: ServerProcess) -> Api:
    """A new tenant of a running server."""
    return Api(server.http, f"tenant-{next(_NUMBERS)}")


@pytest.fixture
def start(tmp_path: Path, closing: Callable[..., ServerProcess]) -> Callable[..., ServerProcess]:
    """Start a server for one test."""
    return lambda *arguments, **environment: closing(ServerProcess(tmp_path, *arguments, **environment))


@pytest.fixture(scope="module")
def open_v1() -> Iterator[V1Client]:
    """A server in this process, for the tests of a module."""
    yield from open_here()


@pytest.fixture
def v1(open_v1: V1Client) -> V1Client:
    """A new tenant for one test."""
    return open_v1.another()


@pytest.fixture(scope="module")
def open_kagent_server() -> Iterator[Kagent]:
    """A server in this process for kagent's API, for the tests of a module."""
    yield from open_kagent()


@pytest.fixture
def kagent(open_kagent_server: Kagent) -> Kagent:
    """A new tenant for one test."""
    return open_kagent_server.another()
