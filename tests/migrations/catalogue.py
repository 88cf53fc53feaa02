"""The schema of a database, in the same form for both engines."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import apsw
import psycopg

STORED_AS = {
    "text": "TEXT",
    "uuid": "TEXT",
    "json": "TEXT",
    "jsonb": "TEXT",
    "bigint": "INTEGER",
    "integer": "INTEGER",
    "smallint": "INTEGER",
    "boolean": "INTEGER",
    "timestamp with time zone": "INTEGER",
    "double precision": "REAL",
    "bytea": "BLOB",
    "tsvector": "TEXT",
}
"""Types of PostgreSQL, and what SQLite keeps in their place."""


SQLITES_TEXT_INDEX = "message_index"
"""Where PostgreSQL has an index over words, SQLite has a virtual table of this name, and tables of its own that begin so."""


class Column(NamedTuple):
    """A column: its type in SQLite's notation, and whether it may be NULL."""

    type: str
    nullable: bool


class Index(NamedTuple):
    """An index: its columns in order, whether it is unique, and whether it is partial."""

    columns: tuple[str, ...]
    unique: bool
    partial: bool


class ForeignKey(NamedTuple):
    """A foreign key."""

    columns: tuple[str, ...]
    target: str
    target_columns: tuple[str, ...]
    on_delete: str


class Table(NamedTuple):
    """A table."""

    columns: dict[str, Column]
    primary_key: tuple[str, ...]
    indexes: dict[str, Index]
    foreign_keys: frozenset[ForeignKey]

    @property
    def unique_keys(self) -> set[tuple[str, ...]]:
        """Return all unique keys."""
        return {self.primary_key} | {index.columns for index in self.indexes.values() if index.unique}


def of_sqlite(connection: apsw.Connection) -> dict[str, Table]:
    """The tables of a SQLite database."""
    names = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND substr(name, 1, ?) <> ?",
        (len(SQLITES_TEXT_INDEX), SQLITES_TEXT_INDEX),
    )
    return {name: _sqlite_table(connection, name) for (name,) in names.fetchall()}


def _sqlite_table(connection: apsw.Connection, table: str) -> Table:
    rows = connection.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (table,)).fetchall()
    indexes: dict[str, Index] = {}
    for name, unique, origin, partial in connection.execute(
        'SELECT name, "unique", origin, partial FROM pragma_index_list(?)', (table,)
    ).fetchall():
        if origin != "pk":
            indexes[name] = Index(_index_columns(connection, name), bool(unique), bool(partial))
    keys: dict[int, list[Any]] = {}
    for number, target, source, existing, on_delete in connection.execute(
        'SELECT id, "table", "from", "to", on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq', (table,)
    ).fetchall():
        keys.setdefault(number, []).append((target, source, existing, on_delete))
    return Table(
        {name: Column(kind, not notnull) for name, kind, notnull, _ in rows},
        tuple(name for name, _, _, place in sorted(rows, key=lambda row: row[3]) if place),
        indexes,
        frozenset(
            ForeignKey(tuple(part[1] for part in parts), parts[0][0], tuple(part[2] for part in parts), parts[0][3])
            for parts in keys.values()
        ),
    )


def _index_columns(connection: apsw.Connection, name: str) -> tuple[str, ...]:
    actual = connection.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,)).fetchall()
    # An expression in an index has no name; the catalogue has it only in the statement that created the index.
    computed = (item for (sql,) in connection.execute(_MADE_BY, (name,)) for item in _COMPUTED.findall(sql or ""))
    return tuple(next(computed) if column is None else column for (column,) in actual)


_MADE_BY = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?"
_COMPUTED = re.compile(r"\w+\([^()]*\)")


_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL), NOT a.attnotnull
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum"""
_INDEXES = """
SELECT t.relname, c.relname, i.indisprimary, i.indisunique, i.indpred IS NOT NULL,
       ARRAY(SELECT pg_get_indexdef(i.indexrelid, n, true) FROM generate_series(1, i.indnkeyatts) AS n ORDER BY n)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_am AS a ON a.oid = c.relam AND a.amname <> 'gin'
