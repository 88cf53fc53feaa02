"""The acceptance checklist of a server for kagent's clients, a test for each of its rows."""

from __future__ import annotations

import base64
import json
import time
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.faces.process import ServerProcess

DEFAULT_USER = "admin@kagent.dev"


def good(response: httpx.Response, status: int = 200) -> Any:
    """The data of an answer in its envelope."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "data", "message"}
    assert body["error"] is False
    assert body["data"] is not None
    return body["data"]


def bad(response: httpx.Response, status: int) -> None:
    """An error as kagent's clients know it."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert isinstance(body["error"], str)


def checkpoint_of(thread: str, id: str, **more: Any) -> dict[str, Any]:
    """A checkpoint on the wire."""
    metadata = base64.b64encode(json.dumps({"step": 1}).encode()).decode()
    body = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id, "parent_checkpoint_id": None}
    return {**body, "checkpoint": "AAEC", "metadata": metadata, "type_": "msgpack", "version": 4, **more}


def test_01_every_route_answers_in_its_shape(http: httpx.Client, name: str) -> None:
    http.headers["X-User-Id"] = name
    empty = [
        "/api/sessions",
        f"/api/sessions/agent/ns/{name}",
        f"/api/sessions/{name}/tasks",
        "/api/feedback",
        f"/api/langgraph/checkpoints?thread_id={name}&checkpoint_ns=&limit=1",
        f"/api/crewai/memory?thread_id={name}&q=x&limit=3",
        f"/api/tasks/{name}/pushNotificationConfigs",
    ]
    for path in empty:
        assert good(http.get(path)) == [], path
    session = good(
        http.post("/api/sessions", json={"id": name, "user_id": name, "agent_ref": "ns/a", "name": "n"}), 201
    )
    assert {"id", "user_id", "agent_id", "name", "created_at", "updated_at"} <= set(session)
    changed = good(http.put(f"/api/sessions/{name}", json={"name": "other"}))
    assert (changed["name"], changed["agent_id"]) == ("other", "ns__NS__a")
    assert good(http.get("/api/sessions/agent/ns/a"))[0]["id"] == name
    assert good(http.get(f"/api/sessions/{name}"))["events"] == []
    feedback = {"is_positive": False, "feedback_text": "wrong", "issue_type": "factual", "message_id": 7}
    good(http.post("/api/feedback", json=feedback))
    assert {**good(http.get("/api/feedback"))[0], **feedback} == good(http.get("/api/feedback"))[0]
    tools = {"ref": f"ns/{name}", "groupKind": "MCPServer", "discoveredTools": [{"name": "t", "description": "d"}]}
    good(http.post("/api/toolservers", json=tools), 201)
    assert tools in good(http.get("/api/toolservers"))
    assert f"ns/{name}" in [each["server_name"] for each in good(http.get("/api/tools"))]
    good(http.delete(f"/api/toolservers/ns/{name}"))
    assert f"ns/{name}" not in [each["server_name"] for each in good(http.get("/api/tools"))]
    assert http.get("/health").status_code == 200
    assert {"kagent_version", "git_commit", "build_date"} <= set(http.get("/version").json())
    assert http.get("/api/me").json() == {"sub": name}
    assert "RemoteMCPServer" in good(http.get("/api/toolservertypes"))
    bad(http.get("/api/nothing"), 404)
    bad(http.put("/api/tasks"), 405)
    bad(http.post("/api/feedback", json={"feedback_text": "x", "issue_type": "other"}), 400)


def test_02_the_user_is_named_by_the_query_the_header_or_nobody(http: httpx.Client, name: str) -> None:
    body = {"id": name, "agent_ref": f"ns/never-seen-{name}"}
    asked = [({"user_id": f"q{name}"}, {"X-User-Id": "h"}), ({}, {"X-User-ID": f"h{name}"}), ({}, {})]
    for (query, headers), user in zip(asked, (f"q{name}", f"h{name}", DEFAULT_USER), strict=True):
        made = good(http.post("/api/sessions", params=query, headers=headers, json=body), 201)
        assert made["user_id"] == user
    assert good(http.get(f"/api/agents/ns/never-seen-{name}"))["id"] == f"ns__NS__never_seen_{name}".replace("-", "_")
    event = {"id": "e", "data": "{}"}
    good(http.post(f"/api/sessions/{name}/events", json=event), 201)


