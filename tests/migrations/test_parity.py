"""Both engines have the same tables, columns, keys and indexes, made by migrations of the same numbers and names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

import holdfast
from holdfast import Holdfast
from holdfast.engines.dialect import Dialect
from holdfast.migrations.files import migrations, statements
from tests.migrations import catalogue
from tests.migrations.catalogue import Table

FOLDER = Path(holdfast.__file__).parent / "migrations"


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[dict[str, Table]]:
    path = str(tmp_path / "a.db")
    Holdfast(path).close()
    connection = apsw.Connection(path)
    yield catalogue.of_sqlite(connection)
    connection.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[dict[str, Table]]:
    with psycopg.connect(postgres_url) as connection:
        yield catalogue.of_postgres(connection)


WORDS = ("message_texts", "words")


def test_the_tables_are_the_same(sqlite: dict[str, Table], postgres: dict[str, Table]) -> None:
    assert sqlite.keys() == postgres.keys()
    assert {"schema_migrations", "tenants", "sessions", "messages"} <= sqlite.keys()


def test_the_columns_are_the_same_in_the_same_order(sqlite: dict[str, Table], postgres: dict[str, Table]) -> None:
    """The words of a message are an exception: SQLite stores them only in its index."""
    for name, table in sqlite.items():
        columns = {item: column for item, column in postgres[name].columns.items() if (name, item) != WORDS}
        assert list(table.columns.items()) == list(columns.items()), name
    assert WORDS[1] in postgres[WORDS[0]].columns


def test_the_keys_are_the_same(sqlite: dict[str, Table], postgres: dict[str, Table]) -> None:
    for name, table in sqlite.items():
        assert table.primary_key == postgres[name].primary_key, name
        assert table.unique_keys == postgres[name].unique_keys, name
        assert table.foreign_keys == postgres[name].foreign_keys, name


def test_the_indexes_are_the_same(sqlite: dict[str, Table], postgres: dict[str, Table]) -> None:
    for name, table in sqlite.items():
        assert table.indexes == postgres[name].indexes, name


def test_the_engines_differ_only_in_the_tables_of_sqlites_search_index(
    tmp_path: Path, sqlite: dict[str, Table], postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        ((table, name, definition),) = catalogue.word_indexes_of_postgres(connection)
    assert (table, name) == ("message_texts", "message_texts_words")
    assert "(words)" in definition
    raw = apsw.Connection(str(tmp_path / "a.db"))
    assert catalogue.word_indexes_of_sqlite(raw) == [catalogue.SQLITES_TEXT_INDEX]
    existing = raw.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    raw.close()
    only = {name for (name,) in existing} - sqlite.keys()
    assert only == {"message_index"} | {f"message_index_{part}" for part in ("config", "data", "idx", "removed")}


def test_a_difference_between_the_engines_is_detected(tmp_path: Path, sqlite: dict[str, Table]) -> None:
    connection = apsw.Connection(str(tmp_path / "a.db"))
    for change in (
        "ALTER TABLE sessions ADD COLUMN more TEXT",
        "CREATE UNIQUE INDEX more ON sessions (tenant_id, agent_id)",
        "CREATE TABLE more (tenant_id TEXT NOT NULL)",
    ):
        connection.execute("BEGIN")
        connection.execute(change)
        assert catalogue.of_sqlite(connection) != sqlite
        connection.execute("ROLLBACK")
    assert catalogue.of_sqlite(connection) == sqlite
    connection.close()


def test_every_sqlite_table_is_strict(tmp_path: Path, sqlite: dict[str, Table]) -> None:
    connection = apsw.Connection(str(tmp_path / "a.db"))
    lax = connection.execute(
        "SELECT name FROM pragma_table_list WHERE type = 'table' AND NOT strict AND name NOT LIKE 'sqlite_%'"
    )
    assert lax.fetchall() == []
    connection.close()


def test_the_files_have_the_same_numbers_and_names() -> None:
    names = [[str(migration) for migration in migrations(dialect)] for dialect in Dialect]
    assert names[0] == names[1]
    versions = [migration.version for migration in migrations(Dialect.SQLITE)]
    assert versions == list(range(1, len(versions) + 1))


def test_every_migration_is_one_file_and_the_folder_has_no_other_sql() -> None:
    existing = sorted(file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*.sql"))
    assert existing == [f"{migration}.sql" for migration in migrations(Dialect.SQLITE)]


@pytest.mark.parametrize("dialect", Dialect)
def test_splitting_a_file_loses_no_statement(dialect: Dialect) -> None:
    for migration in migrations(dialect):
        for script in (migration.up, migration.down):
            actual = statements(script)
            assert _bare(" ".join(actual)) == _bare(script), migration
            assert all(statement.endswith(";") for statement in actual), migration
            assert len(actual) == _bare(_TRIGGER_BODY.sub("", script)).count(";"), migration


_TRIGGER_BODY = re.compile(r"BEGIN\n.*?\nEND", re.DOTALL)


def _bare(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", text)).strip()
