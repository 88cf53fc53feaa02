"""Query plans of the channel stores, whose cost must not depend on the amount of data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.queries import Query, Statement
from holdfast.engines.dialect import Dialect
from holdfast.stores.conversation import contacts, feedback, pending_messages

AFTER = {
    "contacts": " AND (last_seen_at, id) < (:after_at, :after_id)",
    "feedback": " AND (created_at, id) > (:after_at, :after_id)",
}


@pytest.fixture
def connection() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def plan(connection: Any, statement: Statement) -> str:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize("name", ["search", "count_found"])
@pytest.mark.parametrize("where", ["", " AND channel_type = :channel_type", AFTER["contacts"]])
def test_a_search_looks_up_each_prefix_in_an_index(connection: Any, name: str, where: str) -> None:
    actual = plan(connection, contacts.queries.by_name[name].statement(Dialect.SQLITE, where))
    for column in ("name", "username", "sender"):
        index = f"contacts_by_search_{column} (tenant_id=? AND search_{column}>? AND search_{column}<?)"
        assert f"USING COVERING INDEX {index}" in actual
    assert "SEARCH contacts USING PRIMARY KEY (tenant_id=? AND id=?)" in actual


def test_contacts_are_listed_from_an_index_in_order(connection: Any) -> None:
    for where in ("", AFTER["contacts"], " AND peer_kind = :peer_kind"):
        statement = contacts.CONTACTS.by_name["list"].statement(Dialect.SQLITE, where, "contacts_by_recency")
        actual = plan(connection, statement)
        assert "USING INDEX contacts_by_recency" in actual
        assert "B-TREE" not in actual


def test_the_members_of_a_group_are_found_by_an_index(connection: Any) -> None:
    actual = plan(connection, contacts.queries.involved.statement(Dialect.SQLITE))
    assert "SEARCH given USING PRIMARY KEY (tenant_id=? AND id=?)" in actual
    assert "SEARCH other USING COVERING INDEX contacts_by_merged (tenant_id=? AND merged_id=?)" in actual


@pytest.mark.parametrize(
    "index", ["feedback_by_message", "feedback_by_session", "feedback_by_user", "feedback_by_time"]
)
def test_feedback_is_listed_from_an_index_in_order(connection: Any, index: str) -> None:
    column = {"message": "message_id", "session": "session_id", "user": "user_id"}.get(index.rpartition("_")[2])
    where = f" AND {column} = :value" if column else ""
    for page in ("", AFTER["feedback"]):
        actual = plan(connection, feedback.FEEDBACK.by_name["list"].statement(Dialect.SQLITE, where + page, index))
        assert f"USING INDEX {index}" in actual
        assert "B-TREE" not in actual


def test_pending_messages_of_a_group_are_read_in_order(connection: Any) -> None:
    actual = plan(connection, pending_messages.queries.list.statement(Dialect.SQLITE))
    assert "(tenant_id=? AND channel_name=? AND history_key=? AND seq>?)" in actual
    assert "B-TREE" not in actual


@pytest.mark.parametrize("name", ["lock_stale", "delete_stale"])
def test_stale_rows_are_found_by_their_age(connection: Any, name: str) -> None:
    actual = plan(connection, pending_messages.queries.by_name[name].statement(Dialect.SQLITE))
    assert "pending_messages_by_age (tenant_id=? AND updated_at<?)" in actual


def test_titles_are_looked_up_by_keys_of_agents_only(connection: Any) -> None:
    statement = pending_messages.queries.titles.statement(Dialect.SQLITE, "", "sessions_by_identifier")
    assert "sessions_by_identifier (tenant_id=? AND identifier>? AND identifier<?)" in plan(connection, statement)


FILL = """
INSERT INTO contacts (tenant_id, id, channel_type, sender_id, search_name, search_username, search_sender, merged_id,
                      first_seen_at, last_seen_at)
SELECT 'acme', gen_random_uuid(), 'telegram', 's' || n, 'name ' || n, 'user ' || n, 's' || n,
       CASE WHEN n % 10 = 0 THEN md5((n / 20)::text)::uuid END, now(), now()
FROM generate_series(1, 5000) AS n"""
ON_POSTGRES = [
    (contacts.queries.search, ["contacts_by_search_name", "contacts_by_search_username", "contacts_by_search_sender"]),
    (contacts.queries.count_found, ["contacts_by_search_name", "contacts_by_search_username"]),
    (contacts.queries.involved, ["contacts_by_merged", "contacts_pkey"]),
    (contacts.queries.by_sender_ids, ["contacts_by_sender_id"]),
]


@pytest.mark.parametrize(("query", "indexes"), [pytest.param(*postgre, id=postgre[0].name) for postgre in ON_POSTGRES])
def test_postgres_uses_the_same_indexes(new_postgres_url: str, query: Query, indexes: list[str]) -> None:
    with psycopg.connect(new_postgres_url, autocommit=True) as raw:
        raw.execute(FILL)
        raw.execute("ANALYZE contacts")
        raw.execute(b"PREPARE planned AS " + query.statement(Dialect.POSTGRES).sql.encode())
        values = {"tenant_id": "'acme'", "prefix": "'name 77'", "beyond": "'name 78'", "limit": "50"}
        values |= {"ids": "ARRAY[md5('1')::uuid, md5('2')::uuid]", "sender_ids": "ARRAY['s1', 's2']"}
        arguments = ", ".join(values[name] for name in query.statement(Dialect.POSTGRES).names)
        actual = "\n".join(row[0] for row in raw.execute(f"EXPLAIN EXECUTE planned({arguments})".encode()))
    for index in indexes:
        assert index in actual, actual
    assert "Seq Scan" not in actual, actual
