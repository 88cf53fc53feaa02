"""Test tables in a real database of either engine, and the checks of their statements."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import psycopg
import pytest

from holdfast import FixedClock, Holdfast, Limits, SeededIds, TenantHandle
from holdfast.core.queries import Query
from holdfast.core.tables import TypedTable
from holdfast.engines.dialect import Dialect
from tests.migrations.sharding import wrong_with_statement
from tests.migrations.statements import of_table

TYPES = {
    Dialect.SQLITE: {"id": "TEXT", "json": "TEXT", "bool": "INTEGER", "time": "INTEGER", "text": "TEXT", "int": "INTEGER"},
    Dialect.POSTGRES: {
        "id": "UUID", "json": "JSONB", "bool": "BOOLEAN", "time": "TIMESTAMPTZ", "text": 'TEXT COLLATE "C"', "int": "BIGINT"
    },
}  # fmt: skip
LIMITS = Limits(list_rows=6, page_rows=5, name_bytes=40)
S = TypeVar("S")
T = TypeVar("T", bound=TypedTable[Any])


class TableDatabase:
    """A database with the tables of one test."""

    def __init__(self, opened: Holdfast, clock: FixedClock, dialect: Dialect, execute: Callable[..., Any]) -> None:
        self._opened, self.clock, self.dialect, self.execute = opened, clock, dialect, execute

    def tenant(self, name: str) -> TenantHandle:
        """Return the handle of a tenant."""
        return self._opened.tenant(name)

    def store(self, asynchronous: type[Any], blocking: Callable[[Any], S], tenant: str = "acme") -> S:
        """Return a store of a tenant, for synchronous calls."""
        handle = self._opened.tenant(tenant)
        return blocking(asynchronous(handle._engine, handle._scope))


@contextmanager
def database(
    request: pytest.FixtureRequest, folder: Path, tables: str, *statements: str, limits: Limits = LIMITS
) -> Iterator[TableDatabase]:
    """Open the database of a test, on the engine of a fixture with the parameters ``sqlite`` and ``postgres``.

    ``tables`` are the names of its tables, separated by spaces.
    """
    clock = FixedClock()
    if request.param == "sqlite":
        address, dialect = str(folder / "a.db"), Dialect.SQLITE
        opened = Holdfast(address, clock=clock, ids=SeededIds(), limits=limits)
        raw: Any = apsw.Connection(address)
    else:
        address, dialect = request.getfixturevalue("postgres_url"), Dialect.POSTGRES
        opened = Holdfast(address, clock=clock, ids=SeededIds(), limits=limits)
        raw = psycopg.connect(address, autocommit=True)
    try:
        for statement in statements:
            raw.execute(statement.format_map(TYPES[dialect]))
        yield TableDatabase(opened, clock, dialect, lambda *sql: raw.execute(*sql).fetchall())
    finally:
        opened.close()
        for table in tables.split():
            raw.execute(f"DROP TABLE {table}")
        raw.close()


def with_defect(table: T, old: str, new: str) -> T:
    """Return a copy of a table with a defect in its statements."""
    result = copy.copy(table)
    texts = {name: dict(query.texts) for name, query in table.by_name.items()}
    wrong = {name: {at: sql.replace(old, new) for at, sql in both.items()} for name, both in texts.items()}
    assert wrong != texts, f"no statement of {table.name} contains {old!r}"
    result.__dict__["by_name"] = {name: Query(name, both) for name, both in wrong.items()}
    return result


def pages(read: Callable[..., Any], limit: int) -> list[Any]:
    """Return the rows of all pages of a list; there are fewer than 20 pages."""
    page = read(limit=limit)
    rows = [*page]
    while page.next is not None:
        page = read(limit=limit, cursor=page.next)
        rows += page
        assert len(rows) < 20
    return rows


def detects(
    database: TableDatabase, promises: Sequence[Callable[..., None]], open: Callable[..., Any], tables: str
) -> bool:
    """Return whether a promise fails for the stores that ``open`` returns."""
    noticed = False
    for promise in promises:
        try:
            promise(database, open)
        except (Exception, pytest.fail.Exception):  # any error means that the defect was detected
            noticed = True
        for table in tables.split():
            database.execute(f"DELETE FROM {table} RETURNING 1")
    return noticed


def check_statements(database: TableDatabase, table: TypedTable[Any], request: pytest.FixtureRequest) -> None:
    """Check that every statement of a table can be prepared and is limited to one tenant."""
    result = list(of_table(table, database.dialect, "tests"))
    assert {item.name for item in result} >= {f"tests.{table.name}.{name}" for name in table.by_name}
    if database.dialect is Dialect.SQLITE:
        for value in result:
            database.execute(f"EXPLAIN {value.sql}", (None,) * len(value.parameters))
        return
    with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True, prepare_threshold=None) as raw:
        assert [wrong for item in result for wrong in wrong_with_statement(item, raw)] == []
