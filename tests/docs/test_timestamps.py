"""The table of times in the guide is that of the schema, and a raw INSERT that it calls unsupported is refused."""

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
    """Which times each table has, as the guide says."""
    table = PAGE.read_text("utf-8").partition("<!-- timestamps -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {row[0].strip("`"): [cell == "yes" for cell in row[2:5]] for row in rows}


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[apsw.Connection]:
    Holdfast(tmp_path / "a.db").close()
    connection = apsw.Connection(str(tmp_path / "a.db"))
    yield connection
    connection.close()


def test_the_guide_says_which_times_each_table_has(sqlite: apsw.Connection, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as postgres:
        for there in (of_sqlite(sqlite), of_postgres(postgres)):
            found = {name: [time in table.columns for time in TIMES] for name, table in there.items()}
            assert {name: found[name] for name in documented() if name in found} == {
                name: times for name, times in documented().items() if name in found
            }
            assert set(found) - set(documented()) <= {"schema_migrations"}


def test_every_row_that_people_change_has_both_times_and_what_comes_back_when_it_was_deleted() -> None:
    times = documented()
    both = (
        "sessions messages feedback agents core_blocks a2a_tasks a2a_push_configs tool_servers tools general_feedback"
    )
    kept = "compaction_events agent_memories crewai_flow crewai_flow_state crewai_agent_memory retention_policies run_retention"
    for name in [*both.split(), *kept.split(), "tenants"]:
        assert times[name][:2] == [True, True], name
    for name in ("sessions", "deleted_messages", "a2a_tasks", "a2a_push_configs", "tool_servers"):
        assert times[name][2], name


RAW = [
    "INSERT INTO sessions (tenant_id, identifier) VALUES ('acme', 'k')",
    "INSERT INTO messages (tenant_id, session_id, role, content) VALUES ('acme', '{session}', 'user', '[]')",
]


@pytest.mark.parametrize("statement", RAW)
def test_a_raw_insert_without_id_and_seq_is_refused(statement: str, sqlite: apsw.Connection, postgres_url: str) -> None:
    session = "018bcfe5-6801-7226-b63c-5ab791b7584a"
    sql = statement.format(session=session)
    with pytest.raises(apsw.ConstraintError, match=r"NOT NULL"):
        sqlite.execute(sql)
    with psycopg.connect(postgres_url) as postgres, pytest.raises(psycopg.errors.NotNullViolation):
        postgres.execute(sql.encode())
    assert re.search(r"`INSERT` and `UPDATE` of your own are not supported", PAGE.read_text("utf-8"))


def test_a_table_that_lost_a_time_would_be_noticed(sqlite: apsw.Connection) -> None:
    sqlite.execute("ALTER TABLE general_feedback DROP COLUMN updated_at")
    found: Any = of_sqlite(sqlite)["general_feedback"].columns
    assert [time in found for time in TIMES] != documented()["general_feedback"]
