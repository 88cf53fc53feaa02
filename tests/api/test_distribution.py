"""``holdfast migrate distribute``: the statements sent to Citus, their order, and no change without Citus. A stand-in replaces
Citus: an entry in the list of extensions, its catalogue, and three of its functions, which record their calls and refuse what
Citus refuses."""

from __future__ import annotations

import json
from graphlib import CycleError

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import schema
from holdfast.cli.commands import root
from holdfast.errors import InvalidInput, SchemaMismatch
from holdfast.migrations import distribution
from holdfast.migrations.distribution import PlannedTable, plan
from holdfast.migrations.runner import created_tables
from tests.errors import raises

ABOVE = [
    "SELECT create_reference_table('api_keys')",
    "SELECT create_reference_table('erasures')",
    "SELECT citus_add_local_table_to_metadata('run_queue')",
    "SELECT create_reference_table('schema_migrations')",
    "SELECT create_reference_table('server_settings')",
    "SELECT create_reference_table('tenants')",
]

STAND_IN = """
INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
VALUES (999999, 'citus', 10, 'public'::regnamespace, false, '13.0');
CREATE TABLE pg_dist_partition (logicalrelid regclass PRIMARY KEY, by_column text, with_table text);

CREATE FUNCTION stand_in_check(it regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE target regclass;
BEGIN
    FOR target IN SELECT confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid = it LOOP
        IF target <> it AND NOT EXISTS (SELECT 1 FROM pg_dist_partition WHERE logicalrelid = target) THEN
            RAISE EXCEPTION 'referenced table % must be a distributed table or a reference table', target;
        END IF;
    END LOOP;
    IF current_setting('citus.multi_shard_modify_mode', true) IS DISTINCT FROM 'sequential' THEN
        RAISE EXCEPTION 'not in sequence';
    END IF;
END $$;

CREATE FUNCTION create_reference_table(it regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM stand_in_check(it);
    INSERT INTO pg_dist_partition VALUES (it, NULL, NULL);
END $$;

CREATE TABLE pg_dist_node (groupid int);
INSERT INTO pg_dist_node VALUES (0), (1);

CREATE FUNCTION citus_add_local_table_to_metadata(it regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM stand_in_check(it);
    INSERT INTO pg_dist_partition VALUES (it, NULL, NULL);
END $$;

CREATE FUNCTION create_distributed_table(it regclass, by_column text, colocate_with text DEFAULT 'default')
RETURNS void LANGUAGE plpgsql AS $$
DECLARE key_columns text[];
BEGIN
    PERFORM stand_in_check(it);
    FOR key_columns IN
        SELECT array_agg(a.attname::text) FROM pg_index AS i
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = it AND i.indisunique GROUP BY i.indexrelid
    LOOP
        IF NOT by_column = ANY (key_columns) THEN
            RAISE EXCEPTION 'unique keys of % must have %', it, by_column;
        END IF;
    END LOOP;
    INSERT INTO pg_dist_partition VALUES (it, by_column, colocate_with);
END $$;
"""


