"""Memories of agents, agents, tools and feedback, over kagent's API."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import AgentChange
from tests.api.in_process import Reply
from tests.api.kagent import Kagent, bad, good

PLACE = "/api/memories"
EAST = [1.0] + [0.0] * 767
NORTH = [0.0, 1.0] + [0.0] * 766
BETWEEN = [1.0, 1.0] + [0.0] * 766


def memory(content: str = "tea", vector: list[float] = EAST, **more: Any) -> dict[str, Any]:
    """Return the body of a memory."""
    return {"agent_name": "ns/a", "user_id": "ada", "content": content, "vector": vector, **more}


def bare(reply: Reply, status: int = 200) -> Any:
    """Check the status of a response without an envelope, and return its JSON."""
    assert reply.status == status, reply.body
    return json.loads(reply.body)


def add(kagent: Kagent, *memories: dict[str, Any]) -> None:
    """Add these memories."""
    made = bare(kagent.post(f"{PLACE}/sessions/batch", {"items": list(memories)}), 201)
    assert made == {"count": len(memories)}


def search(kagent: Kagent, vector: list[float] = EAST, **more: Any) -> list[str]:
    """Search for a vector."""
    reply = kagent.post(f"{PLACE}/search", {"agent_name": "ns/a", "user_id": "ada", "vector": vector, **more})
    return [item["content"] for item in bare(reply)]


def list_memories(kagent: Kagent, query: str = "agent_name=ns/a", **more: Any) -> list[Any]:
    """List an agent's memories."""
    listed: list[Any] = bare(kagent.get(f"{PLACE}?{query}", **more))
    return listed


def test_a_memory_is_found_with_all_its_fields(kagent: Kagent) -> None:
    id = bare(kagent.post(f"{PLACE}/sessions", memory("tea ü\x00", metadata={"z": 1, "a": [None]})), 201)["id"]
    body = {"agent_name": "ns/a", "user_id": "ada", "vector": EAST}
    (one,) = bare(kagent.post(f"{PLACE}/search", body))
    assert set(one) == {"id", "content", "score", "metadata", "created_at"}
    assert (one["id"], one["content"], one["score"]) == (id, "tea ü\x00", pytest.approx(1.0))
    assert list(one["metadata"].items()) == [("z", 1), ("a", [None])]
    (listed,) = list_memories(kagent)
    assert set(listed) == {"id", "content", "access_count", "created_at", "expires_at"}
    assert (listed["id"], listed["access_count"]) == (id, 1), "it was found once"


def test_content_and_metadata_of_a_memory_are_optional(kagent: Kagent) -> None:
    body = memory()
    del body["content"]
    bare(kagent.post(f"{PLACE}/sessions", body), 201)
    (one,) = bare(kagent.post(f"{PLACE}/search", body))
    assert (one["content"], one["metadata"]) == ("", {})


def test_the_most_similar_memory_comes_first(kagent: Kagent) -> None:
    add(kagent, memory("north", NORTH), memory("between", BETWEEN), memory("east", EAST))
    away = [-1.0] + [0.0] * 767
    assert search(kagent, EAST) == ["east", "between", "north"]
    assert search(kagent, EAST, min_score=0.5) == ["east", "between"]
    assert search(kagent, EAST, min_score=0.99) == ["east"]
    assert search(kagent, away, min_score=-1) == ["north", "between", "east"], "other directions are less similar"
    assert search(kagent, [0.0] * 768) == ["north", "between", "east"], "nothing is similar enough"


def test_the_number_of_hits_is_limited_and_five_by_default(kagent: Kagent) -> None:
    add(kagent, *(memory(str(number)) for number in range(7)))
    assert len(search(kagent)) == len(search(kagent, limit=0)) == len(search(kagent, limit=-1)) == 5
    for limit, number in ((1, 1), (6, 6), (7, 7), (8, 7), (2**31, 7)):
        assert len(search(kagent, limit=limit)) == number


