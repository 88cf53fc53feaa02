"""kagent's own clients, unchanged, against the real server on either engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

os.environ |= {
    # kagent's packages read these variables when they are imported, and require them.
    "KAGENT_URL": "http://127.0.0.1:1",
    "KAGENT_NAME": "app",
    "KAGENT_NAMESPACE": "ns",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}

import httpx
import pytest

import holdfast
from tests.api.process import ServerProcess
from tests.databases import TEMPLATE
from tests.servers import PostgresServer

TRUST = ("--trust", "127.0.0.1")
"""kagent's clients send no API key: loopback addresses are trusted."""
_NUMBERS = count(1)
os.environ["PYTHONPATH"] = str(Path(holdfast.__file__).parents[1])  # servers are started by another fixture


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warnings of kagent's libraries, also when they are imported."""
    config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture(scope="session")
def _on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    # An explicitly named database gets no key file, so this server has no encryption key, like the one on PostgreSQL.
    with ServerProcess(tmp_path_factory.mktemp("kagent"), *TRUST, "--database", "kagent.db") as server:
        yield server


@pytest.fixture(scope="session")
def _on_postgres(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, worker_id: str
) -> Iterator[ServerProcess]:
    name = f"kagent_{worker_id}"
    url = postgres_server.create_database(name, template=TEMPLATE)
    with ServerProcess(tmp_path_factory.mktemp("kagent"), *TRUST, "--database", url) as server:
        yield server
    postgres_server.drop_database(name)


@pytest.fixture(
    params=[
        pytest.param("_on_sqlite", id="sqlite", marks=pytest.mark.leg("kagent sqlite")),
        pytest.param("_on_postgres", id="postgres", marks=pytest.mark.leg("kagent postgres")),
    ]
)
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """A running server that is shared by tests: use names of your own."""
    result: ServerProcess = request.getfixturevalue(request.param)
    return result


@pytest.fixture
def base(server: ServerProcess) -> str:
    """Its URL."""
    return server.url


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client without additional headers, like kagent's."""
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{next(_NUMBERS)}"


Start = Callable[..., ServerProcess]


@pytest.fixture(params=["sqlite", "postgres"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Start a server on a database of this test, repeatedly if needed, always on the same port."""
    request.node.user_properties.append(("leg", f"kagent {request.param}"))
    url = str(tmp_path / "kagent.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made: list[ServerProcess] = []

    def begin(**environment: str) -> ServerProcess:
        port = ("--port", str(made[0].port)) if made else ()
        made.append(ServerProcess(tmp_path, *TRUST, "--database", url, *port, **environment))
        return made[-1]

    yield begin
    for item in made:
        item.close()
