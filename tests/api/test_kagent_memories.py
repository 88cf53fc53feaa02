"""What agents remember, which agents and tools there are, and what people think, as kagent's clients ask for it."""

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
    """A memory on the wire."""
    return {"agent_name": "ns/a", "user_id": "ada", "content": content, "vector": vector, **more}


def bare(reply: Reply, status: int = 200) -> Any:
    """An answer without an envelope."""
    assert reply.status == status, reply.body
    return json.loads(reply.body)


def add(kagent: Kagent, *memories: dict[str, Any]) -> None:
    """Remember these."""
    made = bare(kagent.post(f"{PLACE}/sessions/batch", {"items": list(memories)}), 201)
    assert made == {"count": len(memories)}


def found(kagent: Kagent, vector: list[float] = EAST, **more: Any) -> list[str]:
    """What is like a vector."""
    reply = kagent.post(f"{PLACE}/search", {"agent_name": "ns/a", "user_id": "ada", "vector": vector, **more})
    return [each["content"] for each in bare(reply)]


def listed(kagent: Kagent, query: str = "agent_name=ns/a", **more: Any) -> list[Any]:
    """What an agent remembers."""
    shown: list[Any] = bare(kagent.get(f"{PLACE}?{query}", **more))
    return shown


def test_a_memory_is_found_with_all_it_was_given(kagent: Kagent) -> None:
    id = bare(kagent.post(f"{PLACE}/sessions", memory("tea ü\x00", metadata={"z": 1, "a": [None]})), 201)["id"]
    body = {"agent_name": "ns/a", "user_id": "ada", "vector": EAST}
    (one,) = bare(kagent.post(f"{PLACE}/search", body))
    assert set(one) == {"id", "content", "score", "metadata", "created_at"}
    assert (one["id"], one["content"], one["score"]) == (id, "tea ü\x00", pytest.approx(1.0))
    assert list(one["metadata"].items()) == [("z", 1), ("a", [None])]
    (shown,) = listed(kagent)
    assert set(shown) == {"id", "content", "access_count", "created_at", "expires_at"}
    assert (shown["id"], shown["access_count"]) == (id, 1), "it was found once"


def test_a_memory_without_content_or_metadata_is_one(kagent: Kagent) -> None:
    body = memory()
    del body["content"]
    bare(kagent.post(f"{PLACE}/sessions", body), 201)
    (one,) = bare(kagent.post(f"{PLACE}/search", body))
    assert (one["content"], one["metadata"]) == ("", {})


def test_what_is_most_alike_comes_first(kagent: Kagent) -> None:
    add(kagent, memory("north", NORTH), memory("between", BETWEEN), memory("east", EAST))
    away = [-1.0] + [0.0] * 767
    assert found(kagent, EAST) == ["east", "between", "north"]
    assert found(kagent, EAST, min_score=0.5) == ["east", "between"]
    assert found(kagent, EAST, min_score=0.99) == ["east"]
    assert found(kagent, away, min_score=-1) == ["north", "between", "east"], "what points elsewhere is less alike"
    assert found(kagent, [0.0] * 768) == ["north", "between", "east"], "nothing is as like as anything"


def test_as_many_are_found_as_asked_for_and_five_if_nobody_says(kagent: Kagent) -> None:
    add(kagent, *(memory(str(number)) for number in range(7)))
    assert len(found(kagent)) == len(found(kagent, limit=0)) == len(found(kagent, limit=-1)) == 5
    for limit, number in ((1, 1), (6, 6), (7, 7), (8, 7), (2**31, 7)):
        assert len(found(kagent, limit=limit)) == number


def test_memories_of_agents_users_and_tenants_are_apart(kagent: Kagent) -> None:
    add(kagent, memory("mine"), memory("other agent's", agent_name="ns/b"), memory("bob's", user_id="bob"))
    assert found(kagent) == ["mine"]
    assert found(kagent, agent_name="ns/b") == ["other agent's"]
    assert found(kagent, user_id="bob") == ["bob's"]
    assert found(kagent.another()) == []
    assert [each["content"] for each in listed(kagent, user="bob")] == ["bob's"]
    assert [each["content"] for each in listed(kagent, "agent_name=ns/a&user_id=bob")] == ["bob's"]


def test_an_agent_is_the_same_however_it_is_written(kagent: Kagent) -> None:
    add(kagent, memory(agent_name="ns/my-agent"))
    for name in ("ns/my-agent", "ns/my_agent", "ns__NS__my_agent"):
        assert found(kagent, agent_name=name) == ["tea"]
        assert len(listed(kagent, f"agent_name={name}")) == 1


def test_what_is_found_often_is_listed_first(kagent: Kagent) -> None:
    add(kagent, memory("east", EAST), memory("north", NORTH))
    for _ in range(2):
        found(kagent, NORTH, limit=1)
    found(kagent, EAST, limit=1)
    assert [(each["content"], each["access_count"]) for each in listed(kagent)] == [("north", 2), ("east", 1)]


