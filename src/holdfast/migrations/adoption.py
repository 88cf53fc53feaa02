"""Compare a schema that was created without the runner, for example by ``psql -f``, with that of the migrations.

The expected catalogue is built in memory for SQLite, and in temporary tables that are rolled back for PostgreSQL. Tables that
no migration creates belong to other programs and are ignored; on our own tables every difference counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ..drivers.apsw import ApswConnection
from ..engines.dialect import Dialect
from ..engines.protocol import Connection
from .catalogue import in_memory
from .files import Migration, statements, tables_of

Definitions = Mapping[str, str]
"""Parts of a schema, such as ``column sessions.id``, with their definitions as the engine reports them."""

_SQLITE = """SELECT type, name, tbl_name, sql FROM sqlite_schema
WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY type, name"""
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_CONSTRAINT = re.compile(r"(PRIMARY KEY|FOREIGN KEY|UNIQUE|CHECK|CONSTRAINT)\b", re.IGNORECASE)

_POSTGRES = """
SELECT 'table', c.relname::text, c.relname::text, array_to_string(c.reloptions, ', ')
FROM pg_catalog.pg_class AS c WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'column', c.relname || '.' || a.attname, c.relname,
    concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'COLLATE ' || nullif(l.collname, 'default'),
        CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
        CASE WHEN a.attstorage <> t.typstorage THEN 'STORAGE ' || a.attstorage::text END)
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint', c.relname || '.' || k.conname, c.relname,
    concat_ws(' ', pg_get_constraintdef(k.oid, true), array_to_string(i.reloptions, ', '))
FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
LEFT JOIN pg_catalog.pg_class AS i ON i.oid = k.conindid AND k.contype <> 'f'
WHERE k.contype <> 'n' AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'index', c.relname || '.' || i.relname, c.relname, pg_get_indexdef(i.oid, 0, true)
FROM pg_catalog.pg_index AS x
JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid
JOIN pg_catalog.pg_class AS c ON c.oid = x.indrelid
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
    AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_constraint AS k WHERE k.conindid = i.oid AND k.contype <> 'f')
UNION ALL
SELECT 'trigger', c.relname || '.' || t.tgname, c.relname, pg_get_triggerdef(t.oid, true)
FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace"""


async def differences(connection: Connection, known: Sequence[Migration]) -> list[str]:
    """Return the differences between a database's schema and the schema of these migrations, one line for each."""
    ours = tables_of(known)
    expected = await _expected(connection, known, ours)
    actual = await _definitions(connection, ours)
    return [*_missing(expected, actual), *_changed(expected, actual), *_unexpected(expected, actual)]


def _missing(expected: Definitions, actual: Definitions) -> Iterator[str]:
    for part in sorted(expected.keys() - actual.keys()):
        if not _in_a_missing_table(part, expected, actual):
            yield f"{part} is missing"


def _in_a_missing_table(part: str, expected: Definitions, actual: Definitions) -> bool:
    """Return whether the whole table is missing, which counts as one difference and not one for each column."""
    kind, _, name = part.partition(" ")
    table = f"table {re.split('[.:]', name)[0]}"
    return kind != "table" and table in expected and table not in actual


def _changed(expected: Definitions, actual: Definitions) -> Iterator[str]:
    for part in sorted(expected.keys() & actual.keys()):
        if expected[part] != actual[part]:
            yield f"{part} is '{actual[part]}', not '{expected[part]}'"


def _unexpected(expected: Definitions, actual: Definitions) -> Iterator[str]:
    for part in sorted(actual.keys() - expected.keys()):
        yield f"{part} is not part of the schema"


class _RollBack(Exception):
    """Raised to roll back the temporary tables."""


async def _expected(connection: Connection, known: Sequence[Migration], ours: Collection[str]) -> Definitions:
    if connection.dialect is Dialect.SQLITE:
        memory = ApswConnection(in_memory(known))
        try:
            return await _definitions(memory, ours)
        finally:
            memory.raw.close()
    definitions: Definitions = {}
    try:
        async with connection.savepoint():
            # Temporary tables are private to this connection: they need no right to create a schema, and names cannot clash.
            await connection.fetch("SET LOCAL search_path TO pg_temp", ())
            for sql in [statement for migration in known for statement in statements(migration.up)]:
                await connection.fetch(sql, ())
            definitions = await _definitions(connection, ours)
            raise _RollBack
    except _RollBack:
        return definitions


async def _definitions(connection: Connection, ours: Collection[str]) -> Definitions:
    if connection.dialect is Dialect.POSTGRES:
        rows = await connection.fetch(_POSTGRES, ())
        return {f"{kind} {name}": definition or "" for kind, name, table, definition in rows if table in ours}
    definitions: dict[str, str] = {}
    for kind, name, table, sql in await connection.fetch(_SQLITE, ()):
        if table not in ours:
            continue
        text = _normalise(sql)
        if kind == "table" and "VIRTUAL" not in text.partition("(")[0]:
            definitions |= _sqlite_table(name, text)
        else:
            definitions[f"{kind} {name}" if name == table else f"{kind} {table}.{name}"] = text
    return definitions


def _sqlite_table(name: str, text: str) -> Definitions:
    """Parse a table's columns and constraints from its CREATE statement, which is all that SQLite stores of them."""
    body, _, options = text.partition("(")[2].rpartition(")")
    definitions = {f"table {name}": options.strip()}
    for item in _split_items(body):
        if _CONSTRAINT.match(item):
            definitions[f"constraint {name}: {item}"] = item
        else:
            column, _, definition = item.partition(" ")
            definitions[f"column {name}.{column}"] = definition
    return definitions


def _split_items(body: str) -> list[str]:
    """Split a list at the commas outside of parentheses and strings."""
    items, depth, quoted, start = [], 0, False, 0
    for index, char in enumerate(body):
        if char == "'":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(char, 0)
            if char == "," and not depth:
                items.append(body[start:index].strip())
                start = index + 1
    return [*items, body[start:].strip()]


def _normalise(sql: str) -> str:
    return re.sub(r"\s+", " ", _COMMENT.sub("", sql)).strip()
