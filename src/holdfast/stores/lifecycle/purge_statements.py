"""Statements that delete a tenant's rows, generated from the catalogue: every table with tenant rows, children before
parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ...core.queries import Query
from ...engines.dialect import Dialect
from ...migrations.catalogue import Table, tables_of_tenants


@cache
def bounded() -> Sequence[Query]:
    """Return, for each table, a statement that deletes at most ``:limit`` rows of a tenant."""
    return [_bounded(table) for table in _purged_tables()]


@cache
def unbounded() -> Sequence[Query]:
    """Return, for each table, a statement that deletes every row of a tenant."""
    return [
        _query(f"purge_{table.name}", f"DELETE FROM {table.name} WHERE {_of_tenant(table)}")
        for table in _purged_tables()
    ]


@cache
def anything() -> Query:
    """Return a query for whether a tenant has data worth keeping. It skips child tables, and rows that every tenant
    has.
    """
    names = {table.name for table in tables_of_tenants()}
    selects = [
        f"SELECT 1 FROM {table.name} WHERE {_of_tenant(table)}"  # names from the catalogue
        for table in tables_of_tenants()
        if table.treatment.missed and not names & {key.target for key in table.foreign_keys} - {table.name}
    ]
    return Query("tenants.anything", dict.fromkeys(Dialect, f"{' UNION ALL '.join(selects)} LIMIT 1"))


def _purged_tables() -> list[Table]:
    return [table for table in reversed(tables_of_tenants()) if table.treatment.purged]


def _bounded(table: Table) -> Query:
    key = ", ".join(column for column in table.primary_key if column != table.tenant)
    condition = _of_tenant(table)
    some = f" AND ({key}) IN (SELECT {key} FROM {table.name} WHERE {condition} LIMIT :limit)" if key else ""
    return _query(f"purge_some_{table.name}", f"DELETE FROM {table.name} WHERE {condition}{some}")


def _query(name: str, sql: str) -> Query:
    return Query(f"tenants.{name}", dict.fromkeys(Dialect, f"{sql} RETURNING 1"))


def _of_tenant(table: Table) -> str:
    return f"{table.tenant} = :tenant_id"
