"""The rules for distributing the schema over several machines by tenant, and their violations.

Citus puts all rows of a tenant on one machine. It can do so only if everything that ties rows together, keys above all, ties
rows of one tenant, and if every statement names its tenant. Each rule yields its violations, so that a test can
also plant a violation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from holdfast.migrations.catalogue import GLOBAL as DECLARED_GLOBAL
from holdfast.migrations.catalogue import TENANT
from tests.migrations.catalogue import Table, of_postgres
from tests.migrations.statements import Named, tables_in

GLOBAL = {*DECLARED_GLOBAL, "schema_migrations"}
"""The tables above all tenants. They are small, and every machine has a copy."""

_TRIGGERS = "SELECT tgname::text, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
_SEQUENCES = "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace"
_DEFAULTS = """
SELECT adrelid::regclass::text, pg_get_expr(adbin, adrelid) FROM pg_attrdef
JOIN pg_class ON pg_class.oid = adrelid WHERE relnamespace = current_schema()::regnamespace"""
_GENERATED = """
SELECT attrelid::regclass::text, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = current_schema()::regnamespace AND (attidentity <> '' OR attgenerated <> '') AND attnum > 0"""
_VOLATILE = "SELECT DISTINCT proname::text FROM pg_proc WHERE provolatile = 'v'"
_CALL = re.compile(r"\b([a-z_][a-z0-9_]*)\s*\(", re.IGNORECASE)
_NO_FUNCTIONS = {
    "values",
    "in",
    "exists",
    "any",
    "all",
    "and",
    "or",
    "not",
    "as",
    "on",
    "over",
    "filter",
    "where",
    "set",
}


def wrong_with_tables(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Return the reasons why the tables of a database cannot be distributed."""
    for name, table in of_postgres(connection).items():
        if name not in GLOBAL:
            yield from _wrong_with_table(name, table)
    for trigger, table in connection.execute(_TRIGGERS):
        yield f"{table} has the trigger {trigger}"
    for (sequence,) in connection.execute(_SEQUENCES):
        yield f"there is the sequence {sequence}"
    for table, column in connection.execute(_GENERATED):
        yield f"{table}.{column} is made by the database"
    volatile = _volatile(connection)
    for table, default in connection.execute(_DEFAULTS):
        for function in volatile & set(_calls(default)):
            yield f"a default of {table} calls {function}, which gives every machine another answer"


def _wrong_with_table(name: str, table: Table) -> Iterator[str]:
    if TENANT not in table.columns:
        yield f"{name} has no {TENANT}, and is not one of the tables above all tenants"
        return
    if table.columns[TENANT].nullable:
        yield f"{name}.{TENANT} may be empty"
    if table.primary_key[:1] != (TENANT,):
        yield f"the primary key of {name} does not begin with {TENANT}"
    for index, on in table.indexes.items():
        if on.columns[:1] != (TENANT,):
            yield f"the {'unique ' if on.unique else ''}index {index} of {name} does not begin with {TENANT}"
    for key in table.foreign_keys:
        if key.target not in GLOBAL and (key.columns[:1], key.target_columns[:1]) != ((TENANT,), (TENANT,)):
            yield f"the foreign key of {name} to {key.target} does not begin with {TENANT}"


def wrong_with_statement(statement: Named, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Return the reasons why a statement cannot be sent to the one machine of its tenant."""
    tables = tables_in(statement.text) - GLOBAL
    if not tables:
        return
    if not re.search(rf"\b{TENANT} = :{TENANT}\b", statement.text) and not _inserts_tenant(statement.text):
        yield f"{statement.name} does not say '{TENANT} = :{TENANT}'"
    for function in _volatile(connection) & set(_calls(statement.text)):
        yield f"{statement.name} calls {function}, which gives every machine another answer"
    for table, conditions in _scans(statement, connection):
        if table not in GLOBAL and not any(_names_tenant(condition) for condition in conditions):
            yield f"{statement.name} reads {table} of every tenant ({' and '.join(conditions) or 'no condition'})"


def _names_tenant(condition: str) -> bool:
    """Return whether a condition, as PostgreSQL prints it, is true for rows of one tenant only."""
    return any(re.fullmatch(rf"(?:\w+\.)?{TENANT} = .+", part) and " OR " not in part for part in _parts(condition))


def _parts(condition: str) -> list[str]:
    """Split a condition at the outermost AND."""
    condition = condition.strip()
    while condition.startswith("(") and _closing(condition) == len(condition) - 1:
        condition = condition[1:-1]
    parts, depth, start = [], 0, 0
    for place, char in enumerate(condition):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if not depth and condition.startswith(" AND ", place):
            parts.append(condition[start:place])
            start = place + len(" AND ")
    parts.append(condition[start:])
    return parts if len(parts) == 1 else [inner for part in parts for inner in _parts(part)]


def _closing(text: str) -> int:
    """Return the position of the parenthesis that closes the first one."""
    depth = 0
    for place, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if not depth:
            return place
    return -1


def _inserts_tenant(text: str) -> bool:
    """Return whether an INSERT's first column is the tenant, with the tenant of the call as its value."""
    into = re.match(rf"\s*INSERT INTO \w+ \({TENANT}\b", text)
    return bool(into and re.search(rf"\b(?:VALUES\s*\(|SELECT\s+):{TENANT}\b", text))


def _scans(statement: Named, connection: psycopg.Connection[Any]) -> list[tuple[str, list[str]]]:
    """Return the tables that PostgreSQL reads for a statement, each with the conditions on its rows."""
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL enable_seqscan = off")
        row = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {statement.sql}".encode()).fetchone()
    assert row is not None
    nodes = [
        node for node in _nodes(row[0][0]["Plan"]) if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    ]
    names = ("Index Cond", "Recheck Cond", "Filter", "One-Time Filter")
    return [(node["Relation Name"], [node[name] for name in names if name in node]) for node in nodes]


def _nodes(node: dict[str, Any]) -> Iterable[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _volatile(connection: psycopg.Connection[Any]) -> set[str]:
    return {row[0] for row in connection.execute(_VOLATILE)} - _NO_FUNCTIONS


def _calls(text: str) -> list[str]:
    bare = re.sub(r"'(?:[^']|'')*'|--[^\n]*", "", text)
    return [name.lower() for name in _CALL.findall(bare)]
