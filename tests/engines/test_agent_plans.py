"""What the engines would do for the queries about agents and their shares, whose cost must not depend on how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.queries import Query, Statement
from holdfast.engines.dialect import Dialect
from holdfast.stores.agents import agents
from holdfast.stores.agents.agent_shares import AsyncAgentShares

(SHARES,) = AsyncAgentShares.grants
QUERIES = {
    "default": agents.AsyncAgents.queries.flagged,
    **agents.queries.by_name,
    **{f"shares {name}": query for name, query in SHARES.by_name.items()},
}
OWNED = "agents_by_owner (tenant_id=? AND owner_id=? AND id>?)"
SHARED = "agent_shares_by_user (tenant_id=? AND user_id=? AND agent_id>?)"
"""Of one user, in the order of the list, from where the page begins."""


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def plan(connection: Any, statement: Statement) -> str:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "access",
            ["a USING INDEX sqlite_autoindex_agents_1 (tenant_id=? AND id=?)", "(tenant_id=? AND agent_id=? AND"],
        ),
        ("accessible", [OWNED, "agents_by_default (tenant_id=?)", SHARED]),
        ("default", ["agents_by_default (tenant_id=?)"]),
        ("oldest", ["agents_by_age (tenant_id=?)"]),
        ("by_ids", ["(tenant_id=? AND id=?)"]),
        ("by_keys", ["agents_by_key (tenant_id=? AND key=?)"]),
        ("shares list_by_resource", ["(tenant_id=? AND agent_id=?)"]),
    ],
)
def test_sqlite_goes_by_indexes(connection: Any, name: str, parts: list[str]) -> None:
    actual = plan(connection, QUERIES[name].statement(Dialect.SQLITE))
    for part in parts:
        assert part in actual, actual
    # Only the rows of one page are scanned.
    scans = {part for part in actual.split("; ") if part.startswith("SCAN")}
    assert scans <= {"SCAN owned", "SCAN shared", "SCAN preset", "SCAN json_each VIRTUAL TABLE INDEX 1:"}, actual


@pytest.mark.parametrize("after", ["", "\n  AND (agent_id) > (:after_agent_id)"])
def test_the_shares_of_a_user_come_out_of_an_index_in_order(connection: Any, after: str) -> None:
    statement = QUERIES["shares list_by_principal"].statement(Dialect.SQLITE, after, "agent_shares_by_user")
    actual = plan(connection, statement)
    assert "agent_shares_by_user (tenant_id=? AND user_id=?" in actual
    assert "B-TREE" not in actual


FILL = """
INSERT INTO tenants (id, created_at, updated_at) VALUES ('acme', now(), now());
INSERT INTO agents (tenant_id, id, key, owner_id, is_default, created_at, updated_at)
SELECT 'acme', 'agent ' || n, 'key ' || n, 'user ' || n % 1000, n = 7, now(), now() FROM generate_series(1, 10000) AS n;
INSERT INTO agent_shares (tenant_id, agent_id, user_id, role, granted_by, created_at, updated_at)
SELECT 'acme', 'agent ' || n, 'user ' || n % 50, 'user', '', now(), now() FROM generate_series(1, 1000) AS n;
"""
VALUES = {
    "tenant_id": "'acme'",
    "id": "'agent 5'",
    "user_id": "'user 5'",
    "agent_id": "'agent 5'",
    "after_id": "'agent 3'",
    "limit": "21",
    "values": "ARRAY['agent 5', 'agent 6']",
    "now_at": "now()",
}


@pytest.mark.parametrize(
    ("query", "indexes"),
    [
        (QUERIES["access"], ["agents_pkey", "agent_shares_"]),
        (QUERIES["accessible"], ["agents_by_owner", "agents_by_default", "agent_shares_by_user"]),
        (QUERIES["default"], ["agents_by_default"]),
        (QUERIES["oldest"], ["agents_by_age"]),
        (QUERIES["by_ids"], ["agents_pkey"]),
        (QUERIES["by_keys"], ["agents_by_key"]),
        (QUERIES["shares list_by_resource"], ["agent_shares_pkey"]),
        (QUERIES["shares list_by_principal"], ["agent_shares_by_user"]),
    ],
    ids=lambda value: value.name if isinstance(value, Query) else "",
)
def test_postgres_goes_by_the_same_indexes(new_postgres_url: str, query: Query, indexes: list[str]) -> None:
    with psycopg.connect(new_postgres_url, autocommit=True) as raw:
        raw.execute(FILL)
        raw.execute("ANALYZE agents, agent_shares")
        statement = query.statement(Dialect.POSTGRES)
        raw.execute(b"PREPARE planned AS " + statement.sql.encode())
        arguments = ", ".join(VALUES[name] for name in statement.names)
        actual = "\n".join(row[0] for row in raw.execute(f"EXPLAIN EXECUTE planned({arguments})".encode()))
    for index in indexes:
        assert index in actual, actual
    assert "Seq Scan" not in actual, actual
