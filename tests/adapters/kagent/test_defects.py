"""Defects of kagent's own server, each with a test that this server does not have it; and deletion, which kagent lacks."""

from __future__ import annotations

import httpx

from tests.adapters.kagent.wire import bad, calls, checkpoint_of, crew_memory_of, good, kept, state_of, writes_of


def test_defect_01_a_flow_state_names_its_flow(http: httpx.Client, name: str) -> None:
    good(http.post("/api/crewai/flows/state", json=state_of(name, "m", 1)), 201)
    body = good(http.get("/api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"}))
    assert body["flow_uuid"] == "f"


def test_defect_02_an_empty_list_is_present(http: httpx.Client, name: str) -> None:
    assert good(http.get("/api/crewai/memory", params={"thread_id": name, "q": "x"})) == []
    assert good(http.get("/api/sessions", params={"user_id": name})) == []


def test_defect_03_a_memory_does_not_replace_the_previous_one(http: httpx.Client, name: str) -> None:
    for described in ("write a", "write b"):
        good(http.post("/api/crewai/memory", json=crew_memory_of(name, described)), 201)
    assert len(good(http.get("/api/crewai/memory", params={"thread_id": name, "q": "write"}))) == 2


def test_defect_04_the_last_state_is_returned_and_flows_are_separate(http: httpx.Client, name: str) -> None:
    for method, n in (("one", 1), ("two", 2), ("one", 3)):
        good(http.post("/api/crewai/flows/state", json=state_of(name, method, n)), 201)
    good(http.post("/api/crewai/flows/state", json=state_of(name, "one", 9, "other")), 201)
    body = good(http.get("/api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"}))
    assert body["state_data"] == {"n": 3}


def test_defect_05_writes_of_the_right_task_are_returned(http: httpx.Client, name: str) -> None:
    for body in (
        writes_of(name, "1", "a", (0, "x", "null", "")),
        writes_of(name, "1", "b", (0, "y", "null", ""), (1, "z", "null", "")),
        writes_of(name, "1", "c", (0, "y", "null", "")),
    ):
        good(http.post("/api/langgraph/checkpoints/writes", json=body), 201)
    good(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, "1")), 201)
    (one_body,) = good(http.get("/api/langgraph/checkpoints", params={"thread_id": name, "limit": 1}))
    assert (one_body["writes"]["task_id"], [write["channel"] for write in one_body["writes"]["writes"]]) == (
        "b",
        ["y", "z"],
    )
    resumed = writes_of(name, "1", "a", (-4, "__resume__", "null", ""))
    good(http.post("/api/langgraph/checkpoints/writes", json=resumed), 201)
    (one_body,) = good(http.get("/api/langgraph/checkpoints", params={"thread_id": name, "limit": 1}))
    assert (one_body["writes"]["task_id"], {write["channel"] for write in one_body["writes"]["writes"]}) == (
        "a",
        {"x", "__resume__"},
    )


def test_defect_06_an_unknown_checkpoint_is_an_empty_list(http: httpx.Client, name: str) -> None:
    good(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, "1")), 201)
    place = {"thread_id": name, "checkpoint_ns": "", "checkpoint_id": "2", "limit": 1}
    assert good(http.get("/api/langgraph/checkpoints", params=place)) == []


def test_defect_07_the_id_of_a_deleted_session_can_be_used_again(http: httpx.Client, name: str) -> None:
    for number in range(3):
        good(http.post("/api/sessions", json={"id": name}), 201)
        assert good(http.get(f"/api/sessions/{name}"))["events"] == [], "without the previous content"
        good(http.post(f"/api/sessions/{name}/events", json={"id": "e", "data": str(number)}), 201)
        good(http.delete(f"/api/sessions/{name}"))
        bad(http.get(f"/api/sessions/{name}"), 404)


def test_defect_08_a_deleted_session_is_deleted_and_restored_with_its_content(http: httpx.Client, name: str) -> None:
    for call in calls(name):
        call.of(http)
    assert kept(http, name) == [1] * 7
    good(http.delete(f"/api/sessions/{name}"))
    assert kept(http, name) == [0] * 7
    good(http.post(f"/api/sessions/{name}/restore"))
    assert kept(http, name) == [1] * 7
    good(http.delete(f"/api/sessions/{name}"))
    for call in calls(name):
        call.of(http)
    assert kept(http, name) == [1] * 7, "only the new content"
    bad(http.post(f"/api/sessions/{name}/restore"), 409)
    bad(http.post(f"/api/sessions/never{name}/restore"), 404)


def test_defect_09_a_search_text_is_taken_literally(http: httpx.Client, name: str) -> None:
    for described in ("100% sure", "100 cents", "a_b", "axb", "Back\\slash"):
        good(http.post("/api/crewai/memory", json=crew_memory_of(name, described)), 201)

    def found(wanted: str) -> list[str]:
        data = good(http.get("/api/crewai/memory", params={"thread_id": name, "q": wanted}))
        return [item["memory_data"]["task_description"] for item in data]

    assert (found("%"), found("a_b"), found("\\"), found("SURE")) == (
        ["100% sure"],
        ["a_b"],
        ["Back\\slash"],
        ["100% sure"],
    )


def test_defect_10_push_notifications_are_stored_and_deleted_with_their_task(http: httpx.Client, name: str) -> None:
    place = f"/api/tasks/{name}/pushNotificationConfigs"
    good(http.post("/api/tasks", json={"id": name, "contextId": "c"}), 201)
    good(http.post(place, json={"url": "u"}), 201)
    assert http.delete(f"/api/tasks/{name}").status_code == 204
    assert good(http.get(place)) == []
    good(http.post(f"/api/tasks/{name}/restore"))
    assert [item["url"] for item in good(http.get(place))] == ["u"]
    bad(http.get("/api/runs"), 404)


def test_repeating_an_event_is_idempotent(http: httpx.Client, name: str) -> None:
    good(http.post("/api/sessions", json={"id": name}), 201)
    place = f"/api/sessions/{name}/events"
    first = good(http.post(place, json={"id": "e", "data": "{}"}), 201)
    assert good(http.post(place, json={"id": "e", "data": "{}"}), 201) == first
    bad(http.post(place, json={"id": "e", "data": "other"}), 409)
    assert len(good(http.get(f"/api/sessions/{name}"))["events"]) == 1


def test_a_saved_task_updates_the_last_use_of_its_session(http: httpx.Client, name: str) -> None:
    before = good(http.post("/api/sessions", json={"id": name}), 201)
    good(http.post("/api/tasks", json={"id": name, "contextId": name}), 201)
    after = good(http.get(f"/api/sessions/{name}"))["session"]
    assert after["updated_at"] > before["updated_at"]


def test_other_addresses_without_a_key_are_refused(http: httpx.Client, name: str) -> None:
    refused = http.get("/api/sessions", headers={"X-API-Key": "hf_" + "0" * 48})
    assert refused.status_code == 401
    assert isinstance(refused.json()["error"], str)