@pytest.mark.parametrize(("ttl", "days"), [(None, 15), (0, 15), (-3, 15), (1, 1), (36_500, 36_500)])
def test_a_memory_stays_as_long_as_it_is_told_to(kagent: Kagent, ttl: int | None, days: int) -> None:
    add(kagent, memory(ttl_days=ttl))
    (one,) = listed(kagent)
    lasts = datetime.fromisoformat(one["expires_at"]) - datetime.fromisoformat(one["created_at"])
    assert lasts == timedelta(days=days)


NO_MEMORIES = [
    pytest.param({"agent_name": ""}, id="no agent"),
    pytest.param({"user_id": ""}, id="no user"),
    pytest.param({"user_id": None}, id="null for a user"),
    pytest.param({"user_id": "x" * 256}, id="a user over the limit"),
    pytest.param({"vector": []}, id="no vector"),
    pytest.param({"vector": [1.0] * 767}, id="a dimension too few"),
    pytest.param({"vector": [1.0] * 769}, id="a dimension too many"),
    pytest.param({"vector": ["1"] * 768}, id="a vector of text"),
    pytest.param({"vector": [1e39] * 768}, id="numbers over 32 bits"),
    pytest.param({"ttl_days": 36_501}, id="too many days"),
    pytest.param({"ttl_days": 1.5}, id="half a day"),
    pytest.param({"metadata": []}, id="metadata that is a list"),
    pytest.param({"metadata": {"x": "x" * 262_144}}, id="metadata over the limit"),
    pytest.param({"content": None}, id="null for content"),
]


@pytest.mark.parametrize("wrong", NO_MEMORIES)
def test_what_is_no_memory_is_refused_alone_and_with_its_batch(kagent: Kagent, wrong: dict[str, Any]) -> None:
    bad(kagent.post(f"{PLACE}/sessions", memory() | wrong), 400)
    bad(kagent.post(f"{PLACE}/sessions/batch", {"items": [memory(), memory() | wrong]}), 400)
    if not {"user_id", "agent_name"} & set(wrong):
        assert listed(kagent) == [], "all of them or none"


def test_a_batch_has_at_least_one_and_at_most_fifty(kagent: Kagent) -> None:
    for items in ([], [memory()] * 51, None):
        bad(kagent.post(f"{PLACE}/sessions/batch", {"items": items}), 400)
    add(kagent, *[memory()] * 50)
    assert len(listed(kagent)) == 50


@pytest.mark.parametrize("wrong", [{"limit": "5"}, {"min_score": None}, {"vector": [1.0]}, {"agent_name": ""}])
def test_what_is_no_search_is_refused(kagent: Kagent, wrong: dict[str, Any]) -> None:
    body = {"agent_name": "ns/a", "user_id": "ada", "vector": EAST}
    bad(kagent.post(f"{PLACE}/search", body | wrong), 400)


def test_what_an_agent_remembers_about_one_user_is_forgotten(kagent: Kagent) -> None:
    add(kagent, memory("mine"), memory("bob's", user_id="bob"), memory("other", agent_name="ns/b"))
    for _ in range(2):
        assert bare(kagent.delete(f"{PLACE}?agent_name=ns/a")) == {"status": "deleted"}
    assert found(kagent) == listed(kagent) == []
    assert (found(kagent, user_id="bob"), found(kagent, agent_name="ns/b")) == (["bob's"], ["other"])


def test_memories_are_listed_and_forgotten_of_an_agent_that_is_named(kagent: Kagent) -> None:
    for query in ("", "?agent_name=", "?user_id=ada"):
        assert bad(kagent.get(PLACE + query), 400) == "the parameter agent_name is missing"
        bad(kagent.delete(PLACE + query), 400)


def test_an_agent_is_registered_once_however_it_is_written(kagent: Kagent) -> None:
    made = good(kagent.post("/api/agents", {"agent_ref": "ns/my-agent"}), 201)
    assert set(made) == {"id", "name", "type", "config", "workload_type", "created_at", "updated_at"}
    assert (made["id"], made["name"], made["type"]) == ("ns__NS__my_agent", "ns/my-agent", "kagent")
    assert good(kagent.post("/api/agents", {"agent_ref": "ns/my_agent"}), 201) == made
    assert good(kagent.get("/api/agents")) == [made]
    assert good(kagent.get("/api/agents/ns/my-agent")) == made


