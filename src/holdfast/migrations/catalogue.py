"""The tables that the migrations make, with their keys: what purges, exports and sharding are derived from.

The catalogue is read from an SQLite database in memory that has had all migrations. It is the same on both engines (a test
compares them) but for the search index, which only SQLite keeps in tables. A new table is purged with its tenant, exported and
distributed without being named here; ``EXCEPTIONS`` and ``GLOBAL`` say which tables are not, and why.
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
    "server_settings": "what all processes on a database share",
}
"""Tables without ``tenant_id``. Where a row belongs to a tenant all the same, its column is called ``tenant``."""


class Treatment(Struct, frozen=True):
    """How a table differs from others."""

    why: str
    exported: bool = True
    """Whether its rows are part of a bundle."""
    purged: bool = True
    """Whether the purge of a tenant deletes its rows by itself."""
    missed: bool = True
    """Whether its rows keep a tenant from being deleted without ``cascade``."""


EXCEPTIONS = {
    "tenants": Treatment("the row of the tenant goes last", purged=False, missed=False),
    "message_texts": Treatment(
        "removed with its message, because SQLite's word index must be told what it held; the indexer makes it again",
        exported=False,
        purged=False,
    ),
    "search_progress": Treatment("the indexer makes it again", exported=False),
    "api_keys": Treatment("keys belong to a server, and go with their tenant", exported=False, missed=False),
    "erasures": Treatment("the record of what was erased is kept", exported=False, purged=False, missed=False),
    "run_queue": Treatment("repeats what the runs say", missed=False),
    "object_packs": Treatment("an export takes bodies out of packs", exported=False, missed=False),
    "object_totals": Treatment("sums that stay when the objects went", missed=False),
    "pending_groups": Treatment("counters that stay when the messages went", missed=False),
    "lg_log": Treatment("counters that stay when the pieces went", missed=False),
    "activity": Treatment("the audit log goes with its tenant", missed=False),
    "compaction_policies": Treatment("a setting", missed=False),
    "retention_policies": Treatment("a setting", missed=False),
    "retention_sweeps": Treatment("who sweeps at the moment", exported=False, missed=False),
}
_USUAL = Treatment("")

_TABLE = "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid"
_KEYS = 'SELECT id, "table", "from", "to", on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq'


class ForeignKey(Struct, frozen=True):
    """A foreign key: its columns and those they refer to, in order, and whether rows go with those they refer to."""

    target: str
    columns: tuple[tuple[str, str], ...]
    cascades: bool


class Table(Struct, frozen=True):
    """A table, as the migrations make it."""

    name: str
    columns: tuple[str, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()

    @property
    def tenant(self) -> str | None:
        """The column that says whose a row is; ``None`` if rows belong to no tenant."""
        named = "id" if self.name == "tenants" else TENANT if TENANT in self.columns else "tenant"
        return named if named in self.columns else None

    @property
    def treatment(self) -> Treatment:
        """What is special about it."""
        return EXCEPTIONS.get(self.name, _USUAL)


@cache
def tables() -> Mapping[str, Table]:
    """Every table that the migrations make on both engines, by name."""
    connection = in_memory(migrations(Dialect.SQLITE))
    try:
        return {name: _described(connection, name) for name in tables_of(migrations(Dialect.POSTGRES))}
    finally:
        connection.close()


@cache
def tables_of_tenants() -> Sequence[Table]:
    """The tables whose rows belong to tenants: the list of tenants, then each after those that its foreign keys refer to."""
    ours = [table for table in parents_first(tables().values()) if table.tenant is not None]
    return sorted(ours, key=lambda table: table.name != "tenants")


def parents_first(all_tables: Iterable[Table]) -> list[Table]:
    """Tables in an order in which foreign keys refer to earlier ones; the same order for the same tables.

    Where tables refer to each other in a circle, or to themselves, rows must go with those they refer to (``ON DELETE
    CASCADE``): then they can be deleted in any order.

    Raises:
        SchemaMismatch: a foreign key in a circle does not cascade.
    """
    by_name = {table.name: table for table in all_tables}
    keys = [(table, key) for table in by_name.values() for key in table.foreign_keys if key.target in by_name]
    firm = {(table.name, key.target) for table, key in keys if not key.cascades}
    for name in sorted(by_name):
        if (name, name) in firm:
            raise SchemaMismatch(f"the foreign key of {name} to itself must be ON DELETE CASCADE")
    graph = {name: {key.target for table, key in keys if table.name == name} - {name} for name in by_name}
    while True:
        try:
            order = TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}).static_order()
            return [by_name[name] for name in order]
        except CycleError as error:
            circle: list[str] = error.args[1]
            # Each comes before the next one, which refers to it.
            loose = next((pair for pair in zip(circle[1:], circle, strict=False) if pair not in firm), None)
            if loose is None:
                way = " -> ".join(reversed(circle))
                raise SchemaMismatch(
                    f"foreign keys go round in a circle: {way}; one of them must be ON DELETE CASCADE"
                ) from error
            graph[loose[0]].discard(loose[1])


def in_memory(known: Sequence[Migration]) -> apsw.Connection:
    """A database in memory that has had these migrations."""
    connection = apsw.Connection(":memory:")
    with connection:
        for migration in known:
            connection.execute(migration.up)
    return connection


def _described(connection: apsw.Connection, name: str) -> Table:
    columns: list[tuple[Any, ...]] = connection.execute(_TABLE, (name,)).fetchall()
    keys: dict[int, ForeignKey] = {}
    for number, target, column, to, on_delete in connection.execute(_KEYS, (name,)):
        before = keys[number].columns if number in keys else ()
        keys[number] = ForeignKey(target, (*before, (column, to)), on_delete == "CASCADE")
    return Table(
        name,
        tuple(column for column, _ in columns),
        tuple(column for column, place in sorted(columns, key=lambda row: row[1]) if place),
        tuple(keys.values()),
    )