def test_memories_of_agents_users_and_tenants_are_separate(kagent: Kagent) -> None:
    add(kagent, memory("mine"), memory("other agent's", agent_name="ns/b"), memory("bob's", user_id="bob"))
    assert search(kagent) == ["mine"]
    assert search(kagent, agent_name="ns/b") == ["other agent's"]
    assert search(kagent, user_id="bob") == ["bob's"]
    assert search(kagent.another()) == []
    assert [list_memorie["content"] for list_memorie in list_memories(kagent, user="bob")] == ["bob's"]
    assert [list_memorie["content"] for list_memorie in list_memories(kagent, "agent_name=ns/a&user_id=bob")] == [
        "bob's"
    ]


def test_all_spellings_of_an_agent_are_the_same_agent(kagent: Kagent) -> None:
    add(kagent, memory(agent_name="ns/my-agent"))
    for name in ("ns/my-agent", "ns/my_agent", "ns__NS__my_agent"):
        assert search(kagent, agent_name=name) == ["tea"]
        assert len(list_memories(kagent, f"agent_name={name}")) == 1


def test_the_most_used_memory_is_listed_first(kagent: Kagent) -> None:
    add(kagent, memory("east", EAST), memory("north", NORTH))
    for _ in range(2):
        search(kagent, NORTH, limit=1)
    search(kagent, EAST, limit=1)
    assert [(list_memorie["content"], list_memorie["access_count"]) for list_memorie in list_memories(kagent)] == [
        ("north", 2),
        ("east", 1),
    ]


@pytest.mark.parametrize(("ttl", "days"), [(None, 15), (0, 15), (-3, 15), (1, 1), (36_500, 36_500)])
def test_a_memory_expires_after_its_ttl(kagent: Kagent, ttl: int | None, days: int) -> None:
    add(kagent, memory(ttl_days=ttl))
    (one,) = list_memories(kagent)
    lasts = datetime.fromisoformat(one["expires_at"]) - datetime.fromisoformat(one["created_at"])
    assert lasts == timedelta(days=days)


NO_MEMORIES = [
    pytest.param({"agent_name": ""}, id="no agent"),
    pytest.param({"user_id": ""}, id="no user"),
    pytest.param({"user_id": None}, id="null user"),
    pytest.param({"user_id": "x" * 256}, id="user too long"),
    pytest.param({"vector": []}, id="no vector"),
    pytest.param({"vector": [1.0] * 767}, id="one dimension missing"),
    pytest.param({"vector": [1.0] * 769}, id="one dimension too many"),
    pytest.param({"vector": ["1"] * 768}, id="vector of text"),
    pytest.param({"vector": [1e39] * 768}, id="numbers over 32 bits"),
    pytest.param({"ttl_days": 36_501}, id="ttl too large"),
    pytest.param({"ttl_days": 1.5}, id="fractional ttl"),
    pytest.param({"metadata": []}, id="list as metadata"),
    pytest.param({"metadata": {"x": "x" * 262_144}}, id="metadata too large"),
    pytest.param({"content": None}, id="null content"),
]


@pytest.mark.parametrize("wrong", NO_MEMORIES)
def test_an_invalid_memory_is_refused_alone_and_with_its_batch(kagent: Kagent, wrong: dict[str, Any]) -> None:
    bad(kagent.post(f"{PLACE}/sessions", memory() | wrong), 400)
    bad(kagent.post(f"{PLACE}/sessions/batch", {"items": [memory(), memory() | wrong]}), 400)
    if not {"user_id", "agent_name"} & set(wrong):
        assert list_memories(kagent) == [], "all of them or none"


def test_a_batch_has_one_to_fifty_memories(kagent: Kagent) -> None:
    for items in ([], [memory()] * 51, None):
        bad(kagent.post(f"{PLACE}/sessions/batch", {"items": items}), 400)
    add(kagent, *[memory()] * 50)
    assert len(list_memories(kagent)) == 50


@pytest.mark.parametrize("wrong", [{"limit": "5"}, {"min_score": None}, {"vector": [1.0]}, {"agent_name": ""}])
def test_an_invalid_search_is_refused(kagent: Kagent, wrong: dict[str, Any]) -> None:
    body = {"agent_name": "ns/a", "user_id": "ada", "vector": EAST}
    bad(kagent.post(f"{PLACE}/search", body | wrong), 400)


