"""What is shared, deleted, restored, archived and removed for its age, over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest

from tests.api.v1 import Here, texts


def said(here: Here, id: str) -> list[str]:
    """The texts of a session."""
    return texts(here.good("GET", f"/sessions/{id}/messages"))


def ids(here: Here, id: str) -> list[str]:
    return [each["id"] for each in here.good("GET", f"/sessions/{id}/messages")["items"]]


def test_sessions_share_a_key_if_they_say_so(here: Here) -> None:
    made = [here.good("POST", "/sessions", {"key": "k", "unique": False}, 201) for _ in range(2)]
    assert [each["is_unique"] for each in made] == [False, False]
    assert here.good("GET", "/sessions/by-key/k")["id"] == made[1]["id"]
    own = here.good("PUT", "/sessions/by-key/k", {})
    assert own["is_unique"]
    assert here.good("GET", "/sessions/by-key/k") == own


def test_a_message_without_a_token_count_counts(here: Here) -> None:
    id = here.session("x" * 40)
    assert here.good("GET", f"/sessions/{id}")["token_count"] == 14
    given: Any = {"role": "user", "content": "x", "token_count": 0}
    assert here.good("POST", f"/sessions/{id}/messages", given, 201)["token_count"] == 0


def test_deleted_messages_are_listed_restored_and_purged(here: Here) -> None:
    id = here.session("a", "b", "c")
    first, second, _ = ids(here, id)
    assert here.good("DELETE", f"/sessions/{id}/messages?id={first}&id={second}") == {"removed": 2}
    page = here.good("GET", f"/sessions/{id}/messages/deleted?limit=1")
    rest = here.good("GET", f"/sessions/{id}/messages/deleted?limit=1&cursor={quote(page['next'])}")
    assert [each["message"]["id"] for each in page["items"] + rest["items"]] == sorted([first, second])
    assert page["items"][0]["deleted_at"]
    assert here.good("POST", f"/sessions/{id}/messages/restore", {"ids": [first, str(uuid4())]}) == {"restored": 1}
    assert said(here, id) == ["a", "c"]
    assert here.good("DELETE", f"/sessions/{id}/messages?id={second}&purge=true") == {"removed": 1}
    assert here.good("POST", f"/sessions/{id}/messages/restore", {"ids": [second]}) == {"restored": 0}


def test_a_compaction_of_the_callers_own_is_recorded_and_rolled_back(here: Here) -> None:
    id = here.session("a", "b", "c")
    first, second, _ = ids(here, id)
    body: Any = {"strategy": "mine", "removed": [first], "summary": "about a", "duration_ms": 5}
    event = here.good("POST", f"/sessions/{id}/compactions/record", body, 201)
    assert said(here, id) == ["about a", "b", "c"]
    more = here.good("POST", f"/compactions/{event['id']}/archive", {"message_ids": [second]})
    assert more["messages_removed"] == 2
    here.good("POST", f"/compactions/{event['id']}/rollback")
    assert said(here, id) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("wanted", "found"), [({"text": "b"}, ["b"]), ([{"type": "text"}], ["a", "b"]), ({"type": "tool_use"}, [])]
)
def test_messages_are_found_by_their_blocks(here: Here, wanted: Any, found: list[str]) -> None:
    id = here.session("a", "b")
    where = quote(msgspec.json.encode([{"column": "content", "op": "contains", "value": wanted}]).decode())
    assert texts(here.good("GET", f"/sessions/{id}/messages?where={where}")) == found
    assert "contains" in here.bad("GET", f"/sessions/{id}/messages?where={where.replace('contains', 'eq')}")["detail"]


def test_old_sessions_are_removed_a_few_at_a_time(here: Here) -> None:
    for _ in range(3):
        here.session("a")
    nothing = {"sessions": 0, "originals": 0, "deleted_messages": 0, "kept": 0, "more": False}
    assert here.good("POST", "/sessions/prune?idle_s=86400&archives_s=86400") == nothing
    assert here.good("POST", "/sessions/prune?idle_s=0&limit=2") == {**nothing, "sessions": 2, "more": True}
    assert here.good("POST", "/sessions/prune?idle_s=0") == {**nothing, "sessions": 1}
    assert "idle" in here.bad("POST", "/sessions/prune")["detail"]
    here.bad("POST", "/sessions/prune?idle_s=-1")
