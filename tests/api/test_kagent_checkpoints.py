"""Framework state over kagent's API: LangGraph checkpoints and writes, memories and flows of crews."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import NewCrewMemory, thread_of
from holdfast.api.kagent.checkpoints import NO_TASK
from holdfast.clock import from_us
from tests.api.kagent import Kagent, bad, good

PLACE = "/api/langgraph/checkpoints"
MEMORY = "/api/crewai/memory"
STATE = "/api/crewai/flows/state"


def encode(body: bytes) -> str:
    """Return bytes as base64."""
    return b64encode(body).decode()


def checkpoint(id: str, *, thread: str = "h", **more: Any) -> dict[str, Any]:
    """Return the body of a checkpoint."""
    body = {"thread_id": thread, "checkpoint_id": id, "checkpoint": encode(id.encode()), "type_": "msgpack"}
    return {**body, "metadata": encode(b'{"step": 1}'), **more}


def put(kagent: Kagent, id: str, **more: Any) -> None:
    """Store a checkpoint."""
    assert good(kagent.post(PLACE, checkpoint(id, **more)), 201) == {}


def writes(task: str, *those: tuple[int, str, bytes], id: str = "1", **more: Any) -> dict[str, Any]:
    """Return the body of a task's writes."""
    results = [{"idx": idx, "channel": channel, "type_": "x", "value": encode(value)} for idx, channel, value in those]
    return {"thread_id": "h", "checkpoint_id": id, "task_id": task, "writes": results, **more}


def list_checkpoints(kagent: Kagent, query: str = "", **more: Any) -> list[Any]:
    """List the checkpoints of the thread ``h``."""
    listed: list[Any] = good(kagent.get(f"{PLACE}?thread_id=h{query}", **more))
    return listed


def ids(kagent: Kagent, query: str = "", **more: Any) -> list[str]:
    """Return their ids."""
    return [list_checkpoint["checkpoint_id"] for list_checkpoint in list_checkpoints(kagent, query, **more)]


def test_a_checkpoint_is_returned_unchanged(kagent: Kagent) -> None:
    sent = checkpoint("1", checkpoint_ns="a:1|b:2", parent_checkpoint_id="0", version=7, checkpoint=encode(b"\x00\xff"))
    good(kagent.post(PLACE, sent), 201)
    (one,) = list_checkpoints(kagent, "&checkpoint_ns=a:1|b:2")
    del sent["version"]
    assert one == {**sent, "writes": None}


@pytest.mark.parametrize("metadata", [b"", b"{}", b"[1]", b"\xff no JSON", b'{"step": -1, "source": "input"}'])
def test_metadata_is_stored_whether_or_not_it_is_json(kagent: Kagent, metadata: bytes) -> None:
    put(kagent, "1", metadata=encode(metadata), checkpoint="")
    (one,) = list_checkpoints(kagent)
    assert (b64decode(one["metadata"]), one["checkpoint"]) == (metadata, "")


def test_json_metadata_is_visible_to_the_library(kagent: Kagent) -> None:
    put(kagent, "1", metadata=encode(b'{"step": 3}'))
    put(kagent, "2", metadata=encode(b"no JSON"))
    kept = kagent.run(kagent.tenant.checkpoints.list(thread_of("h"), user="ada"))
    assert [item.metadata for item in kept] == [{}, {"step": 3}]


def test_the_same_id_replaces_the_checkpoint(kagent: Kagent) -> None:
    for body in (b"one", b"two"):
        put(kagent, "1", checkpoint=encode(body), type_=body.decode())
    (one,) = list_checkpoints(kagent)
    assert (b64decode(one["checkpoint"]), one["type_"]) == (b"two", "two")


def test_an_empty_parent_is_no_parent(kagent: Kagent) -> None:
    put(kagent, "1", parent_checkpoint_id="")
    assert list_checkpoints(kagent)[0]["parent_checkpoint_id"] is None


