"""The SQL about compactions in the storage guide works on our tables unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import CompactionPolicy, Holdfast, NewMessage, PoolOptions
from holdfast.errors import Conflict
from tests.errors import raises

COLUMNS = {
    "compaction_events": {
        "id": "uuid",
        "session_id": "uuid",
        "strategy": "text",
        "original_tokens": "bigint",
        "compacted_tokens": "bigint",
        "messages_removed": "bigint",
        "summary_content": "text",
        "preserved_message_ids": "jsonb",
        "model_used": "text",
        "duration_ms": "bigint",
        "created_at": "timestamp with time zone",
    },
    "message_archive": {
        "id": "uuid",
        "compaction_event_id": "uuid",
        "session_id": "uuid",
        "original_message": "jsonb",
        "archived_at": "timestamp with time zone",
    },
}
POLICY = CompactionPolicy(
    strategy="summarization", preserve_last=2, protected_tokens=0, window_tokens=1_000, target_tokens=100
)


class Guide:
    """A database with two compactions in it, one inside the other, and a psql in front of it."""

    def __init__(self, hf: Holdfast, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.acme = hf.tenant("acme")
        self.session = self.acme.sessions.create(key="user-1").id
        self.made = self._append(6)
        self.first = self.acme.compactions.compact(self.session, POLICY, summary="first", model="small")
        self._append(3)
        self.second = self.acme.compactions.compact(self.session, POLICY, summary="second")

    def _append(self, count: int) -> list[Any]:
        new = [
            NewMessage(role="user", content="a long story " * 20, metadata={"n": n}, token_count=70)
            for n in range(count)
        ]
        return self.acme.messages.append_many(self.session, new)

    def type(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """Run a statement of the guide unchanged, including ``$1``."""
        cursor = psycopg.RawCursor(self._connection).execute(sql.encode(), arguments)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []


@pytest.fixture
def guide(postgres_url: str) -> Iterator[Guide]:
    with (
        Holdfast(postgres_url, pool=PoolOptions(min_connections=1)) as hf,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        yield Guide(hf, connection)


@pytest.mark.parametrize("table", COLUMNS)
def test_the_documented_columns_exist_with_their_types(table: str, guide: Guide) -> None:
    rows = guide.type("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1", table)
    assert COLUMNS[table].items() <= {row["column_name"]: row["data_type"] for row in rows}.items()


def test_compaction_history(guide: Guide) -> None:
    rows = guide.type(
        "SELECT * FROM compaction_events\nWHERE session_id = $1\nORDER BY created_at DESC;", guide.session
    )
    assert [str(row["id"]) for row in rows] == [guide.second.id, guide.first.id]
    first = rows[1]
    assert (first["strategy"], first["summary_content"], first["model_used"]) == ("summarization", "first", "small")
    assert (first["messages_removed"], first["original_tokens"]) == (4, 6 * 70)
    assert first["preserved_message_ids"] == [row.id for row in guide.made[4:]]


def test_archived_rows_can_be_read_as_json(guide: Guide) -> None:
    rows = guide.type(
        "SELECT original_message FROM message_archive WHERE compaction_event_id = $1 ORDER BY seq", guide.first.id
    )
    originals = [row["original_message"] for row in rows]
    assert [row["content"] for row in originals] == [row.content for row in guide.made[:4]]
    assert [row["metadata"] for row in originals] == [{"n": n} for n in range(4)]
    assert {row["session_id"] for row in originals} == {guide.session}
    found = guide.type("""SELECT id FROM message_archive WHERE original_message @> '{"metadata": {"n": 2}}'""")
    assert guide.made[2].id in {str(row["id"]) for row in found}


def test_a_message_may_be_archived_more_than_once(guide: Guide) -> None:
    guide.acme.compactions.rollback(guide.second.id)
    guide.acme.compactions.rollback(guide.first.id)
    assert guide.type("SELECT * FROM message_archive") == []
    again = guide.acme.compactions.compact(guide.session, POLICY, summary="again")
    rows = guide.type("SELECT * FROM message_archive WHERE id = $1", guide.made[0].id)
    assert [str(row["compaction_event_id"]) for row in rows] == [again.id]


def test_archived_messages_can_be_cleaned_up_and_the_events_stay(guide: Guide) -> None:
    guide.type(
        "UPDATE message_archive SET archived_at = NOW() - INTERVAL '91 days' WHERE compaction_event_id = $1",
        guide.second.id,
    )
    guide.type("DELETE FROM message_archive\nWHERE archived_at < NOW() - INTERVAL '90 days';")
    assert len(guide.acme.compactions.history(guide.session)) == 2
    assert len(guide.acme.compactions.archived(session_id=guide.session)) == 4
    with raises(Conflict, reason="originals_missing"):
        guide.acme.compactions.rollback(guide.second.id)
    assert guide.acme.compactions.search_archive(guide.session, "story")


def test_deleting_a_session_deletes_its_events_and_archives(guide: Guide) -> None:
    assert guide.type("SELECT * FROM message_archive")
    guide.type("DELETE FROM sessions WHERE id = $1;", guide.session)
    for table in ("messages", "compaction_events", "message_archive"):
        assert guide.type(f"SELECT * FROM {table}") == [], table


def test_deleting_an_event_deletes_its_archive(guide: Guide) -> None:
    guide.type("DELETE FROM compaction_events WHERE id = $1", guide.second.id)
    rows = guide.type("SELECT DISTINCT compaction_event_id FROM message_archive")
    assert [str(row["compaction_event_id"]) for row in rows] == [guide.first.id]


def test_saved_tokens_can_be_summed(guide: Guide) -> None:
    (row,) = guide.type(
        "SELECT strategy, COUNT(*) AS events, SUM(original_tokens - compacted_tokens) AS saved"
        " FROM compaction_events GROUP BY strategy"
    )
    events = guide.acme.compactions.history(guide.session)
    assert (row["strategy"], row["events"]) == ("summarization", 2)
    assert row["saved"] == sum(item.original_tokens - item.compacted_tokens for item in events)


def test_a_policy_is_for_a_session_or_an_agent_and_nothing_else(guide: Guide) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        guide.type(
            "INSERT INTO compaction_policies (tenant_id, scope, name, policy, compact_from) VALUES ('acme', 'user', 'x', '{}', 1)"
        )


def test_an_event_can_be_inserted_with_the_defaults_of_the_tables(guide: Guide) -> None:
    guide.type(
        "INSERT INTO compaction_events (tenant_id, id, session_id, number, strategy, original_tokens, compacted_tokens,"
        " messages_removed) VALUES ('acme', gen_random_uuid(), $1, 99, 'by hand', 10, 5, 0)",
        guide.session,
    )
    newest = guide.acme.compactions.history(guide.session)[0]
    assert (newest.number, newest.strategy, newest.preserved_message_ids) == (99, "by hand", [])
    assert newest.rolled_back_at is None
