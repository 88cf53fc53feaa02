"""Distribute the schema over several nodes with Citus, by tenant.

Every table with a ``tenant_id`` is distributed by that column, all in one colocation group, so that all data of a tenant is on
one node. Tables without a tenant are small. Those that are mostly read become reference tables, copied to every node. The run
queue stays on the coordinator: a reference table would be written on all nodes, so that no run could start or end while a node
is down, and a distributed table would be read from all nodes by every worker that looks for a run. It is registered with Citus,
so every node can reach it, and it commits together with the run. A table is distributed after the tables that it references,
because Citus refuses a foreign key to a table that it does not manage yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct

from ..engines.dialect import Dialect
from ..engines.postgres.citus import INSTALLED
from ..engines.protocol import Connection
from ..errors import InvalidInput, ReadOnly, SchemaMismatch
from . import catalogue
from .catalogue import TENANT

ON_THE_COORDINATOR = frozenset({"run_queue"})
"""Tables without a tenant that every run changes."""
_IN_SEQUENCE = "SET LOCAL citus.multi_shard_modify_mode TO 'sequential'"
_NODES = "SELECT groupid FROM pg_dist_node"
_SHOW_SHARDS = """SELECT format('ALTER DATABASE %I SET citus.override_table_visibility = off', current_database())"""
"""Citus hides shards from catalogue queries. The functions that do so slow down asyncpg's query of types by seconds for every
new connection."""
_DISTRIBUTED = """SELECT c.relname::text FROM pg_dist_partition AS p
JOIN pg_catalog.pg_class AS c ON c.oid = p.logicalrelid
WHERE c.relnamespace = current_schema()::regnamespace"""
_EXISTING = """SELECT c.relname::text FROM pg_catalog.pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace"""


class PlannedTable(Struct, frozen=True):
    """A table of ours with the facts that decide how it is distributed."""

    name: str
    by_tenant: bool
    references: frozenset[str] = frozenset()


def plan(tables: Iterable[PlannedTable], *, distributed: Iterable[str] = ()) -> list[str]:
    """Return the statements that distribute these tables, in an order that Citus accepts, without those already ``distributed``.

    Raises:
        SchemaMismatch: foreign keys form a cycle, or a table without a tenant references a tenant's table.
    """
    by_name = {table.name: table for table in tables}
    ordered = [by_name[name] for name in _in_order(by_name)]
    leader = next((table.name for table in ordered if table.by_tenant), "")
    skipped = set(distributed)
    return [_statement(table, leader) for table in ordered if table.name not in skipped]


async def distribute(connection: Connection, ours: Iterable[str]) -> list[str]:
    """Distribute the tables of ``ours`` that are not distributed yet, all or none, and return the executed statements.

    Raises:
        InvalidInput: this is not PostgreSQL, the citus extension is missing, or the cluster has no coordinator address.
    """
    if connection.dialect is not Dialect.POSTGRES:
        raise InvalidInput(
            "only PostgreSQL can be distributed over several nodes, and this database is SQLite", field="database"
        )
    if not await connection.fetch(INSTALLED, ()):
        raise InvalidInput(
            "the citus extension is not installed in this database, so nothing was changed: "
            "run CREATE EXTENSION citus in it first",
            field="extension",
        )
    async with connection.savepoint():
        distributed = [row[0] for row in await connection.fetch(_DISTRIBUTED, ())]
        statements = plan(await _tables(connection, ours), distributed=distributed)
        if statements:
            await _check_coordinator(connection)
            await run_in_sequence(connection)
        for statement in statements:
            await connection.fetch(statement, ())
    if statements and not distributed:
        await _show_shards(connection)
    return statements


async def run_in_sequence(connection: Connection) -> None:
    """Let the rest of the transaction change shards sequentially, as Citus requires if it creates tables and foreign keys."""
    await connection.fetch(_IN_SEQUENCE, ())


async def _check_coordinator(connection: Connection) -> None:
    groups = [row[0] for row in await connection.fetch(_NODES, ())]
    if groups and 0 not in groups:
        raise InvalidInput(
            "this Citus cluster has no coordinator address, which the run queue needs, so nothing was changed: "
            "run SELECT citus_set_coordinator_host('its address') on the coordinator first",
            field="coordinator",
        )


async def _show_shards(connection: Connection) -> None:
    ((statement,),) = await connection.fetch(_SHOW_SHARDS, ())
    try:
        async with connection.savepoint():
            await connection.fetch(statement, ())
    except ReadOnly:
        return  # only the database's owner may change this setting; without it, connections take longer to open


async def _tables(connection: Connection, ours: Iterable[str]) -> list[PlannedTable]:
    """Return the tables of ``ours`` that exist in this database; other tables in the schema are ignored."""
    existing = {row[0] for row in await connection.fetch(_EXISTING, ())} & {*ours}
    initial = catalogue.tables()
    return [
        PlannedTable(name, TENANT in initial[name].columns, frozenset(key.target for key in initial[name].foreign_keys))
        if name in initial
        else PlannedTable(name, by_tenant=False)
        for name in sorted(existing)
    ]


def _in_order(by_name: Mapping[str, PlannedTable]) -> Sequence[str]:
    """Return the names of tables without a tenant first, then the others; within each, referenced tables first."""
    untenanted = [table.name for table in by_name.values() if not table.by_tenant]
    graph: dict[str, set[str]] = {}
    for table in by_name.values():
        targets = {name for name in table.references if name in by_name and name != table.name}
        graph[table.name] = targets | (set(untenanted) if table.by_tenant else set())
    try:
        # The names are sorted, so the same schema always yields the same order.
        return list(TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())
    except CycleError as error:
        raise SchemaMismatch(f"foreign keys form a cycle: {' -> '.join(error.args[1])}") from error


def _statement(table: PlannedTable, leader: str) -> str:
    if table.name in ON_THE_COORDINATOR:
        return f"SELECT citus_add_local_table_to_metadata('{table.name}')"
    if not table.by_tenant:
        return f"SELECT create_reference_table('{table.name}')"
    if table.name == leader:
        return f"SELECT create_distributed_table('{table.name}', '{TENANT}')"
    return f"SELECT create_distributed_table('{table.name}', '{TENANT}', colocate_with => '{leader}')"
