"""The guide lists the timestamps of every table correctly, and the database rejects the raw INSERTs it calls unsupported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from tests.migrations.catalogue import of_postgres, of_sqlite
from tests.tidy import ROOT

PAGE = ROOT / "docs/guide/data-lifecycle.md"
TIMES = ("created_at", "updated_at", "deleted_at")


def documented() -> dict[str, list[bool]]:
    """Return which timestamps each table has according to the guide."""
    table = PAGE.read_text("utf-8").partition("<!-- timestamps -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {row[0].strip("`"): [cell == "yes" for cell in row[2:5]] for row in rows}


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[apsw.Connection]:
    Holdfast(tmp_path / "a.db").close()
    connection = apsw.Connection(str(tmp_path / "a.db"))
    yield connection
    connection.close()


def test_the_guide_lists_the_timestamps_of_every_table(sqlite: apsw.Connection, postgres_url: str) -> None:
    guide = documented()
    with psycopg.connect(postgres_url) as postgres:
        for tables in (of_sqlite(sqlite), of_postgres(postgres)):
            actual = {name: [time in table.columns for time in TIMES] for name, table in tables.items()}
            assert {name: actual[name] for name in guide if name in actual} == {
                name: times for name, times in guide.items() if name in actual
            }
            assert set(actual) - set(guide) <= {"schema_migrations"}


def test_editable_rows_have_both_times_and_restorable_rows_a_time_of_deletion() -> None:
    times = documented()
    editable = "sessions messages feedback agents core_blocks a2a_tasks a2a_push_configs mcp_servers mcp_tools general_feedback"
    replaced = (
        "compaction_events agent_memories crewai_flow crewai_flow_state crewai_agent_memory"
        " retention_policies run_retention"
    )
    for name in [*editable.split(), *replaced.split(), "tenants"]:
        assert times[name][:2] == [True, True], name
    for name in ("sessions", "deleted_messages", "a2a_tasks", "a2a_push_configs", "mcp_servers"):
        assert times[name][2], name


RAW_INSERTS = [
    "INSERT INTO sessions (tenant_id, identifier) VALUES ('acme', 'k')",
    "INSERT INTO messages (tenant_id, session_id, role, content) VALUES ('acme', '{session}', 'user', '[]')",
]


@pytest.mark.parametrize("statement", RAW_INSERTS)
def test_the_database_rejects_a_raw_insert_without_id_and_seq(
    statement: str, sqlite: apsw.Connection, postgres_url: str
) -> None:
    session = "018bcfe5-6801-7226-b63c-5ab791b7584a"
    sql = statement.format(session=session)
    with pytest.raises(apsw.ConstraintError, match=r"NOT NULL"):
        sqlite.execute(sql)
    with psycopg.connect(postgres_url) as postgres, pytest.raises(psycopg.errors.NotNullViolation):
        postgres.execute(sql.encode())
    assert re.search(r"`INSERT` and `UPDATE` of your own are not supported", PAGE.read_text("utf-8"))


def test_a_missing_timestamp_column_is_detected(sqlite: apsw.Connection) -> None:
    sqlite.execute("ALTER TABLE general_feedback DROP COLUMN updated_at")
    columns: Any = of_sqlite(sqlite)["general_feedback"].columns
    assert [time in columns for time in TIMES] != documented()["general_feedback"]
