"""Query plans of contexts and buffers on both engines: they use partial indexes and read no more of the log than needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg.sql
import pytest

from holdfast import Holdfast, NewMessage, PoolOptions
from holdfast.engines.dialect import Dialect
from holdfast.stores.conversation import context, tool_pair_lookup, views
from holdfast.stores.conversation.buffer import persistence as buffer_persistence

INDEXES = ("messages_system", "messages_preserved", "messages_summary")
LENGTH = 10_000
FEW = 200
"""Rows that a context of 50 messages may read, however long the log is."""


@pytest.fixture
def sqlite() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def sqlite_plan(connection: Any, query: Any, index: str = "", where: str = "") -> list[str]:
    statement = query.statement(Dialect.SQLITE, where, index)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return [row[3] for row in rows]


@pytest.mark.parametrize("query", [context.queries.start, context.queries.pinned], ids=lambda query: query.name)
def test_sqlite_finds_required_messages_by_a_partial_index(sqlite: Any, query: Any) -> None:
    plan = sqlite_plan(sqlite, query)
    for index in INDEXES:
        assert any(f"USING INDEX {index} (tenant_id=? AND session_id=? AND seq" in line for line in plan), plan
    assert not [line for line in plan if line.startswith("SCAN messages")]
    assert "MATERIALIZE" not in " ".join(plan), "no temporary table"


def test_sqlite_reads_the_end_of_the_log_without_sorting(sqlite: Any) -> None:
    plan = sqlite_plan(sqlite, context.queries.start)
    assert "B-TREE" not in " ".join(plan)
    assert any("sqlite_autoindex_messages_1 (tenant_id=? AND session_id=? AND seq<?)" in line for line in plan)


def test_sqlite_looks_up_tool_pairs_in_a_range(sqlite: Any) -> None:
    plan = sqlite_plan(sqlite, tool_pair_lookup.queries.ranges, where=tool_pair_lookup.ABOUT_TOOLS)
    assert not [line for line in plan if line.startswith(("SCAN m", "SCAN sessions"))], plan
    assert any("messages_1 (tenant_id=? AND session_id=? AND seq>? AND seq<?)" in line for line in plan), plan


@pytest.mark.parametrize("name", ["lock", "last_save", "touch", "mark"])
def test_sqlite_saves_a_buffer_by_the_primary_key(sqlite: Any, name: str) -> None:
    plan = sqlite_plan(sqlite, buffer_persistence.queries.by_name[name])
    assert not [line for line in plan if line.startswith("SCAN")]
    searches = [line for line in plan if line.startswith("SEARCH")]
    assert searches
    assert all("USING PRIMARY KEY (tenant_id=? AND " in line for line in searches), plan


def test_sqlite_opens_a_buffer_by_its_key(sqlite: Any) -> None:
    plan = sqlite_plan(sqlite, buffer_persistence.queries.open, "sessions_by_identifier")
    assert "sessions_by_identifier (tenant_id=? AND identifier=? AND user_id=? AND identifier_rank=?)" in plan[0]
    assert "SEARCH t USING PRIMARY KEY (tenant_id=? AND session_id=?)" in plan[1]


@pytest.fixture(scope="module")
def long_log(postgres_server: Any, _databases: Any) -> Iterator[tuple[Any, str]]:
    """Create a session of ten thousand messages on PostgreSQL."""
    from tests.databases import TEMPLATE

    name = _databases.make(TEMPLATE)
    url = postgres_server.url(name)
    with Holdfast(url, pool=PoolOptions(min_connections=1, max_connections=1)) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create().id
        for _ in range(LENGTH // 1_000):
            acme.messages.append_many(
                session, [NewMessage(role="user", content="words", token_count=1) for _ in range(1_000)]
            )
        acme.messages.append(session, role="system", content="rules", token_count=1)
        acme.messages.append(session, role="user", content="kept", token_count=1, is_preserved=True)
        acme.messages.append(session, role="user", content="in short", token_count=1, is_summary=True)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection, session
    postgres_server.drop_database(name)


def rows_seen(
    connection: Any, query: Any, params: dict[str, Any], *, generic: bool, where: str = ""
) -> tuple[int, str]:
    """Return the number of rows that PostgreSQL read, and the plan; with a generic plan or a custom one."""
    statement = query.statement(Dialect.POSTGRES, where)
    connection.execute(f"SET plan_cache_mode = {'force_generic_plan' if generic else 'force_custom_plan'}")
    connection.execute("DEALLOCATE ALL")
    connection.execute(b"PREPARE planned AS " + statement.sql.encode(), prepare=False)
    values = ", ".join(psycopg.sql.Literal(params[name]).as_string(connection) for name in statement.names)
    explain = f"EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) EXECUTE planned({values})"
    lines = [row[0] for row in connection.execute(explain.encode(), prepare=False).fetchall()]
    seen = 0
    for line in lines:
        match = re.search(r"on messages.*actual rows=([\d.]+) loops=(\d+)", line)
        if match:
            seen += int(float(match[1]) * int(match[2]))
        removed = re.search(r"Rows Removed by Filter: (\d+)", line)
        seen += int(removed[1]) if removed else 0
    return seen, "\n".join(lines)


@pytest.mark.parametrize("generic", [True, False])
def test_postgres_reads_few_rows_of_a_long_log(long_log: tuple[Any, str], generic: bool) -> None:
    connection, session = long_log
    params = {"tenant_id": "acme", "session_id": session, "before": views.BLOCK, "pinned": 1_001, "limit": 50}
    seen, plan = rows_seen(connection, context.queries.start, params, generic=generic)
    assert 50 < seen <= FEW, plan
    for index in INDEXES:
        assert index in plan, plan


def test_postgres_reads_few_rows_of_a_long_view(long_log: tuple[Any, str]) -> None:
    connection, session = long_log
    ranges = "[[1, 5000], [5001, 1099511627775]]"
    params = {"tenant_id": "acme", "session_id": session, "ranges": ranges, "mask": views.LAST, "pinned": 1_001}
    seen, plan = rows_seen(connection, context.queries.pinned, params, generic=False)
    assert 0 < seen <= FEW, plan
    for index in INDEXES:
        assert index in plan, plan


@pytest.mark.parametrize("generic", [True, False])
def test_postgres_looks_up_tool_pairs_in_a_range(long_log: tuple[Any, str], generic: bool) -> None:
    connection, session = long_log
    params = {"tenant_id": "acme", "session_id": session, "view": None, "ranges": "[[4996, 4999], [5001, 5004]]"}
    seen, plan = rows_seen(
        connection, tool_pair_lookup.queries.ranges, params, generic=generic, where=tool_pair_lookup.ABOUT_TOOLS
    )
    assert 0 < seen <= 8, plan