def test_an_agents_memories_about_one_user_are_deleted(kagent: Kagent) -> None:
    add(kagent, memory("mine"), memory("bob's", user_id="bob"), memory("other", agent_name="ns/b"))
    for _ in range(2):
        assert bare(kagent.delete(f"{PLACE}?agent_name=ns/a")) == {"status": "deleted"}
    assert search(kagent) == list_memories(kagent) == []
    assert (search(kagent, user_id="bob"), search(kagent, agent_name="ns/b")) == (["bob's"], ["other"])


def test_listing_and_deleting_memories_requires_an_agent(kagent: Kagent) -> None:
    for query in ("", "?agent_name=", "?user_id=ada"):
        assert bad(kagent.get(PLACE + query), 400) == "the parameter agent_name is missing"
        bad(kagent.delete(PLACE + query), 400)


def test_an_agent_is_registered_once_under_all_spellings(kagent: Kagent) -> None:
    made = good(kagent.post("/api/agents", {"agent_ref": "ns/my-agent"}), 201)
    assert {"id", "name", "type", "config", "workload_type", "created_at", "updated_at"} <= set(made)
    assert (made["agent"], made["tools"], made["accepted"]) == (None, [], True), "no custom resource declares it"
    assert (made["id"], made["name"], made["type"]) == ("ns__NS__my_agent", "ns/my-agent", "kagent")
    assert good(kagent.post("/api/agents", {"agent_ref": "ns/my_agent"}), 201) == made
    assert good(kagent.get("/api/agents")) == [made]
    assert good(kagent.get("/api/agents/ns/my-agent")) == made


def test_registering_an_agent_again_updates_it(kagent: Kagent) -> None:
    config = {"model": "m", "tools": [{"name": "t"}], "temperature": 0.5}
    first = {"agent_ref": "ns/a", "type": "Declarative", "config": config}
    made = good(kagent.post("/api/agents", first), 201)
    assert (made["type"], made["config"], made["workload_type"]) == ("Declarative", config, "deployment")
    changed = good(kagent.put("/api/agents", {"agent_ref": "ns/a", "type": "BYO", "workload_type": "sandbox"}), 201)
    assert (changed["type"], changed["config"], changed["workload_type"]) == ("BYO", config, "sandbox")
    assert good(kagent.post("/api/agents", {"agent_ref": "ns/a", "config": {}}), 201)["config"] == {}
    kagent.run(kagent.tenant.agents.update(made["id"], change=AgentChange(description="kept", model="m")))
    good(kagent.post("/api/agents", first), 201)
    agent = kagent.run(kagent.tenant.agents.get(made["id"]))
    assert (agent.description, agent.model, agent.metadata["config"]) == ("kept", "m", config)


def test_concurrent_registrations_of_an_agent_lose_no_change(kagent: Kagent) -> None:
    async def register_all() -> list[int]:
        bodies = [{"agent_ref": "ns/a", "type": f"t{number}", "config": {"n": number}} for number in range(8)]
        replies = await asyncio.gather(*(kagent.ask("POST", "/api/agents", body) for body in bodies))
        return [reply.status for reply in replies]

    assert kagent.run(register_all()) == [201] * 8
    (agent,) = good(kagent.get("/api/agents"))
    assert agent["type"] == f"t{agent['config']['n']}"


def test_an_agent_of_a_session_is_registered(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s", "agent_ref": "ns/a"}), 201)
    good(kagent.put("/api/sessions/s", {"agent_ref": "ns/b"}))
    assert sorted(item["name"] for item in good(kagent.get("/api/agents"))) == ["ns/a", "ns/b"]


def test_a_deleted_agent_keeps_its_sessions_and_can_be_registered_again(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s", "agent_ref": "ns/a"}), 201)
    assert good(kagent.delete("/api/agents/ns/a")) == {}
    for reply in (kagent.get("/api/agents/ns/a"), kagent.delete("/api/agents/ns/a")):
        bad(reply, 404)
    assert good(kagent.get("/api/agents")) == []
    assert [item["id"] for item in good(kagent.get("/api/sessions/agent/ns/a"))] == ["s"]
    good(kagent.post("/api/sessions", {"id": "t", "agent_ref": "ns/a"}), 201)
    assert good(kagent.post("/api/agents", {"agent_ref": "ns/a"}), 201)["name"] == "ns/a"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"agent_ref": ""},
        {"agent_ref": 7},
        {"agent_ref": "x" * 256},
        {"agent_ref": "ns/a", "type": ""},
        {"agent_ref": "ns/a", "config": "text"},
    ],
)
def test_an_invalid_agent_is_refused(kagent: Kagent, body: Any) -> None:
    bad(kagent.post("/api/agents", body), 400)
    assert good(kagent.get("/api/agents")) == []


