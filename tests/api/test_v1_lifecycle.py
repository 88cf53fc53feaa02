"""Shared keys, deletion, restore, archives and pruning over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest

from tests.api.v1 import V1Client, texts


def texts_of(v1: V1Client, id: str) -> list[str]:
    """Return the texts of a session."""
    return texts(v1.good("GET", f"/sessions/{id}/messages"))


def ids(v1: V1Client, id: str) -> list[str]:
    return [message["id"] for message in v1.good("GET", f"/sessions/{id}/messages")["items"]]


def test_sessions_share_a_key_if_they_allow_it(v1: V1Client) -> None:
    made = [v1.good("POST", "/sessions", {"key": "k", "unique": False}, 201) for _ in range(2)]
    assert [item["is_unique"] for item in made] == [False, False]
    assert v1.good("GET", "/sessions/by-key/k")["id"] == made[1]["id"]
    own = v1.good("PUT", "/sessions/by-key/k", {})
    assert own["is_unique"]
    assert v1.good("GET", "/sessions/by-key/k") == own


def test_a_message_without_a_token_count_is_counted(v1: V1Client) -> None:
    id = v1.session("x" * 40)
    assert v1.good("GET", f"/sessions/{id}")["token_count"] == 14
    by_name: Any = {"role": "user", "content": "x", "token_count": 0}
    assert v1.good("POST", f"/sessions/{id}/messages", by_name, 201)["token_count"] == 0


def test_deleted_messages_are_listed_restored_and_purged(v1: V1Client) -> None:
    id = v1.session("a", "b", "c")
    first, second, _ = ids(v1, id)
    assert v1.good("DELETE", f"/sessions/{id}/messages?id={first}&id={second}") == {"removed": 2}
    page = v1.good("GET", f"/sessions/{id}/messages/deleted?limit=1")
    rest = v1.good("GET", f"/sessions/{id}/messages/deleted?limit=1&cursor={quote(page['next'])}")
    assert [row["message"]["id"] for row in page["items"] + rest["items"]] == sorted([first, second])
    assert page["items"][0]["deleted_at"]
    assert v1.good("POST", f"/sessions/{id}/messages/restore", {"ids": [first, str(uuid4())]}) == {"restored": 1}
    assert texts_of(v1, id) == ["a", "c"]
    assert v1.good("DELETE", f"/sessions/{id}/messages?id={second}&purge=true") == {"removed": 1}
    assert v1.good("POST", f"/sessions/{id}/messages/restore", {"ids": [second]}) == {"restored": 0}


def test_an_external_compaction_is_recorded_and_rolled_back(v1: V1Client) -> None:
    id = v1.session("a", "b", "c")
    first, second, _ = ids(v1, id)
    body: Any = {"strategy": "mine", "removed": [first], "summary": "about a", "duration_ms": 5}
    event = v1.good("POST", f"/sessions/{id}/compactions/record", body, 201)
    assert texts_of(v1, id) == ["about a", "b", "c"]
    more = v1.good("POST", f"/compactions/{event['id']}/archive", {"message_ids": [second]})
    assert more["messages_removed"] == 2
    v1.good("POST", f"/compactions/{event['id']}/rollback")
    assert texts_of(v1, id) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("wanted", "expected"), [({"text": "b"}, ["b"]), ([{"type": "text"}], ["a", "b"]), ({"type": "tool_use"}, [])]
)
def test_messages_are_found_by_their_blocks(v1: V1Client, wanted: Any, expected: list[str]) -> None:
    id = v1.session("a", "b")
    where = quote(msgspec.json.encode([{"column": "content", "op": "contains", "value": wanted}]).decode())
    assert texts(v1.good("GET", f"/sessions/{id}/messages?where={where}")) == expected
    assert "contains" in v1.bad("GET", f"/sessions/{id}/messages?where={where.replace('contains', 'eq')}")["detail"]


def test_old_sessions_are_removed_in_batches(v1: V1Client) -> None:
    for _ in range(3):
        v1.session("a")
    nothing = {"sessions": 0, "originals": 0, "deleted_messages": 0, "kept": 0, "more": False}
    assert v1.good("POST", "/sessions/prune?idle_s=86400&archives_s=86400") == nothing
    assert v1.good("POST", "/sessions/prune?idle_s=0&limit=2") == {**nothing, "sessions": 2, "more": True}
    assert v1.good("POST", "/sessions/prune?idle_s=0") == {**nothing, "sessions": 1}
    assert "idle" in v1.bad("POST", "/sessions/prune")["detail"]
    v1.bad("POST", "/sessions/prune?idle_s=-1")
