"""Spreading the schema over several machines with Citus, by tenant.

Every table that has a ``tenant_id`` is distributed by it, all of them in one colocation group, so that everything of a tenant
lies on one machine. The few tables above all tenants are small and go to every machine whole: an open against any machine
then finds them, the list of migrations included. A table comes after the tables its foreign keys point to, because Citus
refuses a key into a table it does not yet know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct

from ..engines.dialect import Dialect
from ..engines.protocol import Connection
from ..errors import InvalidInput, SchemaMismatch
from . import runner

TENANT = "tenant_id"
_CREATED = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.IGNORECASE | re.MULTILINE)
_IN_SEQUENCE = "SET LOCAL citus.multi_shard_modify_mode TO 'sequential'"
"""Citus wants this where a key points to a table on every machine and both are made in one transaction."""

_INSTALLED = "SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus'"
_DONE = """SELECT c.relname::text FROM pg_dist_partition AS p
JOIN pg_catalog.pg_class AS c ON c.oid = p.logicalrelid
WHERE c.relnamespace = current_schema()::regnamespace"""
_COLUMNS = """SELECT c.relname::text, bool_or(a.attname = 'tenant_id')
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
GROUP BY c.relname ORDER BY c.relname"""
_KEYS = """SELECT source.relname::text, target.relname::text
FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_class AS source ON source.oid = k.conrelid
JOIN pg_catalog.pg_class AS target ON target.oid = k.confrelid
WHERE k.contype = 'f' AND source.relnamespace = current_schema()::regnamespace"""


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


async def distribute(connection: Connection) -> list[str]:
    """Distribute every table that is not yet, all of them or none, and say which statements did it.

    Raises:
        InvalidInput: this is not PostgreSQL, or it has no citus extension.
        SchemaMismatch: the migrations of this release are not all applied.
    """
    if connection.dialect is not Dialect.POSTGRES:
        raise InvalidInput("only PostgreSQL can be distributed over several machines, and this is SQLite")
    await runner.check(connection)
    if not await connection.fetch(_INSTALLED, ()):
        raise InvalidInput(
            "the citus extension is not installed in this database, so nothing was changed: "
            "run CREATE EXTENSION citus in it first"
        )
    async with connection.savepoint():
        done = [row[0] for row in await connection.fetch(_DONE, ())]
        statements = plan(await tables(connection), done=done)
        if statements:
            await connection.fetch(_IN_SEQUENCE, ())
        for statement in statements:
            await connection.fetch(statement, ())
    return statements


async def tables(connection: Connection) -> list[Table]:
    """Our tables in this database. Others that share the schema are none of our business."""
    ours = set(created_tables())
    pairs = await connection.fetch(_KEYS, ())
    return [
        Table(name, by_tenant, frozenset(target for source, target in pairs if source == name))
        for name, by_tenant in await connection.fetch(_COLUMNS, ())
        if name in ours
    ]


def created_tables() -> list[str]:
    """The names of all tables that the migrations and their ledger make on PostgreSQL."""
    scripts = [migration.up for migration in runner.migrations(Dialect.POSTGRES)]
    return ["schema_migrations", *(name for script in scripts for name in _CREATED.findall(script))]


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
    if not table.by_tenant:
        return f"SELECT create_reference_table('{table.name}')"
    if table.name == leader:
        return f"SELECT create_distributed_table('{table.name}', '{TENANT}')"
    return f"SELECT create_distributed_table('{table.name}', '{TENANT}', colocate_with => '{leader}')"