def test_03_tasks_and_events_come_back_as_they_were(http: httpx.Client, name: str) -> None:
    good(http.post("/api/sessions", json={"id": name}), 201)
    texts = ['{"a": 1,  "b":[1.0, 1e5]}', "no JSON at all \U0001f600 \x00", '{"z":0,"a":"\\ud83d\\ude00"}', ""]
    for number, text in enumerate(texts):
        good(http.post(f"/api/sessions/{name}/events", json={"id": f"e{number}", "data": text}), 201)
    events = good(http.get(f"/api/sessions/{name}", params={"order": "asc", "limit": -1}))["events"]
    assert [each["data"] for each in events] == texts
    assert {"id", "session_id", "user_id", "created_at", "updated_at", "data"} == set(events[0])
    task = {"z": None, "contextId": name, "id": name, "history": [{"b": 1, "a": None}], "metadata": {"": [1, True]}}
    good(http.post("/api/tasks", json=task), 201)
    assert json.dumps(good(http.get(f"/api/tasks/{name}"))) == json.dumps(task)


def test_04_events_come_in_the_order_in_which_they_were_appended(http: httpx.Client, name: str) -> None:
    good(http.post("/api/sessions", json={"id": name}), 201)
    place = f"/api/sessions/{name}"
    made = [good(http.post(f"{place}/events", json={"id": str(n), "data": str(n)}), 201) for n in range(6)]

    def found(**query: Any) -> list[str]:
        return [each["data"] for each in good(http.get(place, params=query))["events"]]

    assert found(order="asc", limit=-1) == found(order="asc", limit=0) == ["0", "1", "2", "3", "4", "5"]
    assert found() == ["5", "4", "3", "2", "1", "0"], "without an order, the newest first"
    assert found(limit=2) == ["5", "4"]
    assert found(order="asc", limit=2) == ["0", "1"]
    after = datetime.fromisoformat(made[3]["created_at"]).isoformat()
    assert found(order="asc", after=after)[0] not in ("0", "1", "2", "3"), "strictly after"
    bad(http.get(place, params={"after": "yesterday"}), 400)


def test_05_checkpoints_and_writes_may_come_twice_and_in_any_order(http: httpx.Client, name: str) -> None:
    writes = [
        {"idx": 0, "channel": "log", "type_": "msgpack", "value": "AAEC"},
        {"idx": -3, "channel": "__interrupt__", "type_": "null", "value": ""},
    ]
    first = {"thread_id": name, "checkpoint_ns": "", "checkpoint_id": "1f0-b", "task_id": "t", "writes": writes}
    for _ in range(2):
        good(http.post("/api/langgraph/checkpoints/writes", json=first), 201)
    assert good(http.get("/api/langgraph/checkpoints", params={"thread_id": name, "checkpoint_ns": ""})) == []
    for id in ("1f0-b", "1f0-a", "1f0-c", "1f0-b"):
        good(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, id, checkpoint_ns="")), 201)
    inner = checkpoint_of(name, "1f0-d", checkpoint_ns="node:uuid|inner:uuid", parent_checkpoint_id="1f0-c")
    good(http.post("/api/langgraph/checkpoints", json=inner), 201)
    found = good(http.get("/api/langgraph/checkpoints", params={"thread_id": name, "checkpoint_ns": "", "limit": -1}))
    assert [each["checkpoint_id"] for each in found] == ["1f0-c", "1f0-b", "1f0-a"]
    assert (found[0]["checkpoint"], found[0]["type_"], found[0]["writes"]) == ("AAEC", "msgpack", None)
    assert found[1]["writes"]["task_id"] == "t"
    assert sorted(found[1]["writes"]["writes"], key=lambda each: each["idx"]) == sorted(
        writes, key=lambda each: each["idx"]
    )
    place = {"thread_id": name, "checkpoint_ns": inner["checkpoint_ns"], "limit": 1}
    (one,) = good(http.get("/api/langgraph/checkpoints", params=place))
    assert (one["parent_checkpoint_id"], one["metadata"]) == ("1f0-c", inner["metadata"])
    bad(http.post("/api/langgraph/checkpoints", json=checkpoint_of("", "x")), 400)
    bad(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, "x", checkpoint="not base64!")), 400)


