"""SQLite's query plans for tasks, shares and memories, whose cost must not depend on the amount of data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.queries import Queries, Statement
from holdfast.engines.dialect import Dialect
from holdfast.stores.conversation import linked_threads, shares
from holdfast.stores.execution import a2a_tasks
from holdfast.stores.execution import session_dependents as execution_of_session
from holdfast.stores.memory import agent_memories
from holdfast.stores.memory import session_dependents as memory_of_session
from tests.contract.cases.record_samples import record_stores


@pytest.fixture
def connection() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def plan(connection: Any, statement: Statement) -> str:
    """Return SQLite's query plan."""
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize(
    ("index", "where"),
    [
        ("a2a_tasks_by_recency", ""),
        ("a2a_tasks_by_recency", " AND (state_at, task_id) < (:after_at, :after_id)"),
        ("a2a_tasks_by_recency", " AND state_at >= :since_at"),
        ("a2a_tasks_by_context", " AND context_id = :context_id"),
    ],
)
def test_tasks_are_listed_from_an_index_in_order(connection: Any, index: str, where: str) -> None:
    actual = plan(connection, a2a_tasks.queries.list.statement(Dialect.SQLITE, where, index))
    assert f"USING INDEX {index}" in actual
    assert "B-TREE" not in actual


STORES: list[Any] = [
    a2a_tasks,
    shares,
    linked_threads,
    execution_of_session,
    memory_of_session,
    agent_memories,
    *record_stores().values(),
]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__.rpartition(".")[2])
def test_no_query_reads_columns_it_does_not_need(connection: Any, store: Any) -> None:
    """Check also that each query uses a key or an index that begins with the tenant."""
    queries: Queries = store.queries
    for name, query in queries.by_name.items():
        if store is agent_memories and name == "list":
            continue
        actual = plan(connection, query.statement(Dialect.SQLITE))
        assert "SCAN" not in actual.replace("SCAN json_each", "").replace("SCAN CONSTANT ROW", ""), f"{name}: {actual}"
