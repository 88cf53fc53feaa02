"""Where kagent's own server breaks or loses data, each as a test that here it does not; and deleting, which is ours."""

from __future__ import annotations

from typing import Any

import httpx

from holdfast import TaskWrites, Write
from holdfast.api.kagent.checkpoints import NO_TASK, chosen
from tests.adapters.kagent.test_checklist import bad, checkpoint_of, good


def state_of(thread: str, method: str, n: int, flow: str = "f") -> dict[str, Any]:
    """The state of a flow on the wire."""
    return {"thread_id": thread, "flow_uuid": flow, "method_name": method, "state_data": {"n": n}}


def memory_of(thread: str, described: str) -> dict[str, Any]:
    """A memory of a crew on the wire."""
    data = {"task_description": described, "score": 1.0, "metadata": {}, "datetime": "1"}
    return {"thread_id": thread, "user_id": "u", "memory_data": data}


def test_01_a_flow_state_says_whose_it_is(http: httpx.Client, name: str) -> None:
    good(http.post("/api/crewai/flows/state", json=state_of(name, "m", 1)), 201)
    found = good(http.get("/api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"}))
    assert found["flow_uuid"] == "f"


def test_02_an_empty_list_is_there(http: httpx.Client, name: str) -> None:
    assert good(http.get("/api/crewai/memory", params={"thread_id": name, "q": "x"})) == []
    assert good(http.get("/api/sessions", params={"user_id": name})) == []


def test_03_a_memory_does_not_replace_the_one_before(http: httpx.Client, name: str) -> None:
    for described in ("write a", "write b"):
        good(http.post("/api/crewai/memory", json=memory_of(name, described)), 201)
    assert len(good(http.get("/api/crewai/memory", params={"thread_id": name, "q": "write"}))) == 2


def test_04_the_state_saved_last_is_given_and_flows_are_apart(http: httpx.Client, name: str) -> None:
    for method, n in (("one", 1), ("two", 2), ("one", 3)):
        good(http.post("/api/crewai/flows/state", json=state_of(name, method, n)), 201)
    good(http.post("/api/crewai/flows/state", json=state_of(name, "one", 9, "other")), 201)
    found = good(http.get("/api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"}))
    assert found["state_data"] == {"n": 3}


def task(id: str, *writes: tuple[int, str]) -> TaskWrites:
    """What a task wrote."""
    return TaskWrites(id, "", [Write(index, channel) for index, channel in writes])


def test_05_writes_are_given_of_one_task_the_right_one(http: httpx.Client, name: str) -> None:
    for task_id, channels in (("a", ["x"]), ("b", ["y", "z"])):
        writes = [{"idx": n, "channel": each, "type_": "null", "value": ""} for n, each in enumerate(channels)]
        body = {"thread_id": name, "checkpoint_ns": "", "checkpoint_id": "1", "task_id": task_id, "writes": writes}
        good(http.post("/api/langgraph/checkpoints/writes", json=body), 201)
    good(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, "1")), 201)
    (found,) = good(http.get("/api/langgraph/checkpoints", params={"thread_id": name, "limit": 1}))
    assert (found["writes"]["task_id"], [each["channel"] for each in found["writes"]["writes"]]) == ("b", ["y", "z"])
    many, asked = task("a", (0, "x"), (1, "y")), task("b", (-3, "__interrupt__"))
    resumed, nobody = task("c", (-4, "__resume__")), task(NO_TASK, (-4, "__resume__"), (0, "x"), (1, "y"), (2, "z"))
    assert chosen([nobody, asked, many, resumed]) is resumed
    assert chosen([nobody, asked, many]) is many
    assert chosen([nobody, asked, task("d", (-1, "__error__"))]) is asked
    assert chosen([nobody]) is nobody
    assert chosen([]) is None


def test_06_an_unknown_checkpoint_is_nothing(http: httpx.Client, name: str) -> None:
    good(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, "1")), 201)
    place = {"thread_id": name, "checkpoint_ns": "", "checkpoint_id": "2", "limit": 1}
    assert good(http.get("/api/langgraph/checkpoints", params=place)) == []


def test_07_the_id_of_a_deleted_session_can_be_used_again(http: httpx.Client, name: str) -> None:
    for number in range(3):
        good(http.post("/api/sessions", json={"id": name}), 201)
        assert good(http.get(f"/api/sessions/{name}"))["events"] == [], "nothing of the one before"
        good(http.post(f"/api/sessions/{name}/events", json={"id": "e", "data": str(number)}), 201)
        good(http.delete(f"/api/sessions/{name}"))
        bad(http.get(f"/api/sessions/{name}"), 404)