def test_06_what_is_not_there_is_not_found_and_can_be_deleted(http: httpx.Client, name: str) -> None:
    bad(http.get(f"/api/sessions/{name}"), 404)
    bad(http.get(f"/api/tasks/{name}"), 404)
    bad(http.get("/api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"}), 404)
    bad(http.post(f"/api/sessions/{name}/events", json={"id": "e", "data": "{}"}), 404)
    bad(http.post(f"/api/sessions/{name}/shares", json={}), 404)
    place = {"thread_id": name, "checkpoint_ns": "", "limit": 1, "checkpoint_id": "unknown"}
    assert good(http.get("/api/langgraph/checkpoints", params=place)) == []
    assert good(http.delete(f"/api/sessions/{name}")) == {}
    assert http.delete(f"/api/tasks/{name}").status_code == 204
    assert good(http.delete(f"/api/langgraph/checkpoints/{name}")) == {}


def test_07_links_have_exactly_their_statuses_and_grant_what_they_say(http: httpx.Client, name: str) -> None:
    owner, guest = {"X-User-Id": f"owner {name}"}, {"X-User-Id": f"guest {name}"}
    good(http.post("/api/sessions", json={"id": name, "agent_ref": "ns/a"}, headers=owner), 201)
    place = f"/api/sessions/{name}"
    reading = good(http.post(f"{place}/shares", headers=owner), 201)
    writing = good(http.post(f"{place}/shares", headers=owner, json={"read_only": False}), 201)
    assert (reading["read_only"], len(reading["token"]), type(reading["id"])) == (True, 48, int)
    assert [each["token"] for each in good(http.get(f"{place}/shares", headers=owner))] == [
        reading["token"],
        writing["token"],
    ]
    bad(http.get(f"{place}/shares", headers=guest), 404)
    event = {"id": "e", "data": "{}"}
    with_reading, with_writing = ({**guest, "X-Share-Token": each["token"]} for each in (reading, writing))
    bad(http.get(place, headers=guest), 404)
    seen = good(http.get(place, headers=with_reading))
    assert (seen["session"]["user_id"], seen["read_only"]) == (f"owner {name}", True)
    bad(http.post(f"{place}/events", json=event, headers=with_reading), 403)
    good(http.post(f"{place}/events", json=event, headers=with_writing), 201)
    bad(http.delete(place, headers=with_writing), 403)
    bad(http.post(f"{place}/shares", json={}, headers=with_writing), 403)
    bad(http.get(place, headers={**guest, "X-Share-Token": "0" * 48}), 403)
    bad(http.get("/api/sessions/another", headers=with_reading), 403)
    good(http.post("/api/tasks", json={"id": f"t{name}", "contextId": name}, headers=owner), 201)
    good(http.post("/api/tasks", json={"id": f"u{name}", "contextId": "another"}, headers=owner), 201)
    good(http.get(f"/api/tasks/t{name}", headers=with_reading))
    bad(http.get(f"/api/tasks/u{name}", headers=with_reading), 404)
    shared = good(http.get("/api/sessions/agent/ns/a", headers=guest))
    assert {each["share_token"] for each in shared} == {reading["token"], writing["token"]}
    assert http.delete(f"{place}/shares/{reading['token']}", headers=owner).status_code == 200
    bad(http.get(place, headers=with_reading), 403)


