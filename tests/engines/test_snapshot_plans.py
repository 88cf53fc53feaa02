"""Query plans of snapshots on both engines, whose cost must not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.queries import Query
from holdfast.engines.dialect import Dialect
from holdfast.stores.workspace import layers, snapshots


@pytest.fixture
def connection() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def plan(connection: Any, query: Query, where: str = "", index: str = "") -> str:
    statement = query.statement(Dialect.SQLITE, where, index)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize("name", ["find", "get", "remove"])
def test_a_snapshot_is_found_by_its_primary_key(connection: Any, name: str) -> None:
    actual = plan(connection, snapshots.queries.by_name[name])
    assert "PRIMARY KEY (tenant_id=? AND id=?)" in actual
    assert "SCAN" not in actual


def test_the_newest_snapshot_of_a_run_is_found_by_an_index(connection: Any) -> None:
    for where in ("", "\n  AND s.step = :step", "\n  AND s.kind = :kind"):
        actual = plan(connection, snapshots.queries.latest, where)
        assert "snapshots_by_run (tenant_id=? AND run_id=?)" in actual
        assert "TEMP B-TREE" not in actual


@pytest.mark.parametrize(
    ("where", "index"), [("", "snapshots_by_time"), ("\n  AND s.run_id = :run_id", "snapshots_by_run")]
)
def test_a_page_is_read_in_the_order_of_an_index(connection: Any, where: str, index: str) -> None:
    for more in ("", "\n  AND (s.created_at, s.id) < (:before_at, :before_id)"):
        actual = plan(connection, snapshots.queries.list, where + more, index)
        assert f"USING INDEX {index} (tenant_id=?" in actual or f"USING COVERING INDEX {index}" in actual
        assert "TEMP B-TREE" not in actual


@pytest.mark.parametrize("name", ["lock", "has", "remove", "chain"])
def test_a_layer_is_found_by_its_primary_key_and_its_children_by_an_index(connection: Any, name: str) -> None:
    actual = plan(connection, layers.queries.by_name[name])
    assert "PRIMARY KEY (tenant_id=? AND id=?)" in actual
    assert "SCAN snapshot" not in actual
    if name == "remove":
        assert "snapshots_by_layer (tenant_id=? AND layer_id=?)" in actual
        assert "snapshot_layers_by_parent (tenant_id=? AND parent_id=?)" in actual
