"""The schema and every statement can be distributed over several machines by tenant, and violations are detected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.core.queries import Statement
from holdfast.engines.dialect import Dialect
from holdfast.migrations.distribution import ON_THE_COORDINATOR, PlannedTable, plan
from holdfast.migrations.files import migrations
from holdfast.migrations.runner import created_tables
from tests.migrations.catalogue import Table, of_postgres
from tests.migrations.citus_rules import UNDISTRIBUTED, refused
from tests.migrations.sharding import GLOBAL, wrong_with_statement, wrong_with_tables
from tests.migrations.statements import Named, all_statements


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None) as raw:
        yield raw


def test_the_tables_can_be_distributed(connection: psycopg.Connection[Any]) -> None:
    assert list(wrong_with_tables(connection)) == []


def test_the_global_tables_exist(connection: psycopg.Connection[Any]) -> None:
    assert of_postgres(connection).keys() >= GLOBAL


def test_every_statement_is_limited_to_one_tenant(connection: psycopg.Connection[Any]) -> None:
    actual = [
        wrong
        for statement in all_statements(Dialect.POSTGRES)
        if statement.name.rpartition(".")[2] not in OF_ALL_TENANTS
        for wrong in wrong_with_statement(statement, connection)
    ]
    assert actual == []


def test_citus_accepts_every_statement_and_sends_none_to_every_machine(connection: psycopg.Connection[Any]) -> None:
    sent = {item.sql: item for item in all_statements(Dialect.POSTGRES) if " where " not in item.name}.values()
    assert {item.name.rpartition(".")[2] for item in sent} >= UNDISTRIBUTED
    distributed = [item for item in sent if item.name.rpartition(".")[2] not in UNDISTRIBUTED]
    assert [wrong for statement in distributed for wrong in refused(statement, connection)] == []


def test_all_tables_are_distributed_and_targets_of_foreign_keys_come_first(connection: psycopg.Connection[Any]) -> None:
    existing = of_postgres(connection)
    assert set(created_tables()) == existing.keys()
    statements = plan([_spread(name, table) for name, table in existing.items()])
    places = {
        name: next(n for n, text in enumerate(statements) if f"'{name}'" in text.partition(",")[0]) for name in existing
    }
    for name, table in existing.items():
        how = "create_reference_table(" if name in GLOBAL else f"create_distributed_table('{name}', 'tenant_id'"
        how = "citus_add_local_table_to_metadata(" if name in ON_THE_COORDINATOR else how
        assert how in statements[places[name]]
        for key in table.foreign_keys:
            assert key.target == name or places[key.target] < places[name]


def _spread(name: str, table: Table) -> PlannedTable:
    return PlannedTable(name, "tenant_id" in table.columns, frozenset(key.target for key in table.foreign_keys))


OF_ALL_TENANTS = {"next_behind"}
"""Reads that ask every machine, for work in the background: they name a tenant, whose rows another statement then reads."""

FOREIGN_KEY = """
CREATE UNIQUE INDEX planted ON sessions (id, tenant_id);
ALTER TABLE messages ADD FOREIGN KEY (session_id, tenant_id) REFERENCES sessions (id, tenant_id)"""
TRIGGER = """
CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER planted BEFORE UPDATE ON sessions FOR EACH ROW EXECUTE FUNCTION planted()"""
PLANTED_TABLES = [
    ("CREATE TABLE planted (id UUID PRIMARY KEY)", "planted has no tenant_id"),
    ("CREATE TABLE planted (tenant_id TEXT, id UUID UNIQUE)", "tenant_id may be empty"),
    ("CREATE TABLE planted (id UUID, tenant_id TEXT NOT NULL, PRIMARY KEY (id, tenant_id))", "primary key of planted"),
    ("CREATE UNIQUE INDEX planted ON sessions (identifier)", "the unique index planted of sessions"),
    ("CREATE INDEX planted ON sessions (updated_at)", "the index planted of sessions"),
    (FOREIGN_KEY, "the foreign key of messages to sessions"),
    ("CREATE SEQUENCE planted", "the sequence planted"),
    ("ALTER TABLE sessions ADD COLUMN planted BIGSERIAL", "the sequence sessions_planted_seq"),
    (
        "ALTER TABLE sessions ADD COLUMN planted BIGINT GENERATED ALWAYS AS IDENTITY",
        "sessions.planted is made by the database",
    ),
    (
        "ALTER TABLE sessions ALTER COLUMN id SET DEFAULT gen_random_uuid()",
        "a default of sessions calls gen_random_uuid",
    ),
    (TRIGGER, "sessions has the trigger planted"),
]


@pytest.mark.parametrize(("sql", "says"), PLANTED_TABLES)
def test_a_table_that_cannot_be_distributed_is_detected(
    sql: str, says: str, connection: psycopg.Connection[Any]
) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute(sql.encode())
        assert any(says in wrong for wrong in wrong_with_tables(connection))


INSIDE = (
    "SELECT * FROM sessions WHERE tenant_id = :tenant_id AND EXISTS (SELECT 1 FROM messages WHERE session_id = :id)"
)
JOINED = "SELECT * FROM messages AS m JOIN sessions AS s ON s.id = m.session_id WHERE m.tenant_id = :tenant_id"
PLANTED_STATEMENTS = [
    ("SELECT * FROM sessions WHERE id = :id", "does not say"),
    ("SELECT * FROM sessions WHERE tenant_id <> :tenant_id", "does not say"),
    ("UPDATE sessions SET agent_id = :agent WHERE id = :id", "does not say"),
    ("DELETE FROM messages WHERE session_id = :id", "does not say"),
    ("INSERT INTO sessions (id, tenant_id, identifier) VALUES (:id, :tenant_id, :key)", "does not say"),
    ("INSERT INTO sessions (tenant_id, id, identifier) VALUES (:other, :id, :key)", "does not say"),
    ("SELECT * FROM sessions WHERE tenant_id = :tenant_id AND id = gen_random_uuid()", "calls gen_random_uuid"),
    ("UPDATE sessions SET updated_at = clock_timestamp() WHERE tenant_id = :tenant_id", "calls clock_timestamp"),
    ("SELECT * FROM sessions WHERE tenant_id = :tenant_id OR user_id = :user", "of every tenant"),
    ("SELECT * FROM sessions WHERE (tenant_id = :tenant_id OR user_id = :user) AND id = :id", "of every tenant"),
    (INSIDE, "reads messages of every tenant"),
    (JOINED, "reads sessions of every tenant"),
]


@pytest.mark.parametrize(("text", "says"), PLANTED_STATEMENTS)
def test_a_statement_about_several_tenants_is_detected(
    text: str, says: str, connection: psycopg.Connection[Any]
) -> None:
    statement = Statement(text, Dialect.POSTGRES)
    wrong = list(wrong_with_statement(Named("planted", text, statement.sql, statement.names), connection))
    assert any(says in item for item in wrong), wrong


POLICY = (
    "(SELECT compact_from FROM compaction_policies WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent)"
)
LOCKED = "SELECT id FROM sessions WHERE tenant_id = :tenant_id AND id = :id FOR UPDATE"
UNNESTED = "FROM unnest(:ids::uuid[]) AS i (id)"
REFUSED = [
    (f"INSERT INTO sessions (tenant_id, id, compact_from) VALUES (:tenant_id, :id, {POLICY})", "a subquery in VALUES"),
    (
        (
            "INSERT INTO sessions (tenant_id, id, identifier) VALUES (:tenant_id, :id, :key) "
            f"ON CONFLICT (tenant_id, id) DO UPDATE SET compact_from = {POLICY} RETURNING id"
        ),
        "a subquery in ON CONFLICT",
    ),
    (
        "DELETE FROM run_queue WHERE tenant = :tenant_id AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id)",
        "changes run_queue and reads a table that is distributed",
    ),
    (
        "UPDATE runs SET lease_until = :now_at::timestamptz + lease_ms * interval '1 millisecond' WHERE tenant_id = :tenant_id",
        "calls timestamptz_pl_interval",
    ),
    (
        (
            "UPDATE messages AS m SET updated_at = (a.original_message ->> 'updated_at')::timestamptz FROM message_archive AS a "
            "WHERE m.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND m.id = a.id"
        ),
        "calls cast to timestamp with time zone",
    ),
    (f"WITH held AS ({LOCKED}) SELECT id FROM held", "locks rows in a CTE"),
    (
        "WITH head AS (UPDATE sessions SET next_seq = 1 WHERE tenant_id = :tenant_id RETURNING id) SELECT id FROM head",
        "makes a change in a CTE",
    ),
    (f"INSERT INTO feedback (tenant_id, id) SELECT :tenant_id, i.id {UNNESTED}", "without RETURNING"),
    (
        f"INSERT INTO feedback (tenant_id, id) WITH i AS (SELECT id {UNNESTED}) SELECT :tenant_id, i.id FROM i",
        "without RETURNING",
    ),
]
ACCEPTED = [
    f"INSERT INTO sessions (tenant_id, id, compact_from) SELECT :tenant_id, :id::uuid, {POLICY} RETURNING id",
    "INSERT INTO sessions (tenant_id, id, identifier) VALUES (:tenant_id, :id, COALESCE(:key, 'x'))",
    "UPDATE runs SET lease_until = :now_at WHERE tenant_id = :tenant_id",
    (
        "UPDATE runs SET lease_until = timezone('UTC', timezone('UTC', :now_at::timestamptz) + lease_ms * interval '1 ms') "
        "WHERE tenant_id = :tenant_id"
    ),
    "SELECT (original_message ->> 'updated_at')::timestamptz FROM message_archive WHERE tenant_id = :tenant_id",
    LOCKED,
]


def _named(text: str) -> Named:
    statement = Statement(text, Dialect.POSTGRES)
    return Named("planted", text, statement.sql, statement.names)


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_a_statement_that_citus_refuses_is_detected(text: str, says: str, connection: psycopg.Connection[Any]) -> None:
    wrong = list(refused(_named(text), connection))
    assert any(says in item for item in wrong), wrong


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_statement_that_citus_accepts_is_not_reported(text: str, connection: psycopg.Connection[Any]) -> None:
    assert list(refused(_named(text), connection)) == []


def test_a_column_and_its_constraint_are_added_separately() -> None:
    """Citus adds no column that has a constraint to a table that is distributed already."""
    added = re.compile(r"ADD COLUMN[^,;]*\b(?:CHECK|REFERENCES|UNIQUE|PRIMARY KEY)\b", re.IGNORECASE)
    assert added.search("ALTER TABLE tenants ADD COLUMN quota BIGINT CHECK (quota >= 0);")
    for migration in migrations(Dialect.POSTGRES):
        assert not added.search(migration.up), f"{migration}: {added.search(migration.up)}"
