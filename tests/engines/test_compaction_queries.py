"""Query plans of compactions, whose cost must not depend on other data."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast, NewMessage
from holdfast.core.queries import Query
from holdfast.engines.dialect import Dialect
from holdfast.stores.conversation import branches, message_changes, sessions
from holdfast.stores.conversation.compaction.events import queries
from tests.contract.cases.compactions import LONG, POLICY

BY_TENANT_ALONE = "(tenant_id=?)"
LISTS = {"places", "rewrites", "rewritten", "ranges"}
OF_SESSIONS = [
    *(sessions.queries.by_name[name] for name in ("create", "update_by_key", "update", "restore")),
    branches.queries.by_name["show"],
    message_changes.queries.by_name["recount"],
]


@pytest.fixture(params=["apsw", "sqlite3"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Both SQLite libraries in use; neither has statistics of the tables."""
    path = str(tmp_path / "a.db")
    Holdfast(path).close()
    opened = apsw.Connection(path) if request.param == "apsw" else sqlite3.connect(path)
    opened.execute("PRAGMA foreign_keys = ON")
    yield opened
    opened.close()


def sqlite_plan(connection: Any, query: Any, index: str = "") -> list[str]:
    statement = query.statement(Dialect.SQLITE, "", index)
    arguments = {str(number): None for number in range(1, len(statement.names) + 1)}
    positional = tuple(arguments.values())
    passed = arguments if isinstance(connection, sqlite3.Connection) else positional
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", passed)]


def test_sqlite_uses_a_key_for_every_lookup(connection: Any) -> None:
    for name, query in queries.by_name.items():
        for step in sqlite_plan(connection, query, "sessions_by_agent" if name == "follow_agent" else ""):
            assert BY_TENANT_ALONE not in step, f"{name}: {step}: all of a tenant's"
            table = step.removeprefix("SCAN ").split()[0] if step.startswith("SCAN") else ""
            assert table not in ("messages", "message_archive", "sessions", "feedback"), f"{name}: {step}"


@pytest.mark.parametrize("query", OF_SESSIONS, ids=lambda query: query.name)
def test_a_session_finds_its_policy_by_its_key(connection: Any, query: Query) -> None:
    steps = sqlite_plan(connection, query)
    of_policies = [step for step in steps if "compaction_policies" in step]
    assert of_policies
    assert all("(tenant_id=? AND scope=? AND name=?)" in step for step in of_policies), of_policies


def test_removing_a_message_reads_only_its_own_feedback(connection: Any) -> None:
    """The lookups of foreign keys are part of the plan, and SQLite offers no way to choose their index."""
    for name in ("remove", "drop"):
        steps = [step for step in sqlite_plan(connection, queries.by_name[name]) if " feedback " in step]
        assert steps
        assert all("feedback_by_message (tenant_id=? AND message_id=?)" in step for step in steps), steps


def test_lists_are_sent_as_one_argument() -> None:
    for query in queries.by_name.values():
        for dialect in Dialect:
            statement = query.statement(dialect)
            assert len(statement.names) < 30, query.name
            if LISTS & set(statement.names):
                as_one = any(item in statement.sql for item in ("json", "ANY(", "unnest("))
                assert as_one or query.name == "hold"


@pytest.mark.leg("postgres, queries of compactions")
def test_postgres_reads_only_the_messages_that_a_compaction_covers(new_postgres_url: str) -> None:
    with Holdfast(new_postgres_url) as hf:
        acme = hf.tenant("acme")
        for _ in range(30):
            session = acme.sessions.create().id
            acme.messages.append_many(session, [NewMessage(role="user", content=LONG)] * 100)
            event = acme.compactions.compact(session, POLICY, summary="s")
    with psycopg.connect(new_postgres_url, autocommit=True, prepare_threshold=None) as raw:
        raw.execute("ANALYZE")
        raw.execute("SET plan_cache_mode = force_generic_plan")
        arguments = {
            "tenant_id": "acme", "session_id": session, "event_id": event.id, "id": event.id, "message_id": event.id,
            "places": "{1,2,3}", "rewritten": "{1}", "ranges": "[[1,9]]", "block": -1, "limit": 9,
            "branch": 0, "now_at": "2026-01-01", "first_place": 1, "last_place": 2, "before": 9, "from_number": 1,
            "to_number": 1, "after_number": 0, "after_seq": 0, "updated_at": "2026-01-01",
            "seq": 1, "kind": "message", "role": "user", "content": "[]", "token_count": 1, "metadata": "{}",
            "is_preserved": False, "is_summary": False,
        }  # fmt: skip
        for name in ("span", "hold", "archive", "remove", "originals", "overwrite", "archived", "internals",
                     "empty_archive", "newest", "place", "block", "archived_places", "still_rewritten", "get"):  # fmt: skip
            statement = queries.by_name[name].statement(Dialect.POSTGRES)
            raw.execute(b"PREPARE planned AS " + statement.sql.encode())
            marks = ", ".join(["%s"] * len(statement.names))
            passed = [arguments[item] for item in statement.names]
            rows = psycopg.ClientCursor(raw).execute(f"EXPLAIN EXECUTE planned({marks})".encode(), passed).fetchall()
            actual = "\n".join(row[0] for row in rows)
            raw.execute("DEALLOCATE planned")
            assert "Seq Scan on messages" not in actual, f"{name}:\n{actual}"
            assert "Seq Scan on message_archive" not in actual, f"{name}:\n{actual}"