def _run(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def citus_url(bare_postgres_url: str) -> str:
    """A migrated database that appears to have Citus."""
    schema.migrate_up(bare_postgres_url)
    _run(bare_postgres_url, STAND_IN)
    return bare_postgres_url


def test_reference_tables_come_first_and_targets_of_foreign_keys_before_their_sources() -> None:
    tables = [
        PlannedTable("a_step", True, frozenset({"run", "tenants"})),
        PlannedTable("run", True, frozenset({"sessions", "run"})),
        PlannedTable("sessions", True, frozenset({"tenants"})),
        PlannedTable("tenants", False),
        PlannedTable("leases", False, frozenset({"tenants"})),
    ]
    assert plan(tables) == [
        "SELECT create_reference_table('tenants')",
        "SELECT create_reference_table('leases')",
        "SELECT create_distributed_table('sessions', 'tenant_id')",
        "SELECT create_distributed_table('run', 'tenant_id', colocate_with => 'sessions')",
        "SELECT create_distributed_table('a_step', 'tenant_id', colocate_with => 'sessions')",
    ]


def test_distributed_tables_are_left_out_but_determine_colocation() -> None:
    tables = [
        PlannedTable("messages", True, frozenset({"sessions"})),
        PlannedTable("sessions", True),
        PlannedTable("tenants", False),
    ]
    assert plan(tables, distributed=["sessions", "tenants"]) == [
        "SELECT create_distributed_table('messages', 'tenant_id', colocate_with => 'sessions')"
    ]


@pytest.mark.parametrize(
    "tables",
    [
        [PlannedTable("a", True, frozenset({"b"})), PlannedTable("b", True, frozenset({"a"}))],
        [PlannedTable("everywhere", False, frozenset({"a"})), PlannedTable("a", True)],
    ],
    ids=["cycle", "from a table of all tenants into a tenant's"],
)
def test_foreign_keys_that_cannot_be_distributed_are_refused(tables: list[PlannedTable]) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        plan(tables)
    assert isinstance(refused.value.__cause__, CycleError)


def test_every_table_of_the_catalogue_is_distributed_in_a_valid_order(citus_url: str) -> None:
    statements = schema.distribute(citus_url)
    assert statements[: len(ABOVE)] == ABOVE
    by_name = {
        str(row[0]): row[1:]
        for row in _run(citus_url, "SELECT logicalrelid::text, by_column, with_table FROM pg_dist_partition")
    }
    assert set(by_name) == set(created_tables())
    columns = _run(
        citus_url,
        "SELECT table_name::text FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'tenant_id'",
    )
    assert {name for name, (by_column, _) in by_name.items() if by_column == "tenant_id"} == {row[0] for row in columns}
    leaders = [name for name, (by_column, with_table) in by_name.items() if by_column and with_table == "default"]
    assert len(leaders) == 1
    assert {with_table for by_column, with_table in by_name.values() if by_column} == {"default", *leaders}


def test_the_statements_for_sessions_and_messages(citus_url: str) -> None:
    statements = schema.distribute(citus_url)
    leader = next(statement for statement in statements if "create_distributed_table" in statement)
    assert leader.endswith("'tenant_id')")
    name = leader.split("'")[1]
    expected = f"SELECT create_distributed_table('messages', 'tenant_id', colocate_with => '{name}')"
    assert expected in statements
    (before,) = [place for place, statement in enumerate(statements) if "'sessions', 'tenant_id'" in statement]
    assert statements.index(expected) > before


def test_distributing_twice_changes_nothing(citus_url: str) -> None:
    body = CliRunner().invoke(root, ["migrate", "distribute", "--json", "--database", citus_url])
    assert json.loads(body.stdout)["statements"][: len(ABOVE)] == ABOVE
    again = CliRunner().invoke(root, ["migrate", "distribute", "--database", citus_url])
    assert (again.exit_code, again.stdout) == (0, "All tables are already distributed.\n")


@pytest.mark.parametrize("version", [1, 6])
def test_tables_added_by_a_migration_are_distributed_with_it(version: int, bare_postgres_url: str) -> None:
    url = bare_postgres_url
    schema.migrate_up(url, to=version)
    _run(url, STAND_IN)
    schema._run_read_only(url, lambda connection: distribution.distribute(connection, created_tables()))
    existing = "SELECT logicalrelid::text FROM pg_dist_partition"
    before = {row[0] for row in _run(url, existing)}
    assert before < set(created_tables())
    schema.migrate_up(url)
    assert {row[0] for row in _run(url, existing)} == set(created_tables())
    assert schema.distribute(url) == []


def test_a_cluster_without_a_coordinator_is_refused(citus_url: str) -> None:
    _run(citus_url, "DELETE FROM pg_dist_node WHERE groupid = 0")
    with raises(InvalidInput, field="coordinator"):
        schema.distribute(citus_url)
    assert _run(citus_url, "SELECT count(*) FROM pg_dist_partition") == [(0,)]


def test_shards_are_not_hidden_because_that_slows_new_connections(citus_url: str) -> None:
    schema.distribute(citus_url)
    settings = "SELECT unnest(setconfig) FROM pg_db_role_setting JOIN pg_database ON oid = setdatabase"
    assert ("citus.override_table_visibility=off",) in _run(citus_url, f"{settings} WHERE datname = current_database()")


def test_foreign_tables_are_not_distributed(citus_url: str) -> None:
    _run(citus_url, "CREATE TABLE invoices (tenant_id text PRIMARY KEY)")
    assert not [item for item in schema.distribute(citus_url) if "invoices" in item]


def test_if_one_statement_fails_nothing_is_distributed(citus_url: str) -> None:
    _run(citus_url, "CREATE UNIQUE INDEX wrong ON messages (id)")
    result = CliRunner().invoke(root, ["migrate", "distribute", "--database", citus_url])
    assert result.exit_code == 1
    assert "unique keys of messages" in result.stderr
    assert _run(citus_url, "SELECT count(*) FROM pg_dist_partition") == [(0,)]


def test_without_citus_there_is_one_clear_error_and_no_change(postgres_url: str) -> None:
    before = _run(postgres_url, "SELECT oid, relname, xmin::text FROM pg_class ORDER BY oid")
    with raises(InvalidInput, field="extension"):
        schema.distribute(postgres_url)
    assert _run(postgres_url, "SELECT oid, relname, xmin::text FROM pg_class ORDER BY oid") == before


def test_an_outdated_schema_is_refused(bare_postgres_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="migrate up"):
        schema.distribute(bare_postgres_url)