def test_an_agent_keeps_its_type_and_config_and_posting_it_again_updates_it(kagent: Kagent) -> None:
    config = {"model": "m", "tools": [{"name": "t"}], "temperature": 0.5}
    first = {"agent_ref": "ns/a", "type": "Declarative", "config": config}
    made = good(kagent.post("/api/agents", first), 201)
    assert (made["type"], made["config"], made["workload_type"]) == ("Declarative", config, "deployment")
    changed = good(kagent.put("/api/agents", {"agent_ref": "ns/a", "type": "BYO", "workload_type": "sandbox"}), 201)
    assert (changed["type"], changed["config"], changed["workload_type"]) == ("BYO", config, "sandbox")
    assert good(kagent.post("/api/agents", {"agent_ref": "ns/a", "config": {}}), 201)["config"] == {}
    kagent.run(kagent.tenant.agents.update(made["id"], change=AgentChange(description="kept", model="m")))
    good(kagent.post("/api/agents", first), 201)
    there = kagent.run(kagent.tenant.agents.get(made["id"]))
    assert (there.description, there.model, there.metadata["config"]) == ("kept", "m", config)


def test_an_agent_that_is_registered_by_many_at_once_is_whole(kagent: Kagent) -> None:
    async def register_all() -> list[int]:
        bodies = [{"agent_ref": "ns/a", "type": f"t{number}", "config": {"n": number}} for number in range(8)]
        replies = await asyncio.gather(*(kagent.ask("POST", "/api/agents", body) for body in bodies))
        return [reply.status for reply in replies]

    assert kagent.run(register_all()) == [201] * 8
    (found,) = good(kagent.get("/api/agents"))
    assert found["type"] == f"t{found['config']['n']}"


