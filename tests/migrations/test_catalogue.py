"""Purges, exports and sharding follow the catalogue: every table takes part, and a new one without being named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast, PoolOptions
from holdfast.bundles import export_tenant, import_tenant
from holdfast.engines.dialect import Dialect
from holdfast.errors import Conflict, SchemaMismatch
from holdfast.migrations import catalogue, files
from holdfast.migrations.catalogue import EXCEPTIONS, GLOBAL, ForeignKey, Table, parents_first
from holdfast.migrations.runner import created_tables
from holdfast.stores.lifecycle import purge_statements, tenants
from tests.errors import raises

POOL = PoolOptions(min_connections=1, max_connections=4)
CHOSEN: dict[tuple[str, str], Any] = {
    ("messages", "role"): "user",
    ("branches", "origin"): "fork",
    ("compaction_policies", "scope"): "agent",
    ("feedback", "issue_type"): "tool",
    ("general_feedback", "issue_type"): "tool",
    ("runs", "status"): "pending",
    ("runs", "finished_at"): None,
    ("runs", "lease_until"): None,
    ("tool_calls", "safety"): "ask",
    ("tool_calls", "status"): "finished",
    ("snapshots", "kind"): "step",
    ("rewinds", "status"): "rewound",
}
"""Values that a CHECK asks for. A table that cannot be filled without one fails the test until it is given here."""


class Database:
    """A database that is looked at and written to around Holdfast."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._postgres = psycopg.connect(url, autocommit=True) if url.startswith("postgresql:") else None
        self._sqlite = None if self._postgres else apsw.Connection(url)
        if self._sqlite:
            self._sqlite.execute("PRAGMA foreign_keys = ON")

    def moment(self) -> tuple[Any, bool | int]:
        """Return a time and a flag in the engine's types."""
        return ("2026-01-01 00:00:00.000001+00", True) if self._postgres else (1_767_225_600_000_001, 1)

    def close(self) -> None:
        for connection in (self._postgres, self._sqlite):
            if connection:
                connection.close()

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._sqlite:
            return self._sqlite.execute(statement, values).fetchall()
        assert self._postgres
        cursor = self._postgres.execute(statement.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []

    def columns(self) -> dict[str, dict[str, str]]:
        """Return every table with its columns and their types."""
        rows = self.execute(
            "SELECT table_name, column_name, udt_name FROM information_schema.columns WHERE table_schema = 'public' "
            "ORDER BY table_name, ordinal_position"
            if self._postgres
            else "SELECT t.name, c.name, lower(c.type) FROM pragma_table_list AS t, pragma_table_info(t.name) AS c "
            "WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        )
        result: dict[str, dict[str, str]] = {}
        for table, column, kind in rows:
            result.setdefault(table, {})[column] = kind
        return result

    def rows(self, table: str, tenant: str) -> list[tuple[Any, ...]]:
        """Return the rows in which a tenant's name occurs in any column."""
        return [row for row in self.execute(f"SELECT * FROM {table}") if tenant in repr(row)]

    def where(self, tenant: str) -> dict[str, list[tuple[Any, ...]]]:
        """Return the tables in which a tenant's name occurs, with these rows."""
        actual = {table: self.rows(table, tenant) for table in self.columns()}
        return {table: sorted(rows, key=repr) for table, rows in actual.items() if rows}

    def words(self) -> int:
        """Return the words in the search index. SQLite has them in a table that shows no rows."""
        if self._postgres:
            return self.execute("SELECT COUNT(*) FROM message_texts")[0][0]
        self.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab('main', 'message_index', 'row')")
        ((count,),) = self.execute("SELECT COUNT(*) FROM temp.words")
        self.execute("DROP TABLE temp.words")
        return count

    def fill(self, table: Table, tenant: str) -> None:
        """Insert a row of a tenant that refers to existing rows."""
        kinds = self.columns()[table.name]
        row = {column: self._value(table, column, kinds[column], tenant) for column in table.columns}
        for key in table.foreign_keys:
            if key.target != table.name:
                row |= self._parent(key, tenant)
        assert table.tenant is not None
        row[table.tenant] = tenant
        marks = ", ".join("?" for _ in row)
        self.execute(f"INSERT INTO {table.name} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def _parent(self, key: ForeignKey, tenant: str) -> dict[str, Any]:
        here, existing = zip(*key.columns, strict=True)
        target = catalogue.tables()[key.target].tenant
        actual = self.execute(f"SELECT {', '.join(existing)} FROM {key.target} WHERE {target} = ? LIMIT 1", (tenant,))
        return dict(zip(here, actual[0], strict=True)) if actual else {}

    def _value(self, table: Table, column: str, kind: str, tenant: str) -> Any:
        if (table.name, column) in CHOSEN:
            return CHOSEN[table.name, column]
        number = sum(map(ord, tenant))
        if kind == "uuid" or (kind == "text" and column == "id" and table.name in ("sessions", "messages", "runs")):
            return f"01890000-0000-7000-8000-{number:012}"
        values = {
            "integer": 1, "int8": 1, "int4": 1, "int2": 1, "real": 1.5, "float8": 1.5, "bool": True,
            "blob": f"body of {tenant}".encode(), "bytea": f"body of {tenant}".encode(),
            "timestamptz": "2026-01-01 00:00:00+00", "json": json.dumps({"of": tenant}),
            "jsonb": json.dumps({"of": tenant}), "tsvector": tenant, "text": f"{column} of {tenant}",
        }  # fmt: skip
        return values[kind]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("bare_postgres_url")
    Holdfast(url, auto_migrate=True).close()
    made = Database(url)
    yield made
    made.close()


def filled(database: Database, hf: Holdfast, tenant: str) -> None:
    """A row of a tenant in every table that has rows of tenants."""
    handle = hf.tenant(tenant)
    session = handle.sessions.create(key=f"key of {tenant}")
    handle.messages.append(session.id, role="user", content=f"words of {tenant}")
    while not hf.tenants.maintain().is_done:
        pass
    for table in catalogue.tables_of_tenants():
        if not database.execute(f"SELECT 1 FROM {table.name} WHERE {table.tenant} = ? LIMIT 1", (tenant,)):
            database.fill(table, tenant)


def delete(hf: Holdfast, database: Database, tenant: str) -> None:
    """Delete a tenant, whatever data it has."""
    database.execute("DELETE FROM retention_holds WHERE tenant_id = ?", (tenant,))
    hf.tenants.delete(tenant, cascade=True)


@pytest.mark.parametrize("rows", [1, 200])
def test_a_purge_leaves_no_row_of_the_tenant_in_any_table(
    rows: int, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "PURGED_ROWS", rows)
    expected = {table.name for table in catalogue.tables_of_tenants()}
    with Holdfast(database.url, pool=POOL) as hf:
        filled(database, hf, "zenith")
        words = database.words()
        theirs = database.where("zenith")
        filled(database, hf, "acme")
        assert database.words() > words
        assert expected <= {*database.where("acme")}
        delete(hf, database, "acme")
        assert {*database.where("acme")} == {"erasures"}, "the record of the erasure remains"
        assert database.words() == words
        assert database.where("zenith") == theirs
        assert {*theirs} >= expected


def test_every_table_belongs_to_tenants_or_is_declared_global(database: Database) -> None:
    existing = database.columns()
    initial = catalogue.tables()
    assert {*initial} == {*created_tables()} - {"schema_migrations"}
    assert {*initial} <= {*existing}
    for name, table in initial.items():
        assert table.columns == tuple(
            column for column in existing[name] if (name, column) != ("message_texts", "words")
        )
        assert (catalogue.TENANT in table.columns) is (name not in GLOBAL), name
    assert {name for name, table in initial.items() if table.tenant is None} == {"server_settings"}
    assert {*EXCEPTIONS} <= {*initial}
    assert all(
        exception.why and (exception.exported, exception.purged, exception.missed) != (True,) * 3
        for exception in EXCEPTIONS.values()
    )


def test_a_row_that_counts_as_data_prevents_the_deletion_of_its_tenant(database: Database) -> None:
    with Holdfast(database.url, pool=POOL) as hf:
        for table in catalogue.tables_of_tenants():
            if table.foreign_keys or table.name == "tenants":
                continue
            tenant = f"with-{table.name}"
            hf.tenants.create(tenant)
            database.fill(table, tenant)
            if table.treatment.missed:
                with raises(Conflict, reason="not_empty"):
                    hf.tenants.delete(tenant)
                delete(hf, database, tenant)
            else:
                hf.tenants.delete(tenant)
            assert {*database.where(f"'{tenant}'")} <= {"erasures"}


def test_rows_that_refer_to_each_other_can_be_imported(postgres_url: str) -> None:
    """SQLite defers any foreign key until an import is committed, PostgreSQL only those that say so."""
    with psycopg.connect(postgres_url) as connection:
        assert not_deferrable(connection) == []
        connection.execute(
            "ALTER TABLE contacts ADD FOREIGN KEY (tenant_id, merged_id) REFERENCES contacts (tenant_id, id)"
        )
        assert not_deferrable(connection) == [("contacts", "contacts")]
        connection.rollback()


def not_deferrable(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """Return the foreign keys to the same table, or to one that an import fills later, that are not DEFERRABLE."""
    order = [tenant.name for tenant in catalogue.tables_of_tenants()]
    actual = connection.execute(
        "SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND NOT condeferrable"
    )
    return [(here, existing) for here, existing in actual if order.index(existing) >= order.index(here)]


# Tables that are not listed anywhere


PLANTED = """
CREATE TABLE widgets (
    tenant_id {text}  NOT NULL,
    id        {text}  NOT NULL,
    parent_id {text},
    body      {bytes} NOT NULL,
    made_at   {time}  NOT NULL,
    is_new    {bool}  NOT NULL,
    settings  {json}  NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, parent_id) REFERENCES widgets (tenant_id, id) ON DELETE CASCADE DEFERRABLE
) {strict};

CREATE TABLE hens (
    tenant_id {text} NOT NULL,
    id        {int}  NOT NULL,
    egg_id    {int}  NOT NULL,
    PRIMARY KEY (tenant_id, id)/*sqlite ,
    FOREIGN KEY (tenant_id, egg_id) REFERENCES eggs (tenant_id, id) ON DELETE CASCADE*/
) {strict};

CREATE TABLE eggs (
    tenant_id {text} NOT NULL,
    id        {int}  NOT NULL,
    hen_id    {int}  NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, hen_id) REFERENCES hens (tenant_id, id) ON DELETE CASCADE DEFERRABLE
) {strict};

/*pg
ALTER TABLE hens ADD FOREIGN KEY (tenant_id, egg_id) REFERENCES eggs (tenant_id, id) ON DELETE CASCADE DEFERRABLE;
*/

-- down

DROP TABLE eggs;
DROP TABLE hens;
DROP TABLE widgets;
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A release with one more migration: a table that refers to itself, and two that refer to each other."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for file in files.FOLDER.glob("*.sql"):
        shutil.copy(file, folder)
    (folder / f"{len(files.migrations(Dialect.SQLITE)) + 1:04}_planted.sql").write_text(PLANTED)
    caches = (files.migrations, catalogue.tables, catalogue.tables_of_tenants)
    caches += (purge_statements.bounded, purge_statements.unbounded, purge_statements.anything)
    with monkeypatch.context() as patch:
        patch.setattr(files, "FOLDER", folder)
        for function in caches:
            function.cache_clear()
        yield
    for function in caches:
        function.cache_clear()


def plant(database: Database, tenant: str) -> None:
    """Rows that refer to each other, the parents last."""
    database.execute("BEGIN")
    for statement in DEFER:
        if statement.startswith("PRAGMA") is not database.url.startswith("postgresql:"):
            database.execute(statement)
    for id, parent in (("a", "z"), ("b", "a"), ("z", None)):
        values = (tenant, id, parent, b"\x00\xff", *database.moment(), json.dumps({"n": 1.5}))
        database.execute("INSERT INTO widgets VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    database.execute("INSERT INTO hens VALUES (?, 1, 2)", (tenant,))
    database.execute("INSERT INTO eggs VALUES (?, 2, 1)", (tenant,))
    database.execute("COMMIT")


DEFER = ("PRAGMA defer_foreign_keys = ON", "SET CONSTRAINTS ALL DEFERRED")


@pytest.mark.usefixtures("planted")
def test_a_new_table_is_purged_exported_and_imported_automatically(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "PURGED_ROWS", 1)
    with Holdfast(database.url, pool=POOL) as hf:
        for name in ("acme", "zenith"):
            hf.tenants.create(name)
            plant(database, name)
        theirs, mine = database.where("zenith"), database.where("acme")
        assert {*mine} == {"tenants", "widgets", "hens", "eggs"}
        with raises(Conflict, reason="not_empty"):
            hf.tenants.delete("acme")
        bundle = export_tenant(database.url, "acme", tmp_path / "acme.holdfast")
        assert {name: bundle.rows[name] for name in ("widgets", "hens", "eggs")} == {"widgets": 3, "hens": 1, "eggs": 1}
        hf.tenants.delete("acme", cascade=True)
        assert database.where("acme") == {}
        import_tenant(database.url, tmp_path / "acme.holdfast")
        assert database.where("acme") == mine
        assert database.where("zenith") == theirs
    other = Database(str(tmp_path / "other.db"))
    import_tenant(other.url, tmp_path / "acme.holdfast")
    assert [len(other.rows(name, "acme")) for name in ("widgets", "hens", "eggs")] == [3, 1, 1]
    other.close()


# The order of tables


def table(name: str, *targets: str, firm: str = "") -> Table:
    """Return a table that refers to others; all keys but one cascade."""
    keys = tuple(ForeignKey(target, (("x_id", "id"),), target != firm) for target in targets)
    return Table(name, ("tenant_id", "id", "x_id"), ("tenant_id", "id"), keys)


def names(*made: Table) -> list[str]:
    """Return the order of the tables, which does not depend on the given order."""
    result = [item.name for item in parents_first(made)]
    assert result == [item.name for item in parents_first(reversed(made))]
    return result


def test_a_table_follows_the_tables_it_refers_to() -> None:
    assert names() == []
    assert names(table("a", "b", firm="b"), table("b", "c"), table("c")) == ["c", "b", "a"]
    assert names(table("a", "theirs"), table("b")) == ["a", "b"], "a table that is not ours does not count"


def test_cycles_of_foreign_keys_are_cut_at_a_cascade() -> None:
    assert names(table("a", "a")) == ["a"]
    assert names(table("a", "b", firm="b"), table("b", "a")) == ["b", "a"]
    actual = names(table("a", "b", firm="b"), table("b", "c", firm="c"), table("c", "a"), table("d", "a"))
    assert actual == ["c", "b", "a", "d"]
    assert len(names(table("a", "b", "c"), table("b", "a", "c"), table("c", "a", "b"))) == 3


def test_a_cycle_without_a_cascade_is_refused_with_its_tables() -> None:
    with pytest.raises(SchemaMismatch, match=r"(a -> b -> a|b -> a -> b).* ON DELETE CASCADE"):
        names(table("a", "b", firm="b"), table("b", "a", firm="a"))
    with pytest.raises(SchemaMismatch, match=r"\ba\b[^>]* ON DELETE CASCADE"):
        names(table("a", "a", firm="a"))