WHERE t.relnamespace = current_schema()::regnamespace"""
_WORD_INDEXES = """
SELECT t.relname, c.relname, pg_get_indexdef(c.oid, 0, true) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_am AS a ON a.oid = c.relam AND a.amname = 'gin'
WHERE t.relnamespace = current_schema()::regnamespace"""
_FOREIGN_KEYS = """
SELECT s.relname, t.relname,
       ARRAY(SELECT attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (n, place)
             JOIN pg_attribute ON attrelid = k.conrelid AND attnum = n ORDER BY place),
       ARRAY(SELECT attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (n, place)
             JOIN pg_attribute ON attrelid = k.confrelid AND attnum = n ORDER BY place),
       CASE k.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END
FROM pg_constraint AS k JOIN pg_class AS s ON s.oid = k.conrelid JOIN pg_class AS t ON t.oid = k.confrelid
WHERE k.contype = 'f' AND s.relnamespace = current_schema()::regnamespace"""


def of_postgres(connection: psycopg.Connection[Any]) -> dict[str, Table]:
    """The tables of the first schema on the path of a PostgreSQL database."""
    columns: dict[str, dict[str, Column]] = {}
    for table, name, kind, nullable in connection.execute(_COLUMNS):
        columns.setdefault(table, {})[name] = Column(STORED_AS[kind], nullable)
    primary: dict[str, tuple[str, ...]] = {}
    indexes: dict[str, dict[str, Index]] = {}
    for table, name, is_primary, unique, partial, on in connection.execute(_INDEXES):
        if is_primary:
            primary[table] = tuple(on)
        else:
            indexes.setdefault(table, {})[name] = Index(tuple(on), unique, partial)
    keys: dict[str, set[ForeignKey]] = {}
    for table, target, source, existing, on_delete in connection.execute(_FOREIGN_KEYS):
        keys.setdefault(table, set()).add(ForeignKey(tuple(source), target, tuple(existing), on_delete))
    return {
        table: Table(item, primary.get(table, ()), indexes.get(table, {}), frozenset(keys.get(table, ())))
        for table, item in columns.items()
    }


def word_indexes_of_postgres(connection: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    """The indexes over words: table, name and definition. Their keys are words, which have their tenant inside."""
    return connection.execute(_WORD_INDEXES).fetchall()


def word_indexes_of_sqlite(connection: apsw.Connection) -> list[str]:
    """The virtual tables of a SQLite database."""
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE%' ORDER BY name")
    return [name for (name,) in rows.fetchall()]


_EVERYTHING = """
SELECT line FROM (
    SELECT format('%s %s %s', relname, relkind, reloptions) AS line FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace
    UNION ALL
    -- By their order: a column that was dropped leaves its number behind.
    SELECT format('%s %s %s %s %s %s', relname, row_number() OVER (PARTITION BY attrelid ORDER BY attnum), attname,
                  format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid))
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = current_schema()::regnamespace AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT format('%s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint
        WHERE connamespace = current_schema()::regnamespace
    UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE relnamespace = current_schema()::regnamespace
    UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
    UNION ALL SELECT format('%s %s', tgrelid::regclass, tgname) FROM pg_trigger WHERE NOT tgisinternal
) AS lines ORDER BY line COLLATE "C" """


def everything_of_postgres(connection: psycopg.Connection[Any]) -> list[str]:
    """Every detail of a schema, one line each, to tell whether two are the same."""
    return [row[0] for row in connection.execute(_EVERYTHING)]


def everything_of_sqlite(connection: apsw.Connection) -> list[str]:
    """Every detail of a schema, one line each, to tell whether two are the same."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY 1, 2")
    return [f"{kind} {name} {sql}" for kind, name, sql in rows.fetchall()]


def everything(url: str) -> list[str]:
    """Return every part of the schema at an address, one line each."""
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            return everything_of_postgres(connection)
    raw = apsw.Connection(url)
    result = everything_of_sqlite(raw)
    raw.close()
    return result