def test_08_memories_have_no_envelope_768_dimensions_and_15_days(http: httpx.Client, name: str) -> None:
    vector = [1.0] + [0.0] * 767
    memory = {"agent_name": f"ns/a-{name}", "user_id": name, "content": "tea", "vector": vector, "metadata": {"k": 1}}
    made = http.post("/api/memories/sessions", json=memory)
    assert (made.status_code, set(made.json())) == (201, {"id"})
    batch = http.post("/api/memories/sessions/batch", json={"items": [memory] * 50})
    assert (batch.status_code, batch.json()) == (201, {"count": 50})
    for items in ([], [memory] * 51, [{**memory, "vector": [1.0] * 767}], [{**memory, "user_id": ""}]):
        bad(http.post("/api/memories/sessions/batch", json={"items": items}), 400)
    wanted = {"agent_name": f"ns__NS__a_{name}".replace("-", "_"), "user_id": name, "vector": vector, "limit": 0}
    found = http.post("/api/memories/search", json={**wanted, "min_score": 0.3}).json()
    assert len(found) == 5, "of either spelling of the agent"
    assert {"id", "content", "score", "metadata", "created_at"} == set(found[0])
    assert found[0]["score"] == pytest.approx(1.0)
    away = [0.0, 1.0] + [0.0] * 766
    assert http.post("/api/memories/search", json={**wanted, "vector": away, "min_score": 0.3}).json() == []
    place = {"agent_name": wanted["agent_name"], "user_id": name}
    listed = http.get("/api/memories", params=place).json()
    assert len(listed) == 51
    lasts = datetime.fromisoformat(listed[0]["expires_at"]) - datetime.fromisoformat(listed[0]["created_at"])
    assert lasts.days == 15
    assert http.delete("/api/memories", params=place).json() == {"status": "deleted"}
    assert http.get("/api/memories", params=place).json() == []


def test_09_crews_have_all_their_memories_and_the_latest_state(base: str, http: httpx.Client, name: str) -> None:
    for number in range(3):
        data = {"task_description": f"write {number}", "score": 5 - number, "metadata": {}, "datetime": "1"}
        body = {"thread_id": name, "user_id": DEFAULT_USER, "memory_data": data}
        good(http.post(f"{base}//api/crewai/memory", json=body), 201)
    found = good(http.get(f"{base}//api/crewai/memory", params={"thread_id": name, "q": "write", "limit": 2}))
    assert [each["memory_data"]["task_description"] for each in found] == ["write 2", "write 1"]
    assert set(found[0]) == {"thread_id", "user_id", "memory_data"}
    for method in ("one", "two", "one"):
        state = {"thread_id": name, "flow_uuid": "f", "method_name": method, "state_data": {"after": method}}
        good(http.post(f"{base}//api/crewai/flows/state", json=state), 201)
    latest = good(http.get(f"{base}//api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"}))
    assert latest == {"thread_id": name, "flow_uuid": "f", "method_name": "one", "state_data": {"after": "one"}}
    bad(http.get("/api/crewai/memory", params={"thread_id": name}), 400)
    bad(http.get("/api/crewai/memory", params={"q": "x"}), 400)


def test_10_a_long_session_is_opened_well_within_the_clients_patience(server: ServerProcess, name: str) -> None:
    good(server.http.post("/api/sessions", json={"id": name}), 201)
    data = json.dumps({"content": {"parts": [{"text": "word " * 200}]}})
    for number in range(300):
        body = {"id": str(number), "data": data}
        assert server.http.post(f"/api/sessions/{name}/events", json=body).status_code == 201
    took = []
    for _ in range(5):
        began = time.monotonic()
        assert len(good(server.http.get(f"/api/sessions/{name}", params={"limit": -1}))["events"]) == 300
        took.append(time.monotonic() - began)
    assert min(took) < 1.0, took


def test_11_a_callers_token_is_a_secret(http: httpx.Client, name: str) -> None:
    good(http.post("/api/sessions", json={"id": name}), 201)
    headers = {"Authorization": "Bearer very-secret", "cookie": "very-secret", "x-other": "plain"}
    for key in ("state_delta", "stateDelta"):
        event = {"id": "1", "actions": {key: {"headers": headers, "n": 1}}, "text": "\U0001f600"}
        body = {"id": key, "data": json.dumps(event)}
        good(http.post(f"/api/sessions/{name}/events", json=body), 201)
    found = good(http.get(f"/api/sessions/{name}", params={"order": "asc"}))["events"]
    assert "very-secret" not in json.dumps(found)
    read = json.loads(found[0]["data"])
    assert (read["actions"]["state_delta"]["headers"]["x-other"], read["text"]) == ("plain", "\U0001f600")
