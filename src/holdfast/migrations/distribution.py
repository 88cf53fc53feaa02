"""Spreading the schema over several machines with Citus, by tenant.

Every table that has a ``tenant_id`` is distributed by it, all of them in one colocation group, so that everything of a tenant
lies on one machine. The tables above all tenants are small. Those that are mostly read go to every machine whole. The run queue
stays on the coordinator: a copy on every machine would have to be written on all of them, so that no run could start or end while
one is down, and distributed by tenant it would have to be read from all of them by every worker that looks for a run. Citus knows
it all the same, so every machine can reach it, and it commits together with the run. A table comes after the tables its foreign
keys point to, because Citus refuses a key into a table it does not yet know.
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
"""The tables above all tenants that every run changes."""
_IN_SEQUENCE = "SET LOCAL citus.multi_shard_modify_mode TO 'sequential'"
_NODES = "SELECT groupid FROM pg_dist_node"
_SHOW_SHARDS = """SELECT format('ALTER DATABASE %I SET citus.override_table_visibility = off', current_database())"""
"""Citus hides the parts of distributed tables from catalogue queries. The functions that do so cost asyncpg, which asks for
types, seconds for every new connection."""
_DONE = """SELECT c.relname::text FROM pg_dist_partition AS p
JOIN pg_catalog.pg_class AS c ON c.oid = p.logicalrelid
WHERE c.relnamespace = current_schema()::regnamespace"""
_EXISTING = """SELECT c.relname::text FROM pg_catalog.pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace"""


class Table(Struct, frozen=True):
    """One table of ours, as the catalogue has it."""

    name: str
    by_tenant: bool
    points_to: frozenset[str] = frozenset()


def plan(tables: Iterable[Table], *, done: Iterable[str] = ()) -> list[str]:
    """The statements that distribute these tables, in an order Citus accepts; nothing for those that are ``done``.

    Raises:
        SchemaMismatch: the foreign keys go round in a circle, or from a table above all tenants into one of theirs.
    """
    by_name = {table.name: table for table in tables}
    ordered = [by_name[name] for name in _in_order(by_name)]
    leader = next((table.name for table in ordered if table.by_tenant), "")
    already = set(done)
    return [_statement(table, leader) for table in ordered if table.name not in already]


async def distribute(connection: Connection, ours: Iterable[str]) -> list[str]:
    """Distribute every table of ``ours`` that is not yet, all of them or none, and return the statements that did it.

    Raises:
        InvalidInput: this is not PostgreSQL, it has no citus extension, or the cluster does not know its coordinator.
    """
    if connection.dialect is not Dialect.POSTGRES:
        raise InvalidInput("only PostgreSQL can be distributed over several machines, and this is SQLite")
    if not await connection.fetch(INSTALLED, ()):
        raise InvalidInput(
            "the citus extension is not installed in this database, so nothing was changed: "
            "run CREATE EXTENSION citus in it first"
        )
    async with connection.savepoint():
        done = [row[0] for row in await connection.fetch(_DONE, ())]
        statements = plan(await _tables(connection, ours), done=done)
        if statements:
            await _check_coordinator(connection)
            await run_in_sequence(connection)
        for statement in statements:
            await connection.fetch(statement, ())
    if statements and not done:
        await _show_shards(connection)
    return statements


async def run_in_sequence(connection: Connection) -> None:
    """Let the rest of a transaction change the parts of a distributed table one after the other: Citus requires it where one
    transaction creates tables and keys between them."""
    await connection.fetch(_IN_SEQUENCE, ())


async def _check_coordinator(connection: Connection) -> None:
    groups = [row[0] for row in await connection.fetch(_NODES, ())]
    if groups and 0 not in groups:
        raise InvalidInput(
            "the machines of this Citus cluster do not know their coordinator, which keeps the run queue, so nothing was "
            "changed: run SELECT citus_set_coordinator_host('its address') on the coordinator first"
        )


async def _show_shards(connection: Connection) -> None:
    ((statement,),) = await connection.fetch(_SHOW_SHARDS, ())
    try:
        async with connection.savepoint():
            await connection.fetch(statement, ())
    except ReadOnly:
        return  # only the database's owner may set it; without it, connections take longer to open


async def _tables(connection: Connection, ours: Iterable[str]) -> list[Table]:
    """The tables of ``ours`` in this database. Others that share the schema are left alone."""
    existing = {row[0] for row in await connection.fetch(_EXISTING, ())} & {*ours}
    known = catalogue.tables()
    return [
        Table(name, TENANT in known[name].columns, frozenset(key.target for key in known[name].foreign_keys))
        if name in known
        else Table(name, by_tenant=False)
        for name in sorted(existing)
    ]


def _in_order(by_name: Mapping[str, Table]) -> Sequence[str]:
    """Tables above all tenants first, then the others; among each, targets of foreign keys first."""
    everywhere = [table.name for table in by_name.values() if not table.by_tenant]
    graph: dict[str, set[str]] = {}
    for table in by_name.values():
        targets = {name for name in table.points_to if name in by_name and name != table.name}
        graph[table.name] = targets | (set(everywhere) if table.by_tenant else set())
    try:
        # Sorted names go in, so the same schema always gives the same order.
        return list(TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order())
    except CycleError as error:
        raise SchemaMismatch(f"foreign keys go round in a circle: {' -> '.join(error.args[1])}") from error


def _statement(table: Table, leader: str) -> str:
    if table.name in ON_THE_COORDINATOR:
        return f"SELECT citus_add_local_table_to_metadata('{table.name}')"
    if not table.by_tenant:
        return f"SELECT create_reference_table('{table.name}')"
    if table.name == leader:
        return f"SELECT create_distributed_table('{table.name}', '{TENANT}')"
    return f"SELECT create_distributed_table('{table.name}', '{TENANT}', colocate_with => '{leader}')"