def server(ref: str = "ns/x", *tools: str, **more: Any) -> dict[str, Any]:
    """Return the body of a tool server."""
    return {"ref": ref, "discoveredTools": [{"name": tool, "description": f"does {tool}"} for tool in tools], **more}


def tools(kagent: Kagent) -> list[tuple[str, str]]:
    """List the tools of all servers."""
    return [(item["server_name"], item["id"]) for item in good(kagent.get("/api/tools"))]


def test_a_tool_server_is_listed_with_its_tools(kagent: Kagent) -> None:
    made = good(kagent.post("/api/toolservers", server("ns/x", "b", "a")), 201)
    assert made == {**server("ns/x", "b", "a"), "groupKind": "RemoteMCPServer"}
    assert good(kagent.get("/api/toolservers")) == [{**server("ns/x", "a", "b"), "groupKind": "RemoteMCPServer"}]
    first = good(kagent.get("/api/tools"))[0]
    assert set(first) == {"id", "server_name", "group_kind", "description", "created_at", "updated_at"}
    assert (first["id"], first["description"]) == ("a", "does a")


def test_a_tool_server_has_its_last_discovered_tools(kagent: Kagent) -> None:
    for names in (("a", "b"), ("b", "c"), (), ("d",)):
        good(kagent.post("/api/toolservers", server("ns/x", *names)), 201)
        assert tools(kagent) == [("ns/x", name) for name in names]


def test_servers_of_two_kinds_with_one_name_are_deleted_together(kagent: Kagent) -> None:
    for kind in good(kagent.get("/api/toolservertypes")):
        good(kagent.post("/api/toolservers", server("ns/x", kind, groupKind=kind)), 201)
    good(kagent.post("/api/toolservers", server("ns/y", "z")), 201)
    assert [item["groupKind"] for item in good(kagent.get("/api/toolservers"))][:2] == ["MCPServer", "RemoteMCPServer"]
    assert tools(kagent) == [("ns/x", "MCPServer"), ("ns/x", "RemoteMCPServer"), ("ns/y", "z")]
    assert good(kagent.delete("/api/toolservers/ns/x")) == {}
    assert tools(kagent) == [("ns/y", "z")]
    assert bad(kagent.delete("/api/toolservers/ns/x"), 404) == "ToolServer not found"
    good(kagent.post("/api/toolservers", server("ns/x", "new")), 201)
    assert tools(kagent) == [("ns/x", "new"), ("ns/y", "z")]


NO_SERVERS = [
    pytest.param({"ref": ""}, id="no name"),
    pytest.param({"ref": "x" * 501}, id="name too long"),
    pytest.param({"groupKind": "Other"}, id="unknown kind"),
    pytest.param({"discoveredTools": [{"name": ""}]}, id="tool without a name"),
    pytest.param({"discoveredTools": ["a"]}, id="text as tool"),
    pytest.param({"discoveredTools": [{"name": str(number)} for number in range(1_001)]}, id="too many tools"),
    pytest.param({"description": "x" * 65_537}, id="description too long"),
]


@pytest.mark.parametrize("wrong", NO_SERVERS)
def test_an_invalid_tool_server_is_refused_and_the_previous_one_stays(kagent: Kagent, wrong: dict[str, Any]) -> None:
    good(kagent.post("/api/toolservers", server("ns/x", "a")), 201)
    bad(kagent.post("/api/toolservers", server("ns/x", "b") | wrong), 400)
    assert tools(kagent) == [("ns/x", "a")]
    assert len(good(kagent.get("/api/toolservers"))) == 1


@pytest.mark.parametrize("issue", [None, "instructions", "factual", "incomplete", "tool"])
@pytest.mark.parametrize("number", [None, 0, -(2**63), 2**63 - 1])
def test_feedback_is_returned_unchanged(kagent: Kagent, issue: str | None, number: int | None) -> None:
    sent = {"feedback_text": "ü \x00", "is_positive": issue is None, "issue_type": issue, "message_id": number}
    made = good(kagent.post("/api/feedback", sent))
    assert {name: made[name] for name in sent} == sent
    assert (made["user_id"], made["updated_at"]) == ("ada", made["created_at"])
    assert good(kagent.get("/api/feedback")) == [made]