def fill(http: httpx.Client, name: str) -> None:
    """A session with something of every kind below it."""
    good(http.post("/api/sessions", json={"id": name}), 201)
    good(http.post(f"/api/sessions/{name}/events", json={"id": "e", "data": "{}"}), 201)
    good(http.post(f"/api/sessions/{name}/shares", json={}), 201)
    good(http.post("/api/tasks", json={"id": name, "contextId": name}), 201)
    good(http.post(f"/api/tasks/{name}/pushNotificationConfigs", json={"url": "u"}), 201)
    good(http.post("/api/langgraph/checkpoints", json=checkpoint_of(name, "1")), 201)
    good(http.post("/api/crewai/memory", json=memory_of(name, "write")), 201)
    good(http.post("/api/crewai/flows/state", json=state_of(name, "m", 1)), 201)


def kept(http: httpx.Client, name: str) -> list[int]:
    """How much of each kind there is."""
    session = http.get(f"/api/sessions/{name}")
    shares = http.get(f"/api/sessions/{name}/shares")
    state = http.get("/api/crewai/flows/state", params={"thread_id": name, "flow_uuid": "f"})
    return [
        len(good(session)["events"]) if session.status_code == 200 else 0,
        len(good(shares)) if shares.status_code == 200 else 0,
        int(http.get(f"/api/tasks/{name}").status_code == 200),
        len(good(http.get(f"/api/tasks/{name}/pushNotificationConfigs"))),
        len(good(http.get("/api/langgraph/checkpoints", params={"thread_id": name}))),
        len(good(http.get("/api/crewai/memory", params={"thread_id": name, "q": "write"}))),
        int(state.status_code == 200),
    ]


def test_08_a_deleted_session_takes_everything_below_it_along_and_brings_it_back(http: httpx.Client, name: str) -> None:
    fill(http, name)
    assert kept(http, name) == [1] * 7
    good(http.delete(f"/api/sessions/{name}"))
    assert kept(http, name) == [0] * 7
    good(http.post(f"/api/sessions/{name}/restore"))
    assert kept(http, name) == [1] * 7
    good(http.delete(f"/api/sessions/{name}"))
    fill(http, name)
    assert kept(http, name) == [1] * 7, "only what is new"
    bad(http.post(f"/api/sessions/{name}/restore"), 409)
    bad(http.post(f"/api/sessions/never{name}/restore"), 404)


def test_09_a_text_that_is_searched_for_is_taken_literally(http: httpx.Client, name: str) -> None:
    for described in ("100% sure", "100 cents", "a_b", "axb", "Back\\slash"):
        good(http.post("/api/crewai/memory", json=memory_of(name, described)), 201)

    def found(wanted: str) -> list[str]:
        data = good(http.get("/api/crewai/memory", params={"thread_id": name, "q": wanted}))
        return [each["memory_data"]["task_description"] for each in data]

    assert (found("%"), found("a_b"), found("\\"), found("SURE")) == (
        ["100% sure"],
        ["a_b"],
        ["Back\\slash"],
        ["100% sure"],
    )


def test_10_push_notifications_are_kept_and_go_with_their_task(http: httpx.Client, name: str) -> None:
    place = f"/api/tasks/{name}/pushNotificationConfigs"
    good(http.post("/api/tasks", json={"id": name, "contextId": "c"}), 201)
    good(http.post(place, json={"url": "u"}), 201)
    assert http.delete(f"/api/tasks/{name}").status_code == 204
    assert good(http.get(place)) == []
    good(http.post(f"/api/tasks/{name}/restore"))
    assert [each["url"] for each in good(http.get(place))] == ["u"]


def test_the_same_event_again_is_the_same_event(http: httpx.Client, name: str) -> None:
    good(http.post("/api/sessions", json={"id": name}), 201)
    place = f"/api/sessions/{name}/events"
    first = good(http.post(place, json={"id": "e", "data": "{}"}), 201)
    assert good(http.post(place, json={"id": "e", "data": "{}"}), 201) == first
    bad(http.post(place, json={"id": "e", "data": "other"}), 409)
    assert len(good(http.get(f"/api/sessions/{name}"))["events"]) == 1


def test_a_saved_task_keeps_its_session_in_use(http: httpx.Client, name: str) -> None:
    before = good(http.post("/api/sessions", json={"id": name}), 201)
    good(http.post("/api/tasks", json={"id": name, "contextId": name}), 201)
    after = good(http.get(f"/api/sessions/{name}"))["session"]
    assert after["updated_at"] > before["updated_at"]


def test_who_comes_with_no_key_from_elsewhere_is_refused(http: httpx.Client, name: str) -> None:
    refused = http.get("/api/sessions", headers={"X-API-Key": "hf_" + "0" * 48})
    assert refused.status_code == 401
    assert isinstance(refused.json()["error"], str)