def test_checkpoints_are_listed_newest_first_up_to_the_limit(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.kagent.checkpoints.PAGE", 2)
    for id in ("3", "1", "5", "2", "4"):
        put(kagent, id)
    everything = ["5", "4", "3", "2", "1"]
    for limit in ("", "0", "-1"):
        assert ids(kagent, f"&limit={limit}") == everything
    for limit in (1, 2, 3, 4, 5, 6):
        assert ids(kagent, f"&limit={limit}") == everything[:limit]
    assert ids(kagent, "&checkpoint_id=2") == ["2"]
    assert ids(kagent, "&checkpoint_id=2&limit=3") == ["2"]
    assert ids(kagent, "&checkpoint_id=never") == []
    assert ids(kagent, "&checkpoint_id=&limit=1") == ["5"], "an empty id is ignored"


def test_threads_namespaces_users_and_tenants_are_separate(kagent: Kagent) -> None:
    put(kagent, "1")
    put(kagent, "2", checkpoint_ns="inner")
    put(kagent, "3", thread="other")
    good(kagent.post(PLACE, checkpoint("4"), user="bob"), 201)
    assert ids(kagent) == ids(kagent, "&checkpoint_ns=") == ["1"]
    assert ids(kagent, "&checkpoint_ns=inner") == ["2"]
    assert ids(kagent, user="bob") == ["4"]
    assert ids(kagent.another()) == []


@pytest.mark.parametrize("thread", ["ü/漢", "\x00", "a&b=c", "session:h"])
def test_a_thread_can_have_any_name(kagent: Kagent, thread: str) -> None:
    put(kagent, "1", thread=thread)
    (one,) = good(kagent.get(f"{PLACE}?thread_id={quote(thread, safe='')}"))
    assert one["thread_id"] == thread
    assert ids(kagent) == []
    good(kagent.delete(f"{PLACE}/{quote(thread, safe='')}"))
    assert good(kagent.get(f"{PLACE}?thread_id={quote(thread, safe='')}")) == []


def test_the_id_of_a_deleted_thread_can_be_used_again(kagent: Kagent) -> None:
    put(kagent, "1")
    put(kagent, "2", checkpoint_ns="inner")
    good(kagent.post(f"{PLACE}/writes", writes("a", (0, "x", b"old"))), 201)
    good(kagent.delete(f"{PLACE}/h", user="bob"))
    assert ids(kagent) == ["1"], "another user deletes another thread"
    for _ in range(2):
        assert good(kagent.delete(f"{PLACE}/h")) == {}
    assert ids(kagent) == ids(kagent, "&checkpoint_ns=inner") == []
    put(kagent, "1")
    assert list_checkpoints(kagent)[0]["writes"] is None


NO_CHECKPOINTS = [
    pytest.param({"thread_id": ""}, "thread_id", id="no thread"),
    pytest.param({"checkpoint_id": ""}, "must not be empty", id="no id"),
    pytest.param({"checkpoint_id": None}, "checkpoint_id", id="null id"),
    pytest.param({"checkpoint": "%"}, "checkpoint must be base64", id="not base64"),
    pytest.param({"checkpoint": "ü"}, "checkpoint must be base64", id="not ASCII"),
    pytest.param({"metadata": "a"}, "metadata must be base64", id="incomplete base64"),
    pytest.param({"version": "1"}, "version", id="text as version"),
    pytest.param({"version": 2**64}, "version", id="version too large"),
    pytest.param({"type_": "\ud800"}, "type_", id="unpaired surrogate in type"),
    pytest.param({"type_": None}, "type_", id="no type"),
]


@pytest.mark.parametrize(("wrong", "words"), NO_CHECKPOINTS)
def test_an_invalid_checkpoint_is_refused(kagent: Kagent, wrong: dict[str, Any], words: str) -> None:
    assert words in bad(kagent.post(PLACE, json.dumps({**checkpoint("1"), **wrong}).encode()), 400)
    assert ids(kagent) == []


def test_required_fields_of_checkpoints_and_lists(kagent: Kagent) -> None:
    for part in ("thread_id", "checkpoint_id", "checkpoint", "metadata", "type_"):
        body = checkpoint("1")
        del body[part]
        assert part in bad(kagent.post(PLACE, body), 400)
    for query in ("", "?thread_id=", "?checkpoint_ns=x"):
        assert bad(kagent.get(PLACE + query), 400) == "the parameter thread_id is missing"
    bad(kagent.get(f"{PLACE}?thread_id=h&limit=x"), 400)


def test_writes_are_returned_with_their_checkpoint_ordered_by_index(kagent: Kagent) -> None:
    put(kagent, "1")
    sent = writes("a", (1, "y", b"\xff"), (0, "x", b""), (-1, "__error__", b"e"))
    good(kagent.post(f"{PLACE}/writes", sent), 201)
    listed = list_checkpoints(kagent)[0]["writes"]
    assert {**listed, "writes": None} == {**sent, "checkpoint_ns": "", "writes": None}
    assert listed["writes"] == sorted(sent["writes"], key=lambda row: row["idx"])


def test_repeated_writes_at_the_same_index(kagent: Kagent) -> None:
    put(kagent, "1")
    for value in (b"one", b"two"):
        good(kagent.post(f"{PLACE}/writes", writes("a", (0, "x", value), (-3, "__interrupt__", value))), 201)
    kept = {write["idx"]: b64decode(write["value"]) for write in list_checkpoints(kagent)[0]["writes"]["writes"]}
    assert kept == {0: b"one", -3: b"two"}, "ordinary writes are never replaced; those at special indexes are"


def test_writes_of_one_task_are_returned_and_the_nil_task_comes_last(kagent: Kagent) -> None:
    put(kagent, "1")
    good(kagent.post(f"{PLACE}/writes", writes(NO_TASK, (0, "x", b""), (1, "y", b""))), 201)
    assert list_checkpoints(kagent)[0]["writes"]["task_id"] == NO_TASK
    for task, value in (("b", "b"), ("a", "b"), ("c", "c")):
        good(kagent.post(f"{PLACE}/writes", writes(task, (0, "x", b""))), 201)
        assert list_checkpoints(kagent)[0]["writes"]["task_id"] == value, "regardless of the order of the writes"


NO_WRITES = [
    pytest.param({"thread_id": ""}, id="no thread"),
    pytest.param({"checkpoint_id": ""}, id="no checkpoint"),
    pytest.param({"task_id": ""}, id="no task"),
    pytest.param({"writes": None}, id="not a list"),
    pytest.param({"writes": [{"idx": 0, "channel": "x", "type_": "x", "value": "%"}]}, id="not base64"),
    pytest.param({"writes": [{"idx": "0", "channel": "x", "type_": "x", "value": ""}]}, id="text as index"),
    pytest.param({"writes": [{"idx": 2**63, "channel": "x", "type_": "x", "value": ""}]}, id="index too large"),
    pytest.param({"writes": [{"idx": 0, "channel": "x", "type_": "\ud800", "value": ""}]}, id="unpaired surrogate"),
    pytest.param({"writes": [{"idx": 0, "type_": "x", "value": ""}]}, id="no channel"),
]


@pytest.mark.parametrize("wrong", NO_WRITES)
def test_invalid_writes_are_refused(kagent: Kagent, wrong: dict[str, Any]) -> None:
    put(kagent, "1")
    bad(kagent.post(f"{PLACE}/writes", json.dumps({**writes("a"), **wrong}).encode()), 400)
    assert list_checkpoints(kagent)[0]["writes"] is None


@given(st.lists(st.tuples(st.sampled_from("123"), st.binary(max_size=40)), max_size=6))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_thread_contains_the_last_checkpoint_of_each_id(
    open_kagent_server: Kagent, puts: list[tuple[str, bytes]]
) -> None:
    kagent, model = open_kagent_server.another(), dict[str, bytes]()
    for id, body in puts:
        put(kagent, id, checkpoint=encode(body))
        model[id] = body
    kept = [
        (list_checkpoint["checkpoint_id"], b64decode(list_checkpoint["checkpoint"]))
        for list_checkpoint in list_checkpoints(kagent)
    ]
    assert kept == sorted(model.items(), reverse=True)


def remember(kagent: Kagent, described: Any, *, thread: str = "h", **more: Any) -> None:
    """Store a memory of a crew."""
    data = {"task_description": described, **more}
    assert good(kagent.post(MEMORY, {"thread_id": thread, "memory_data": data}), 201) == {}


def recall(kagent: Kagent, wanted: str, query: str = "", **more: Any) -> list[Any]:
    """Return the memories found in the thread ``h``."""
    reply = kagent.get(f"{MEMORY}?thread_id=h&q={quote(wanted, safe='')}{query}", **more)
    return [item["memory_data"]["task_description"] for item in good(reply)]


def test_a_memory_of_a_crew_is_returned_unchanged(kagent: Kagent) -> None:
    data = {"task_description": "tea ü\x00", "score": 7.5, "metadata": {"z": 1, "a": [None]}, "datetime": "1"}
    good(kagent.post(MEMORY, {"thread_id": "h", "user_id": "ignored", "memory_data": data}), 201)
    (one,) = good(kagent.get(f"{MEMORY}?thread_id=h&q=tea"))
    assert json.dumps(one) == json.dumps({"thread_id": "h", "user_id": "ada", "memory_data": data})


def test_memories_are_listed_newest_first_up_to_the_limit(kagent: Kagent) -> None:
    for number in range(4):
        remember(kagent, f"write {number}")
    everything = ["write 3", "write 2", "write 1", "write 0"]
    assert recall(kagent, "write") == everything
    for limit in (1, 3, 4, 5, 100_000):
        assert recall(kagent, "write", f"&limit={limit}") == everything[:limit]
    for limit in ("0", "-1", ""):
        assert recall(kagent, "write", f"&limit={limit}") == everything
    assert recall(kagent, "2") == ["write 2"]
    assert recall(kagent, "absent") == []


@pytest.mark.parametrize("score", [None, "high", True, 0, -1.5, 2**70, 1e300])
def test_a_memory_with_any_score_is_found(kagent: Kagent, score: Any) -> None:
    remember(kagent, "tea", score=score)
    (one,) = good(kagent.get(f"{MEMORY}?thread_id=h&q=tea"))
    assert one["memory_data"]["score"] == score


def test_memories_of_the_same_time_are_ordered_by_score(kagent: Kagent) -> None:
    scores: list[Any] = [9, "none", -0.5, 10**400, 3]
    data = [{"memory_data": {"task_description": score, "score": score}} for score in scores]
    new = [NewCrewMemory(content="tea", metadata=item, created_at=from_us(0)) for item in data]
    kagent.run(kagent.tenant.crew_memories.save(new, user="ada", thread_id=thread_of("h")))
    assert recall(kagent, "tea") == [-0.5, "none", 3, 9, 10**400]


def test_a_huge_score_does_not_hide_other_memories(kagent: Kagent) -> None:
    remember(kagent, "tea")
    body = b'{"thread_id": "h", "memory_data": {"task_description": "tea", "score": 1' + b"0" * 400 + b"}}"
    good(kagent.post(MEMORY, body), 201)
    assert recall(kagent, "tea") == ["tea", "tea"]


def test_memories_of_threads_users_and_tenants_are_separate(kagent: Kagent) -> None:
    remember(kagent, "tea")
    remember(kagent, "tea elsewhere", thread="other")
    assert recall(kagent, "tea") == ["tea"]
    assert recall(kagent, "tea", user="bob") == []
    assert recall(kagent.another(), "tea") == []
    good(kagent.delete(f"{MEMORY}?thread_id=h", user="bob"))
    assert recall(kagent, "tea") == ["tea"]
    for _ in range(2):
        assert good(kagent.delete(f"{MEMORY}?thread_id=h")) == {}
    assert recall(kagent, "tea") == []
    assert len(good(kagent.get(f"{MEMORY}?thread_id=other&q=tea"))) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"memory_data": {"task_description": "x"}},
        {"thread_id": "", "memory_data": {"task_description": "x"}},
        {"thread_id": "h", "memory_data": []},
        {"thread_id": "h", "memory_data": {"task_description": 7}},
        {"thread_id": "h", "memory_data": {"task_description": "x", "metadata": "x" * 262_144}},
    ],
    ids=["no thread", "an empty thread", "no object", "a number", "over the limit"],
)
def test_an_invalid_memory_of_a_crew_is_refused(kagent: Kagent, body: Any) -> None:
    bad(kagent.post(MEMORY, body), 400)
    assert recall(kagent, "x") == []


