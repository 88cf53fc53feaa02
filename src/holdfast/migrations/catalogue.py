"""Catalogue of the tables that the migrations create, from which purges, exports and sharding are derived.

In the tables of tenants, ``tenant_id`` is the first column of every primary key, unique key, foreign key and index.
Every statement on them names it, and no statement writes for two tenants. So the same schema can be sharded by tenant
(``distribution``), and the foreign keys determine the order in which tables are purged, exported and distributed.

It is read from an SQLite database in memory to which all migrations were applied. It is the same for both engines (a
test compares them) except for the search index, which only SQLite stores in tables. A new table is purged with its
tenant, exported and distributed without being listed here; ``EXCEPTIONS`` and ``GLOBAL`` list the tables that are not,
with the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import apsw
from msgspec import Struct

from ..engines.dialect import Dialect
from ..errors import SchemaMismatch
from .files import Migration, migrations, tables_of

TENANT = "tenant_id"
GLOBAL = {
    "tenants": "the list of tenants",
    "api_keys": "a key determines the tenant of a request",
    "erasures": "a record outlives its tenant",
    "run_queue": "a worker drives runs of any tenant",
    "server_settings": "the settings are shared by all processes on a database",
}
"""Tables without ``tenant_id``, with the reason. If their rows belong to tenants, the column is called ``tenant``."""


class Treatment(Struct, frozen=True):
    """How a table is treated differently by exports, purges and the check for remaining data."""

    why: str
    exported: bool = True
    """Whether its rows are part of a bundle."""
    purged: bool = True
    """Whether the generic purge of a tenant deletes its rows."""
    missed: bool = True
    """Whether its rows prevent the deletion of a tenant without ``cascade``."""


EXCEPTIONS = {
    "tenants": Treatment("the row of the tenant is deleted last", purged=False, missed=False),
    "message_texts": Treatment(
        "deleted with its message, because SQLite's word index needs the deleted words; the indexer creates it again",
        exported=False,
        purged=False,
    ),
    "search_progress": Treatment("the indexer creates it again", exported=False),
    "api_keys": Treatment("keys belong to a server and are deleted with their tenant", exported=False, missed=False),
    "erasures": Treatment("the record of an erasure is kept", exported=False, purged=False, missed=False),
    "run_queue": Treatment("derived from the runs", missed=False),
    "object_packs": Treatment("an export extracts bodies from packs", exported=False, missed=False),
    "object_totals": Treatment("totals that remain when the objects are deleted", missed=False),
    "pending_groups": Treatment("counters that remain when the messages are deleted", missed=False),
    "lg_log": Treatment("counters that remain when the pieces are deleted", missed=False),
    "activity": Treatment("the audit log is deleted with its tenant", missed=False),
    "compaction_policies": Treatment("a setting", missed=False),
    "retention_policies": Treatment("a setting", missed=False),
    "retention_sweeps": Treatment("the current holder of the sweep", exported=False, missed=False),
}
_DEFAULT = Treatment("")

_TABLE = "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid"
_KEYS = 'SELECT id, "table", "from", "to", on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq'


class ForeignKey(Struct, frozen=True):
    """A foreign key: its columns with the referenced columns, in order, and whether it is ``ON DELETE CASCADE``."""

    target: str
    columns: tuple[tuple[str, str], ...]
    cascades: bool


class Table(Struct, frozen=True):
    """A table, as created by the migrations."""

    name: str
    columns: tuple[str, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()

    @property
    def tenant(self) -> str | None:
        """The column with the tenant of a row; ``None`` if rows belong to no tenant."""
        column = "id" if self.name == "tenants" else TENANT if TENANT in self.columns else "tenant"
        return column if column in self.columns else None

    @property
    def treatment(self) -> Treatment:
        """The table's exception, or the default treatment."""
        return EXCEPTIONS.get(self.name, _DEFAULT)


@cache
def tables() -> Mapping[str, Table]:
    """Return every table that the migrations create on both engines, by name."""
    connection = in_memory(migrations(Dialect.SQLITE))
    try:
        return {name: _describe(connection, name) for name in tables_of(migrations(Dialect.POSTGRES))}
    finally:
        connection.close()


@cache
def tables_of_tenants() -> Sequence[Table]:
    """Return the tables whose rows belong to tenants: ``tenants``, then each table after those that it references."""
    ours = [table for table in parents_first(tables().values()) if table.tenant is not None]
    return sorted(ours, key=lambda table: table.name != "tenants")


def parents_first(all_tables: Iterable[Table]) -> list[Table]:
    """Sort tables so that foreign keys reference earlier ones. The order is deterministic.

    In a cycle of foreign keys, or a key to the same table, at least one key must be ``ON DELETE CASCADE``, so that the rows can
    be deleted in any order.

    Raises:
        SchemaMismatch: no foreign key of a cycle cascades.
    """
    by_name = {table.name: table for table in all_tables}
    keys = [(table, key) for table in by_name.values() for key in table.foreign_keys if key.target in by_name]
    restricting = {(table.name, key.target) for table, key in keys if not key.cascades}
    for name in sorted(by_name):
        if (name, name) in restricting:
            raise SchemaMismatch(f"the foreign key of {name} to itself must be ON DELETE CASCADE")
    graph = {name: {key.target for table, key in keys if table.name == name} - {name} for name in by_name}
    while True:
        try:
            order = TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order()
            return [by_name[name] for name in order]
        except CycleError as error:
            cycle: list[str] = error.args[1]
            # Each table of the cycle is referenced by the next one.
            cascading = next((pair for pair in zip(cycle[1:], cycle, strict=False) if pair not in restricting), None)
            if cascading is None:
                path = " -> ".join(reversed(cycle))
                raise SchemaMismatch(
                    f"foreign keys form a cycle: {path}; one of them must be ON DELETE CASCADE"
                ) from error
            graph[cascading[0]].discard(cascading[1])


def in_memory(known: Sequence[Migration]) -> apsw.Connection:
    """Create a database in memory and apply these migrations."""
    connection = apsw.Connection(":memory:")
    with connection:
        for migration in known:
            connection.execute(migration.up)
    return connection


def _describe(connection: apsw.Connection, name: str) -> Table:
    columns: list[tuple[Any, ...]] = connection.execute(_TABLE, (name,)).fetchall()
    keys: dict[int, ForeignKey] = {}
    for number, target, column, to, on_delete in connection.execute(_KEYS, (name,)):
        earlier = keys[number].columns if number in keys else ()
        keys[number] = ForeignKey(target, (*earlier, (column, to)), on_delete == "CASCADE")
    return Table(
        name,
        tuple(column for column, _ in columns),
        tuple(column for column, position in sorted(columns, key=lambda row: row[1]) if position),
        tuple(keys.values()),
    )
