"""SQLite's plans of the queries whose cost must not depend on the amount of data."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.engines.dialect import Dialect
from holdfast.stores.conversation import log_reading, message_changes, message_log, sessions


@pytest.fixture
def connection():
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection


def plan(connection, statement) -> str:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize("name", ["get", "update", "delete", "restore"])
def test_a_session_is_found_by_its_primary_key(connection, name):
    actual = plan(connection, sessions.queries.by_name[name].statement(Dialect.SQLITE))
    assert "PRIMARY KEY (tenant_id=? AND id=?)" in actual
    assert "SCAN" not in actual


def test_a_session_is_found_by_its_key_through_the_unique_index(connection):
    statement = sessions.queries.find.statement(Dialect.SQLITE, "", "sessions_by_identifier")
    assert "sessions_by_identifier (tenant_id=? AND identifier=? AND user_id=?)" in plan(connection, statement)


@pytest.mark.parametrize(
    ("index", "where"),
    [
        ("sessions_by_recency", ""),
        ("sessions_by_user", " AND user_id = :user"),
        ("sessions_by_agent", " AND agent_id = :agent"),
        ("sessions_by_recency", " AND updated_minute <= :minute"),
    ],
)
def test_sessions_are_listed_from_an_index_by_minute(connection, index, where):
    actual = plan(connection, sessions.queries.list.statement(Dialect.SQLITE, where, index))
    assert f"USING INDEX {index}" in actual
    assert "USE TEMP B-TREE FOR LAST 2 TERMS OF ORDER BY" in actual, "only the rows of one minute may be sorted"


@pytest.mark.parametrize("name", ["list", "list_newest"])
def test_a_range_of_the_log_is_read_in_order_without_sorting(connection, name):
    actual = plan(connection, log_reading.queries.by_name[name].statement(Dialect.SQLITE))
    assert "(tenant_id=? AND session_id=? AND seq>? AND seq<?)" in actual
    assert "B-TREE" not in actual


@pytest.mark.parametrize("name", ["advance", "advance_this_minute"])
def test_an_append_finds_its_session_by_its_key(connection, name):
    actual = plan(connection, message_log.queries.by_name[name].statement(Dialect.SQLITE))
    assert actual == "SEARCH sessions USING PRIMARY KEY (tenant_id=? AND id=?)"


def test_a_key_of_any_user_is_found_through_the_unique_index(connection):
    statement = sessions.queries.find_of_anybody.statement(Dialect.SQLITE, "", "sessions_by_identifier")
    assert "sessions_by_identifier (tenant_id=? AND identifier=?)" in plan(connection, statement)


BY_ID = [
    *(sessions.queries.by_name[name] for name in ("get", "lock", "update", "delete", "restore", "purge")),
    message_log.queries.append,
    message_log.queries.append_one,
    message_log.queries.live_session,
    message_changes.queries.recount,
    log_reading.queries.list,
]


@pytest.mark.parametrize("query", BY_ID, ids=lambda query: query.name)
def test_a_plan_made_on_an_empty_table_uses_the_primary_key(new_postgres_url, query):
    """A prepared statement keeps the plan it was given first, however large the tables become."""
    statement = query.statement(Dialect.POSTGRES)
    with psycopg.connect(new_postgres_url) as raw:
        raw.execute("SET plan_cache_mode = force_generic_plan")
        raw.execute(b"PREPARE planned AS " + statement.sql.encode())
        nothing = ", ".join(["NULL"] * len(statement.names))
        rows = raw.execute(f"EXPLAIN EXECUTE planned({nothing})".encode()).fetchall()
    actual = "\n".join(row[0] for row in rows)
    assert "sessions_pkey" in actual, actual
    assert "Seq Scan" not in actual, actual
