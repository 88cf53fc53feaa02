"""A Citus cluster for the contract, if one is available.

It is the cluster of the coordinator at ``HOLDFAST_CITUS_URL``, whose database the tests empty; or, where the citus extension is
installed beside the PostgreSQL that the tests start, a cluster of one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import psycopg

from holdfast import schema
from tests.contract import callers
from tests.contract.legs import RESIDENT, JoinedLeg, OwnLeg, PostgresPlace
from tests.servers import PostgresServer

COORDINATOR = os.environ.get("HOLDFAST_CITUS_URL")
INSTALLED = PostgresServer.has_extension("citus")
ABSENT = "Citus is not installed here"
SETTINGS = {"shared_preload_libraries": "citus", "wal_level": "logical", "fsync": "off", "autovacuum": "off"}
SHARDS = 4
"""The number of shards per table: few, because every case empties all of them."""
_LOGICAL = "SELECT logicalrelid::text, partmethod::text FROM pg_dist_partition ORDER BY 1"


class CitusPlace(PostgresPlace):
    """A distributed database. Shards are tables too, and are excluded."""

    @cached_property
    def _tables(self) -> list[str]:
        return [table for table, _ in self._connect().execute(_LOGICAL).fetchall()]

    @cached_property
    def _columns(self) -> list[tuple[str, str]]:
        above = {"tenants": "id", "api_keys": "tenant", "erasures": "tenant", "run_queue": "tenant"}
        kept = {"schema_migrations", "server_settings"}
        return [(table, above.get(table, "tenant_id")) for table in self._tables if table not in kept]

    def _emptying(self, tables: Sequence[str]) -> str:
        chosen = [(table, column) for table, column in self._columns if table in tables]
        rows = [f"DELETE FROM {table} WHERE {column} <> '{RESIDENT}'" for table, column in chosen]
        return ";".join([*rows, "DELETE FROM server_settings"])


def citus_legs(url: str) -> list[OwnLeg | JoinedLeg]:
    """Yield legs of both styles, on connections of Holdfast's own and on the caller's."""
    place = CitusPlace(url)
    return [
        OwnLeg("citus sync", place, asynchronous=False),
        OwnLeg("citus async", place, asynchronous=True),
        JoinedLeg("citus joined psycopg", place, callers.psycopg_caller, False),
        JoinedLeg("citus joined asyncpg", place, callers.asyncpg_caller, True),
    ]


@contextmanager
def distributed_database() -> Iterator[str]:
    """Yield the address of a migrated, distributed test database."""
    if COORDINATOR is not None:
        yield _distributed(COORDINATOR)
        return
    with PostgresServer(settings=SETTINGS) as server:
        url = server.create_database("contract")
        yield _distributed(url)


def _distributed(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS citus")
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET citus.shard_count = {SHARDS}'.encode())
    schema.migrate_up(url)
    schema.distribute(url)
    return url