def test_searching_memories_requires_a_thread_and_a_text(kagent: Kagent) -> None:
    for query, missing in (("q=x", "thread_id"), ("thread_id=h", "q"), ("thread_id=h&q=", "q")):
        assert bad(kagent.get(f"{MEMORY}?{query}"), 400) == f"the parameter {missing} is missing"
    assert bad(kagent.delete(MEMORY), 400) == "the parameter thread_id is missing"
    bad(kagent.get(f"{MEMORY}?thread_id=h&q=x&limit=many"), 400)


def state(method: str = "m", **more: Any) -> dict[str, Any]:
    """Return the body of a flow state."""
    return {"thread_id": "h", "flow_uuid": "f", "method_name": method, "state_data": {"after": method}, **more}


def test_a_flow_continues_from_its_last_state_regardless_of_the_method(kagent: Kagent) -> None:
    for method in ("one", "two", "one"):
        assert good(kagent.post(STATE, state(method)), 201) == {}
        assert good(kagent.get(f"{STATE}?thread_id=h&flow_uuid=f")) == state(method)


def test_flows_of_threads_users_and_tenants_are_separate(kagent: Kagent) -> None:
    good(kagent.post(STATE, state()), 201)
    for query in ("thread_id=h&flow_uuid=g", "thread_id=other&flow_uuid=f"):
        assert bad(kagent.get(f"{STATE}?{query}"), 404) == "Flow state not found"
    for other in (
        kagent.get(f"{STATE}?thread_id=h&flow_uuid=f", user="bob"),
        kagent.another().get(f"{STATE}?thread_id=h&flow_uuid=f"),
    ):
        bad(other, 404)


@pytest.mark.parametrize("wrong", [{"thread_id": ""}, {"flow_uuid": ""}, {"method_name": ""}, {"state_data": []}])
def test_an_invalid_flow_state_is_refused(kagent: Kagent, wrong: dict[str, Any]) -> None:
    bad(kagent.post(STATE, state() | wrong), 400)
    bad(kagent.get(f"{STATE}?thread_id=h&flow_uuid=f"), 404)


def test_reading_a_flow_requires_a_thread_and_a_flow_id(kagent: Kagent) -> None:
    assert bad(kagent.get(f"{STATE}?flow_uuid=f"), 400) == "the parameter thread_id is missing"
    assert bad(kagent.get(f"{STATE}?thread_id=h"), 400) == "the parameter flow_uuid is missing"
