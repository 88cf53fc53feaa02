"""A table of the test's own in a real database of either engine, and the statements written for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import psycopg
import pytest

from holdfast import FixedClock, Holdfast, Limits, SeededIds
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


class Place:
    """A database with the tables of one test."""

    def __init__(self, opened: Holdfast, clock: FixedClock, dialect: Dialect, execute: Callable[..., Any]) -> None:
        self._opened, self.clock, self.dialect, self.execute = opened, clock, dialect, execute

    def store(self, asynchronous: type[Any], blocking: Callable[[Any], S], tenant: str = "acme") -> S:
        """A store of a tenant, for synchronous calls."""
        handle = self._opened.tenant(tenant)
        return blocking(asynchronous(handle._engine, handle._scope))


@contextmanager
def place(request: pytest.FixtureRequest, folder: Path, table: str, *statements: str) -> Iterator[Place]:
    """A place on the engine that a fixture with the parameters ``sqlite`` and ``postgres`` was asked for."""
    clock = FixedClock()
    if request.param == "sqlite":
        address, dialect = str(folder / "a.db"), Dialect.SQLITE
        opened = Holdfast(address, clock=clock, ids=SeededIds(), limits=LIMITS)
        raw: Any = apsw.Connection(address)
    else:
        address, dialect = request.getfixturevalue("postgres_url"), Dialect.POSTGRES
        opened = Holdfast(address, clock=clock, ids=SeededIds(), limits=LIMITS)
        raw = psycopg.connect(address, autocommit=True)
    try:
        for statement in statements:
            raw.execute(statement.format_map(TYPES[dialect]))
        yield Place(opened, clock, dialect, lambda *sql: raw.execute(*sql).fetchall())
    finally:
        opened.close()
        raw.execute(f"DROP TABLE {table}")
        raw.close()


def planted(table: T, old: str, new: str) -> T:
    """The same table with a defect in its statements."""
    result = copy.copy(table)
    texts = {name: dict(query.texts) for name, query in table.by_name.items()}
    wrong = {name: {at: sql.replace(old, new) for at, sql in both.items()} for name, both in texts.items()}
    assert wrong != texts, f"no statement of {table.name} contains {old!r}"
    result.__dict__["by_name"] = {name: Query(name, both) for name, both in wrong.items()}
    return result


def pages(read: Callable[..., Any], limit: int) -> list[Any]:
    """The rows of all pages of a list, of which there are fewer than 20."""
    page = read(limit=limit)
    rows = [*page]
    while page.next is not None:
        page = read(limit=limit, cursor=page.next)
        rows += page
        assert len(rows) < 20
    return rows


def notices(place: Place, promises: Sequence[Callable[..., None]], open: Callable[..., Any], table: str) -> bool:
    """Whether a promise does not hold of the stores that ``open`` returns."""
    noticed = False
    for promise in promises:
        try:
            promise(place, open)
        except (Exception, pytest.fail.Exception):  # whatever goes wrong, it is noticed
            noticed = True
        place.execute(f"DELETE FROM {table} RETURNING 1")
    return noticed


def check_statements(place: Place, table: TypedTable[Any], request: pytest.FixtureRequest) -> None:
    """Every statement of a table can be prepared, and speaks of one tenant: the rules for statements of stores."""
    result = list(of_table(table, place.dialect, "tests"))
    assert {item.name for item in result} >= {f"tests.{table.name}.{name}" for name in table.by_name}
    if place.dialect is Dialect.SQLITE:
        for value in result:
            place.execute(f"EXPLAIN {value.sql}", (None,) * len(value.parameters))
        return
    with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True, prepare_threshold=None) as raw:
        assert [wrong for item in result for wrong in wrong_with_statement(item, raw)] == []
