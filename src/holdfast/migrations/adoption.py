"""Recognising a schema that was made without the runner, for example by ``psql -f``.

The catalogue is compared with the one that the migrations make: in memory for SQLite, in temporary tables that are rolled back
for PostgreSQL. Tables that no migration makes belong to others and are ignored; everything on our own tables counts.
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
"""Each part of a schema, such as ``column sessions.id``, and its definition in the words of the engine."""

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
    """How the schema of a database differs from the one that these migrations make, one line for each difference."""
    ours = tables_of(known)
    expected = await _expected(connection, known, ours)
    found = await _definitions(connection, ours)
    return [*_missing(expected, found), *_changed(expected, found), *_unexpected(expected, found)]


def _missing(expected: Definitions, found: Definitions) -> Iterator[str]:
    for part in sorted(expected.keys() - found.keys()):
        if not _in_a_missing_table(part, expected, found):
            yield f"{part} is missing"


def _in_a_missing_table(part: str, expected: Definitions, found: Definitions) -> bool:
    """Whether the whole table is missing, which is one difference and not one for each column."""
    kind, _, name = part.partition(" ")
    table = f"table {re.split('[.:]', name)[0]}"
    return kind != "table" and table in expected and table not in found


def _changed(expected: Definitions, found: Definitions) -> Iterator[str]:
    for part in sorted(expected.keys() & found.keys()):
        if expected[part] != found[part]:
            yield f"{part} is '{found[part]}', not '{expected[part]}'"


def _unexpected(expected: Definitions, found: Definitions) -> Iterator[str]:
    for part in sorted(found.keys() - expected.keys()):
        yield f"{part} is not part of the schema"


class _RollBack(Exception):
    """Undoes the temporary tables."""


async def _expected(connection: Connection, known: Sequence[Migration], ours: Collection[str]) -> Definitions:
    if connection.dialect is Dialect.SQLITE:
        memory = ApswConnection(in_memory(known))
        try:
            return await _definitions(memory, ours)
        finally:
            memory.raw.close()
    found: Definitions = {}
    try:
        async with connection.savepoint():
            # Tables that only this connection sees: no right to create a schema is needed, and no name can be taken.
            await connection.fetch("SET LOCAL search_path TO pg_temp", ())
            for statement in [each for migration in known for each in statements(migration.up)]:
                await connection.fetch(statement, ())
            found = await _definitions(connection, ours)
            raise _RollBack
    except _RollBack:
        return found


async def _definitions(connection: Connection, ours: Collection[str]) -> Definitions:
    if connection.dialect is Dialect.POSTGRES:
        rows = await connection.fetch(_POSTGRES, ())
        return {f"{kind} {name}": definition or "" for kind, name, table, definition in rows if table in ours}
    found: dict[str, str] = {}
    for kind, name, table, sql in await connection.fetch(_SQLITE, ()):
        if table not in ours:
            continue
        text = _normalised(sql)
        if kind == "table" and "VIRTUAL" not in text.partition("(")[0]:
            found |= _sqlite_table(name, text)
        else:
            found[f"{kind} {name}" if name == table else f"{kind} {table}.{name}"] = text
    return found


def _sqlite_table(name: str, text: str) -> Definitions:
    """A table's columns and constraints: SQLite keeps them as the text of the statement only."""
    body, _, options = text.partition("(")[2].rpartition(")")
    found = {f"table {name}": options.strip()}
    for item in _items(body):
        if _CONSTRAINT.match(item):
            found[f"constraint {name}: {item}"] = item
        else:
            column, _, definition = item.partition(" ")
            found[f"column {name}.{column}"] = definition
    return found


def _items(body: str) -> list[str]:
    """The parts of a list, separated by the commas that are in no parenthesis and no string."""
    items, depth, quoted, start = [], 0, False, 0
    for place, char in enumerate(body):
        if char == "'":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(char, 0)
            if char == "," and not depth:
                items.append(body[start:place].strip())
                start = place + 1
    return [*items, body[start:].strip()]


def _normalised(sql: str) -> str:
    return re.sub(r"\s+", " ", _COMMENT.sub("", sql)).strip()
