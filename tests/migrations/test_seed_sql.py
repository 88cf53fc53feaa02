"""The SQL in the storage guide works on our tables unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, PoolOptions

GUIDE_COLUMNS = {
    "sessions": {
        "id": "uuid",
        "tenant_id": "text",
        "identifier": "text",
        "metadata": "jsonb",
        "compaction_count": "integer",
        "created_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
    },
    "messages": {
        "id": "uuid",
        "session_id": "uuid",
        "role": "text",
        "content": "jsonb",
        "token_count": "integer",
        "metadata": "jsonb",
        "is_preserved": "boolean",
        "is_summary": "boolean",
        "created_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
    },
}
TOOL_USE = {"type": "tool_use", "id": "tool_123", "name": "search", "input": {"query": "weather"}}


class Guide:
    """A database with something in it, and a psql in front of it."""

    def __init__(self, connection: psycopg.Connection[Any], session: str, other: str) -> None:
        self._connection = connection
        self.session, self.other = session, other

    def type(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """Run a statement of the guide unchanged, including ``$1``."""
        if arguments:
            marks = ", ".join(["%s"] * len(arguments))
            self._connection.execute("DEALLOCATE ALL")
            self._connection.execute(f"PREPARE typed AS {sql}".encode())
            cursor = psycopg.ClientCursor(self._connection).execute(f"EXECUTE typed({marks})", arguments)
        else:
            cursor = self._connection.execute(sql.encode())
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []


@pytest.fixture
def guide(postgres_url: str) -> Iterator[Guide]:
    with Holdfast(postgres_url, pool=PoolOptions(min_connections=1)) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="user-1", metadata={"plan": "premium"})
        acme.messages.append(session.id, role="user", content="Hello", token_count=3)
        acme.messages.append(
            session.id, role="assistant", content=[{"type": "text", "text": "Hi"}, TOOL_USE], token_count=5
        )
        acme.messages.append(session.id, role="user", content="Keep this", token_count=2, is_preserved=True)
        other = acme.sessions.create(key="user-2", metadata={"plan": "free"})
        hf.tenant("globex").sessions.create(key="user-1")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield Guide(connection, session.id, other.id)


@pytest.mark.parametrize("table", GUIDE_COLUMNS)
def test_the_documented_columns_exist_with_their_types(table: str, guide: Guide) -> None:
    rows = guide.type("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1", table)
    assert GUIDE_COLUMNS[table].items() <= {row["column_name"]: row["data_type"] for row in rows}.items()


def test_session_messages(guide: Guide) -> None:
    rows = guide.type("SELECT * FROM messages\nWHERE session_id = $1\nORDER BY created_at ASC;", guide.session)
    assert [row["role"] for row in rows] == ["user", "assistant", "user"]
    assert rows[0]["content"] == [{"type": "text", "text": "Hello"}]


def test_token_count(guide: Guide) -> None:
    sql = "SELECT COALESCE(SUM(token_count), 0)\nFROM messages\nWHERE session_id = $1;"
    assert [row["coalesce"] for row in guide.type(sql, guide.session)] == [10]
    assert [row["coalesce"] for row in guide.type(sql, guide.other)] == [0]


def test_sessions_by_tenant(guide: Guide) -> None:
    rows = guide.type("SELECT * FROM sessions\nWHERE tenant_id = $1\nORDER BY updated_at DESC;", "acme")
    assert [row["identifier"] for row in rows] == ["user-2", "user-1"]


def test_session_lookup(guide: Guide) -> None:
    rows = guide.type("SELECT * FROM sessions WHERE tenant_id = $1 AND identifier = $2;", "acme", "user-1")
    assert [str(row["id"]) for row in rows] == [guide.session]


def test_preserved_messages(guide: Guide) -> None:
    rows = guide.type("SELECT * FROM messages WHERE session_id = $1 AND is_preserved = true;", guide.session)
    assert [row["content"][0]["text"] for row in rows] == ["Keep this"]


def test_query_metadata(guide: Guide) -> None:
    rows = guide.type("SELECT * FROM sessions\nWHERE metadata->>'plan' = 'premium';")
    assert [str(row["id"]) for row in rows] == [guide.session]


def test_query_content_blocks(guide: Guide) -> None:
    rows = guide.type("""SELECT * FROM messages\nWHERE content @> '[{"type": "tool_use"}]';""")
    assert [row["content"][1] for row in rows] == [TOOL_USE]


def test_deleting_a_session_deletes_its_messages(guide: Guide) -> None:
    guide.type("DELETE FROM sessions WHERE id = $1;", guide.session)
    assert guide.type("SELECT * FROM messages") == []
    assert len(guide.type("SELECT * FROM sessions")) == 2


def test_old_sessions_can_be_cleaned_up(guide: Guide) -> None:
    guide.type("UPDATE sessions SET updated_at = NOW() - INTERVAL '31 days' WHERE id = $1", guide.session)
    guide.type("DELETE FROM sessions\nWHERE updated_at < NOW() - INTERVAL '30 days';")
    assert guide.session not in {str(row["id"]) for row in guide.type("SELECT id FROM sessions")}
    assert guide.type("SELECT * FROM messages") == []


def test_analyze_and_vacuum(guide: Guide) -> None:
    guide.type("ANALYZE messages;")
    guide.type("VACUUM (VERBOSE) messages;")


@pytest.mark.parametrize("role", ["tool", "", "USER"])
def test_a_wrong_role_is_refused_by_the_database_too(role: str, guide: Guide) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        guide.type("UPDATE messages SET role = $1 WHERE session_id = $2", role, guide.session)


def test_an_identifier_belongs_to_one_live_session(guide: Guide) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        guide.type("UPDATE sessions SET identifier = 'user-1' WHERE tenant_id = 'acme' AND identifier = 'user-2'")


def test_the_flags_and_numbers_have_the_defaults_of_the_guide(guide: Guide) -> None:
    guide.type(
        "INSERT INTO sessions (tenant_id, id, identifier) VALUES ('acme', gen_random_uuid(), 'typed') RETURNING metadata"
    )
    (made,) = guide.type("SELECT * FROM sessions WHERE identifier = 'typed'")
    assert (made["metadata"], made["compaction_count"]) == ({}, 0)
    guide.type(
        "INSERT INTO messages (tenant_id, session_id, seq, id, role, content) "
        "VALUES ('acme', $1, 1, gen_random_uuid(), 'user', '[]')",
        made["id"],
    )
    (message,) = guide.type("SELECT * FROM messages WHERE session_id = $1", made["id"])
    assert (message["token_count"], message["metadata"]) == (0, {})
    assert (message["is_preserved"], message["is_summary"]) == (False, False)
    assert message["created_at"] is not None
