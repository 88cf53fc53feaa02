"""SQLite's plans of the queries of retention, whose cost must not depend on the amount of data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.queries import Query
from holdfast.engines.dialect import Dialect
from holdfast.stores.lifecycle import erasures
from holdfast.stores.lifecycle.retention import quota
from holdfast.stores.objects import activity, objects
from holdfast.stores.workspace import retention_rules as rules
from holdfast.stores.workspace import squash

QUERIES = {**rules.queries.by_name, **quota.queries.by_name}
PAGE = " AND (created_at, id) < (:before_at, :before_id)"


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def plan(connection: Any, query: Query, where: str = "", index: str = "") -> str:
    statement = query.statement(Dialect.SQLITE, where, index)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize("name", ["time", "actor", "action", "subject"])
def test_activity_is_listed_from_an_index_in_order(connection: Any, name: str) -> None:
    column = {"time": "", "subject": " AND subject_kind = :kind AND subject_id = :id"}.get(
        name, f" AND {name} = :value"
    )
    for page in ("", PAGE):
        actual = plan(connection, activity.LOG.by_name["list"], column + page, f"activity_by_{name}")
        assert f"USING INDEX activity_by_{name}" in actual
        assert "B-TREE" not in actual


@pytest.mark.parametrize(
    "name", ["runs", "run", "oldest_of_run", "oldest", "newest", "up_to", "may_go", "sizes", "hold_on_session"]
)
def test_no_query_of_retention_scans_a_table(connection: Any, name: str) -> None:
    actual = plan(connection, QUERIES[name])
    scans = [part for part in actual.split("; ") if part.startswith("SCAN")]
    assert all(part.split()[1] in {"g", "s", "c", "CONSTANT", "chain", "(subquery-1)"} for part in scans), actual
    assert "SCAN s USING" not in actual, actual


def test_snapshots_over_quota_are_read_by_the_index_on_time(connection: Any) -> None:
    for name in ("oldest", "newest", "up_to"):
        actual = plan(connection, QUERIES[name])
        assert "USING INDEX snapshots_by_time (tenant_id=?" in actual
        assert "TEMP B-TREE FOR ORDER BY" not in actual
    assert "snapshots_by_run (tenant_id=? AND run_id>?)" in plan(connection, quota.queries.runs)


def test_open_erasures_are_found_without_reading_finished_ones(connection: Any) -> None:
    actual = plan(connection, erasures.queries.open)
    assert "USING INDEX erasures_open" in actual or "USING COVERING INDEX erasures_open" in actual
    assert "B-TREE" not in actual


def test_objects_are_pruned_by_pages_of_their_keys(connection: Any) -> None:
    for name in ("condemn", "page_end"):
        assert "(tenant_id=? AND digest>?" in plan(connection, objects.queries.by_name[name])


def test_layers_to_be_squashed_are_found_in_the_order_of_their_ids(connection: Any) -> None:
    actual = plan(connection, squash.queries.hollow)
    assert "PRIMARY KEY (tenant_id=? AND id>?)" in actual
    assert "B-TREE" not in actual
