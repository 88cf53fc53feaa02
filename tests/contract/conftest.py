"""Fixtures for the legs of the contract, each with its own databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.citus import citus_legs, distributed_database
from tests.contract.legs import JoinedLeg, OwnLeg, postgres_legs, sqlite_legs
from tests.databases import TEMPLATE, Databases
from tests.servers import PostgresServer


@pytest.fixture(scope="session")
def _sqlite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OwnLeg | JoinedLeg]:
    return {leg.name: leg for leg in sqlite_legs(tmp_path_factory.mktemp("contract"))}


@pytest.fixture(scope="session")
def _postgres(postgres_server: PostgresServer, _databases: Databases) -> Iterator[dict[str, OwnLeg | JoinedLeg]]:
    # One database for all cases of a worker: removing all rows but the resident's is far faster than a new database.
    name = _databases.make(TEMPLATE)
    legs = postgres_legs(postgres_server.url(name))
    yield {leg.name: leg for leg in legs}
    legs[0].place.close()  # type: ignore[attr-defined]
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def _citus() -> Iterator[dict[str, OwnLeg | JoinedLeg]]:
    with distributed_database() as url:
        legs = citus_legs(url)
        yield {leg.name: leg for leg in legs}
        legs[0].place.close()  # type: ignore[attr-defined]


@pytest.fixture
def leg_by_name(request: pytest.FixtureRequest) -> Callable[[str], OwnLeg | JoinedLeg]:
    """Return a leg by its name; the server is started only for tests that need it."""

    def find(name: str) -> OwnLeg | JoinedLeg:
        legs: dict[str, OwnLeg | JoinedLeg] = request.getfixturevalue(f"_{name.split()[0]}")
        return legs[name]

    return find
