"""Every statement can be prepared on every engine."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import holdfast
from holdfast import Holdfast
from holdfast.core.filters import FilterColumns
from holdfast.engines.dialect import Dialect
from tests.migrations import catalogue
from tests.migrations.statements import all_statements, clauses, modules, tables_in

SQLITE = all_statements(Dialect.SQLITE)
POSTGRES = all_statements(Dialect.POSTGRES)


@pytest.fixture(scope="module")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("statements") / "a.db")
    Holdfast(path).close()
    return path


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None) as connection:
        yield connection


def test_the_search_finds_the_statements() -> None:
    """Without this check, the tests below could pass with no statement at all."""
    assert len(SQLITE) > 150
    assert len(POSTGRES) > 150
    for actual in (SQLITE, POSTGRES):
        names = {statement.name for statement in actual}
        for name in ("conversation.sessions.create", "conversation.log_reading.list", "lifecycle.tenants.list"):
            assert name in names
        tables = {table for statement in actual for table in tables_in(statement.text)}
        assert {"tenants", "sessions", "messages"} <= tables


def test_every_statement_can_be_prepared_on_apsws_sqlite(sqlite_file: str) -> None:
    connection = apsw.Connection(sqlite_file)
    for statement in SQLITE:
        connection.execute(f"EXPLAIN {statement.sql}", (None,) * len(statement.parameters)).fetchall()
    connection.close()


def test_every_statement_can_be_prepared_on_pythons_own_sqlite(sqlite_file: str) -> None:
    connection = sqlite3.connect(sqlite_file)
    for statement in SQLITE:
        arguments = {str(n): None for n in range(1, len(statement.parameters) + 1)}
        connection.execute(f"EXPLAIN {statement.sql}", arguments).fetchall()
    connection.close()


def test_every_statement_can_be_prepared_on_postgres(postgres: psycopg.Connection[Any]) -> None:
    for number, statement in enumerate(POSTGRES):
        postgres.execute(f"PREPARE s{number} AS {statement.sql}".encode())
    ((prepared,),) = postgres.execute("SELECT COUNT(*) FROM pg_prepared_statements").fetchall()
    assert prepared == len(POSTGRES)


def test_every_query_exists_on_both_engines_or_names_its_engine() -> None:
    """Queries for one engine are listed here, so that no variant is forgotten."""
    one_sided = {statement.name for statement in SQLITE} ^ {statement.name for statement in POSTGRES}
    text_index = {"index", "remove", "removed", "to_remove", "can_index", "merge", "drop"}
    steps = {"intend_all"}
    together = {
        "commit_all",
        "commit_bare",
        "commit_one_bare",
        "append",
        "append_one",
        "insert_many",
    }
    indexes_left_alone = {"touch_this_minute"}
    without_an_array = {"known_two"}
    optimistic = {"log_and_places", "put_if_unchanged", "put_writes_if_unchanged"}
    initial = {*text_index, *steps, *together, *indexes_left_alone, *without_an_array, *optimistic}
    assert {name.rpartition(".")[2] for name in one_sided} <= initial, sorted(one_sided)


def test_every_index_named_in_a_statement_exists(sqlite_file: str) -> None:
    """SQLite refuses a statement that names an index it does not have."""
    connection = apsw.Connection(sqlite_file)
    indexes = {name for table in catalogue.of_sqlite(connection).values() for name in table.indexes}
    connection.close()
    sources = Path(holdfast.__file__).parent.joinpath("stores").rglob("*.py")
    named = {name for source in sources for name in re.findall(r'"(\w+_by_\w+)"', source.read_text("utf-8"))}
    assert named
    assert named <= indexes


def test_the_columns_of_every_filter_exist(sqlite_file: str) -> None:
    connection = apsw.Connection(sqlite_file)
    columns = {name for table in catalogue.of_sqlite(connection).values() for name in table.columns}
    connection.close()
    filters = [value for module in modules() for value in vars(module).values() if isinstance(value, FilterColumns)]
    assert filters
    for item in filters:
        assert {
            name for sql, _ in item._columns.values() for name in re.findall("[a-z_]+", sql.rpartition(".")[2])
        } <= columns
        assert len(list(clauses(item, Dialect.SQLITE))) > 50


def test_a_statement_that_an_engine_rejects_is_detected(sqlite_file: str, postgres: psycopg.Connection[Any]) -> None:
    connection = apsw.Connection(sqlite_file)
    with pytest.raises(apsw.SQLError):
        connection.execute("EXPLAIN SELECT nothing FROM sessions WHERE tenant_id = ?1", (None,))
    connection.close()
    with pytest.raises(psycopg.errors.UndefinedColumn):
        postgres.execute("PREPARE planted AS SELECT nothing FROM sessions WHERE tenant_id = $1")
