"""Context files, profiles and messages of an agent, and the deletion of runs, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.api.limits import ServerLimits
from tests.api.v1 import NEVER, V1Client, open_here, pages, texts

_FILES = "/agents/a/context-files"


@pytest.fixture
def agent(v1: V1Client) -> str:
    v1.good("PUT", "/agents/a", {"agent_type": "predefined"})
    return "a"


def test_a_file_has_a_version_and_one_level(v1: V1Client, agent: str) -> None:
    made = v1.ask("PUT", f"{_FILES}/SOUL.md", {"content": "be kind"})
    assert (made.status, made.headers["etag"], made.json["user"]) == (200, '"1"', "")
    v1.bad("PUT", f"{_FILES}/SOUL.md", {"content": "x"}, 412, headers={"If-Match": '"7"'})
    refused = v1.bad("PUT", f"{_FILES}/SOUL.md", {"content": "x", "user": "u1"}, 403)
    assert (refused["type"], refused["reason"]) == ("Forbidden", "agent_level")
    v1.good("PUT", f"{_FILES}/USER.md", {"content": "template"})
    assert [item["file_name"] for item in v1.good("POST", f"{_FILES}/seed", {"user": "u1"})["items"]] == ["USER.md"]
    v1.good("PUT", f"{_FILES}/USER.md", {"content": "new"})
    assert v1.good("GET", f"{_FILES}/USER.md?user=u1")["content"] == "template"
    assert v1.good("POST", f"{_FILES}/USER.md/propagate") == {"count": 1}
    assert [(item["user"], item["content"]) for item in v1.good("GET", f"{_FILES}?user=u1")["items"]] == [
        ("", "be kind"), ("u1", "new")
    ]  # fmt: skip
    v1.good("DELETE", f"{_FILES}/USER.md?user=u1", status=204)
    assert v1.good("GET", f"{_FILES}/USER.md?user=u1")["user"] == ""
    v1.bad("GET", f"{_FILES}/missing", status=404)
    v1.bad("PUT", f"{_FILES}/a%2Fb", {"content": "x"})


def test_a_visit_creates_a_profile_once(v1: V1Client, agent: str) -> None:
    visit = {"workspace": "/ws", "channel": "telegram", "seed": True}
    first = v1.good("POST", "/agents/a/users/u%2F1/visit", visit)
    assert (first["created"], first["profile"]["workspace"]) == (True, "/ws/telegram")
    assert not v1.good("POST", "/agents/a/users/u%2F1/visit", {})["created"]
    v1.good("POST", "/agents/a/users/u2/visit", {})
    assert [item["profile"]["user"] for item in pages(v1, "/agents/a/users", 1)] == ["u2", "u/1"]
    changed = v1.good("PATCH", "/profiles/a?user=u2", {"metadata": {"n": 1}})
    assert (changed["metadata"], changed["version"]) == ({"n": 1}, 2)
    override = v1.good("PUT", "/agent-overrides/a", {"user": "u2", "model": "small"})
    assert v1.good("GET", "/agent-overrides/a?user=u2") == override
    v1.bad("POST", "/agents/never/users/u1/visit", {}, 404)


def test_the_messages_of_an_agent_are_paged_over_its_sessions(v1: V1Client) -> None:
    ids = [v1.good("POST", "/sessions", {"agent": "a"}, 201)["id"] for _ in range(2)]
    for number in range(6):
        v1.good("POST", f"/sessions/{ids[number % 2]}/messages", {"role": "user", "content": str(number)}, 201)
    assert texts({"items": pages(v1, "/agents/a/messages", 2)}) == ["5", "4", "3", "2", "1", "0"]
    assert texts(v1.good("GET", "/agents/a/messages/last?count=3")) == ["3", "4", "5"]
    third = v1.good("GET", "/agents/a/messages")["items"][2]
    since = third["created_at"].replace("+", "%2B")
    assert texts(v1.good("GET", f"/agents/a/messages?since={since}")) == ["5", "4", "3"]
    assert v1.good("GET", "/agents/unknown/messages")["items"] == []
    v1.bad("GET", "/agents/a/messages?since=2026-01-01T00:00:00")
    v1.bad("GET", "/agents/a/messages/last?count=0")


@pytest.fixture
def small() -> Iterator[V1Client]:
    """A server with small responses."""
    yield from open_here(ServerLimits(response_bytes=10_000, refusals_per_s=0))


def test_a_page_with_large_messages_has_fewer(small: V1Client) -> None:
    id = small.good("POST", "/sessions", {"agent": "a"}, 201)["id"]
    for _ in range(4):
        small.good("POST", f"/sessions/{id}/messages", {"role": "user", "content": "x" * 3_000}, 201)
    first = small.good("GET", "/agents/a/messages?limit=4")
    assert (len(first["items"]), first["next"] is not None) == (2, True)
    assert len(pages(small, "/agents/a/messages", 4)) == 4
    assert small.bad("GET", "/agents/a/messages/last?count=4", status=422)["limit"] == "response_bytes"


def test_a_run_is_deleted_after_its_end(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    assert v1.bad("DELETE", f"/runs/{run}", status=409)["reason"] == "status"
    v1.good("POST", f"/runs/{run}/finish", {"epoch": epoch, "stop_reason": "end_turn"})
    v1.good("DELETE", f"/runs/{run}", status=204)
    for missing in (run, NEVER):
        v1.bad("DELETE", f"/runs/{missing}", status=404)