def test_who_starts_a_session_or_is_given_one_is_registered(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s", "agent_ref": "ns/a"}), 201)
    good(kagent.put("/api/sessions/s", {"agent_ref": "ns/b"}))
    assert sorted(each["name"] for each in good(kagent.get("/api/agents"))) == ["ns/a", "ns/b"]


def test_an_agent_is_removed_its_sessions_stay_and_it_can_come_back(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s", "agent_ref": "ns/a"}), 201)
    assert good(kagent.delete("/api/agents/ns/a")) == {}
    for reply in (kagent.get("/api/agents/ns/a"), kagent.delete("/api/agents/ns/a")):
        bad(reply, 404)
    assert good(kagent.get("/api/agents")) == []
    assert [each["id"] for each in good(kagent.get("/api/sessions/agent/ns/a"))] == ["s"]
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
def test_what_is_no_agent_is_refused(kagent: Kagent, body: Any) -> None:
    bad(kagent.post("/api/agents", body), 400)
    assert good(kagent.get("/api/agents")) == []


def server(ref: str = "ns/x", *tools: str, **more: Any) -> dict[str, Any]:
    """A tool server on the wire."""
    return {"ref": ref, "discoveredTools": [{"name": each, "description": f"does {each}"} for each in tools], **more}


def tools(kagent: Kagent) -> list[tuple[str, str]]:
    """The tools of all servers."""
    return [(each["server_name"], each["id"]) for each in good(kagent.get("/api/tools"))]


def test_a_tool_server_is_shown_with_its_tools(kagent: Kagent) -> None:
    made = good(kagent.post("/api/toolservers", server("ns/x", "b", "a")), 201)
    assert made == {**server("ns/x", "b", "a"), "groupKind": "RemoteMCPServer"}
    assert good(kagent.get("/api/toolservers")) == [{**server("ns/x", "a", "b"), "groupKind": "RemoteMCPServer"}]
    first = good(kagent.get("/api/tools"))[0]
    assert set(first) == {"id", "server_name", "group_kind", "description", "created_at", "updated_at"}
    assert (first["id"], first["description"]) == ("a", "does a")


def test_a_tool_server_has_the_tools_it_was_seen_with_last(kagent: Kagent) -> None:
    for names in (("a", "b"), ("b", "c"), (), ("d",)):
        good(kagent.post("/api/toolservers", server("ns/x", *names)), 201)
        assert tools(kagent) == [("ns/x", each) for each in names]


def test_servers_of_two_kinds_with_one_name_are_two_and_are_deleted_together(kagent: Kagent) -> None:
    for kind in good(kagent.get("/api/toolservertypes")):
        good(kagent.post("/api/toolservers", server("ns/x", kind, groupKind=kind)), 201)
    good(kagent.post("/api/toolservers", server("ns/y", "z")), 201)
    assert [each["groupKind"] for each in good(kagent.get("/api/toolservers"))][:2] == ["MCPServer", "RemoteMCPServer"]
    assert tools(kagent) == [("ns/x", "MCPServer"), ("ns/x", "RemoteMCPServer"), ("ns/y", "z")]
    assert good(kagent.delete("/api/toolservers/ns/x")) == {}
    assert tools(kagent) == [("ns/y", "z")]
    assert bad(kagent.delete("/api/toolservers/ns/x"), 404) == "ToolServer not found"
    good(kagent.post("/api/toolservers", server("ns/x", "new")), 201)
    assert tools(kagent) == [("ns/x", "new"), ("ns/y", "z")]


NO_SERVERS = [
    pytest.param({"ref": ""}, id="no name"),
    pytest.param({"ref": "x" * 501}, id="a name over the limit"),
    pytest.param({"groupKind": "Other"}, id="another kind"),
    pytest.param({"discoveredTools": [{"name": ""}]}, id="a tool without a name"),
    pytest.param({"discoveredTools": ["a"]}, id="a tool that is text"),
    pytest.param({"discoveredTools": [{"name": str(number)} for number in range(1_001)]}, id="too many tools"),
    pytest.param({"description": "x" * 65_537}, id="a description over the limit"),
]


@pytest.mark.parametrize("wrong", NO_SERVERS)
def test_what_is_no_tool_server_is_refused_and_the_one_before_stays(kagent: Kagent, wrong: dict[str, Any]) -> None:
    good(kagent.post("/api/toolservers", server("ns/x", "a")), 201)
    bad(kagent.post("/api/toolservers", server("ns/x", "b") | wrong), 400)
    assert tools(kagent) == [("ns/x", "a")]
    assert len(good(kagent.get("/api/toolservers"))) == 1


@pytest.mark.parametrize("issue", [None, "instructions", "factual", "incomplete", "tool"])
@pytest.mark.parametrize("number", [None, 0, -(2**63), 2**63 - 1])
def test_feedback_comes_back_as_it_was_given(kagent: Kagent, issue: str | None, number: int | None) -> None:
    sent = {"feedback_text": "ü \x00", "is_positive": issue is None, "issue_type": issue, "message_id": number}
    made = good(kagent.post("/api/feedback", sent))
    assert {name: made[name] for name in sent} == sent
    assert (made["user_id"], made["updated_at"]) == ("ada", made["created_at"])
    assert good(kagent.get("/api/feedback")) == [made]


def test_feedback_is_listed_the_oldest_first_over_all_pages(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.kagent.feedback.PAGE", 2)
    for number in range(5):
        good(kagent.post("/api/feedback", {"feedback_text": str(number)}))
        assert len(good(kagent.get("/api/feedback"))) == number + 1
    assert [each["feedback_text"] for each in good(kagent.get("/api/feedback"))] == ["0", "1", "2", "3", "4"]
    assert good(kagent.get("/api/feedback", user="bob")) == []


@pytest.mark.parametrize("session", ["s", None])
@pytest.mark.parametrize("event", ["e-1", "0190a5d0-0000-7000-8000-000000000001"])
def test_feedback_on_an_event_is_kept_with_its_message(kagent: Kagent, session: str | None, event: str) -> None:
    for id in ("t", "s", "u"):
        good(kagent.post("/api/sessions", {"id": id}), 201)
        good(kagent.post(f"/api/sessions/{id}/events", {"id": event if id == "s" else "other", "data": "x"}), 201)
    sent = {"feedback_text": "wrong", "issue_type": "factual", "message_id": event, "session_id": session}
    made = good(kagent.post("/api/feedback", sent))
    assert (made["message_id"], made["issue_type"]) == (event, "factual")
    assert good(kagent.get("/api/feedback")) == [made]
    again = good(kagent.post("/api/feedback", {**sent, "feedback_text": "right", "is_positive": True}))
    assert again["id"] == made["id"], "a user has one opinion of a message"
    found = kagent.run(kagent.tenant.sessions.find("s", user="ada"))
    (kept,) = kagent.run(kagent.tenant.feedback.list(session_id=found.id))
    assert (kept.id, kept.feedback_text) == (made["id"], "right")
    good(kagent.delete("/api/sessions/s"))
    assert good(kagent.get("/api/feedback")) == []
    good(kagent.post("/api/sessions/s/restore"))
    assert good(kagent.get("/api/feedback")) == [again]


def test_a_number_is_a_place_in_the_session_that_is_named(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}), 201)
    good(kagent.post("/api/sessions/s/events", {"id": "e", "data": "x"}), 201)
    sent = {"feedback_text": "good", "is_positive": True, "session_id": "s", "message_id": 1}
    assert good(kagent.post("/api/feedback", sent))["message_id"] == 1
    found = kagent.run(kagent.tenant.sessions.find("s", user="ada"))
    assert len(kagent.run(kagent.tenant.feedback.list(session_id=found.id))) == 1


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
def test_feedback_on_a_message_that_the_user_does_not_have_is_refused(kagent: Kagent, about: dict[str, Any]) -> None:
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
def test_what_is_no_feedback_is_refused(kagent: Kagent, wrong: dict[str, Any]) -> None:
    bad(kagent.post("/api/feedback", {"feedback_text": "x", **wrong}), 400)
    assert good(kagent.get("/api/feedback")) == []