def test_feedback_is_listed_oldest_first_over_all_pages(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.kagent.feedback.PAGE", 2)
    for number in range(5):
        good(kagent.post("/api/feedback", {"feedback_text": str(number)}))
        assert len(good(kagent.get("/api/feedback"))) == number + 1
    assert [item["feedback_text"] for item in good(kagent.get("/api/feedback"))] == ["0", "1", "2", "3", "4"]
    assert good(kagent.get("/api/feedback", user="bob")) == []


@pytest.mark.parametrize("session", ["s", None])
@pytest.mark.parametrize("event", ["e-1", "0190a5d0-0000-7000-8000-000000000001"])
def test_feedback_on_an_event_is_stored_with_its_message(kagent: Kagent, session: str | None, event: str) -> None:
    for id in ("t", "s", "u"):
        good(kagent.post("/api/sessions", {"id": id}), 201)
        good(kagent.post(f"/api/sessions/{id}/events", {"id": event if id == "s" else "other", "data": "x"}), 201)
    sent = {"feedback_text": "wrong", "issue_type": "factual", "message_id": event, "session_id": session}
    made = good(kagent.post("/api/feedback", sent))
    assert (made["message_id"], made["issue_type"]) == (event, "factual")
    assert good(kagent.get("/api/feedback")) == [made]
    again = good(kagent.post("/api/feedback", {**sent, "feedback_text": "right", "is_positive": True}))
    assert again["id"] == made["id"], "one feedback per user and message"
    session = kagent.run(kagent.tenant.sessions.find("s", user="ada"))
    (kept,) = kagent.run(kagent.tenant.feedback.list(session_id=session.id))
    assert (kept.id, kept.feedback_text) == (made["id"], "right")
    good(kagent.delete("/api/sessions/s"))
    assert good(kagent.get("/api/feedback")) == []
    good(kagent.post("/api/sessions/s/restore"))
    assert good(kagent.get("/api/feedback")) == [again]


def test_a_number_is_a_position_in_the_named_session(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}), 201)
    good(kagent.post("/api/sessions/s/events", {"id": "e", "data": "x"}), 201)
    sent = {"feedback_text": "good", "is_positive": True, "session_id": "s", "message_id": 1}
    assert good(kagent.post("/api/feedback", sent))["message_id"] == 1
    session = kagent.run(kagent.tenant.sessions.find("s", user="ada"))
    assert len(kagent.run(kagent.tenant.feedback.list(session_id=session.id))) == 1


@pytest.mark.parametrize(
    "about",
    [
        {"message_id": "e"},
        {"message_id": "e", "session_id": "s"},
        {"message_id": 2, "session_id": "s"},
        {"message_id": 0, "session_id": "s"},
        {"message_id": "e", "session_id": "absent"},
    ],
)
def test_feedback_on_a_message_of_another_user_is_refused(kagent: Kagent, about: dict[str, Any]) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}), 201)
    good(kagent.post("/api/sessions/s/events", {"id": "mine", "data": "x"}), 201)
    good(kagent.post("/api/sessions", {"id": "s"}, user="bob"), 201)
    good(kagent.post("/api/sessions/s/events", {"id": "e", "data": "x"}, user="bob"), 201)
    bad(kagent.post("/api/feedback", {"feedback_text": "x", **about}), 404)
    assert good(kagent.get("/api/feedback")) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"feedback_text": ""},
        {"feedback_text": "x" * 65_537},
        {"feedback_text": None},
        {"issue_type": "other"},
        {"issue_type": ""},
        {"is_positive": "yes"},
        {"message_id": 2**63},
        {"message_id": 1.5},
    ],
    ids=[
        "nothing",
        "over the limit",
        "null",
        "another issue",
        "an empty issue",
        "text for yes",
        "too large",
        "a fraction",
    ],
)
def test_invalid_feedback_is_refused(kagent: Kagent, wrong: dict[str, Any]) -> None:
    bad(kagent.post("/api/feedback", {"feedback_text": "x", **wrong}), 400)
    assert good(kagent.get("/api/feedback")) == []
