"""The requests of kagent's clients and the responses that they need, without the clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
from msgspec import Struct

DEFAULT_USER = "admin@kagent.dev"
VECTOR = [1.0] + [0.0] * 767


def good(response: httpx.Response, status: int = 200) -> Any:
    """Check the status and the envelope of a response, and return its data."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "data", "message"}
    assert body["error"] is False
    assert body["data"] is not None
    return body["data"]


def bad(response: httpx.Response, status: int) -> None:
    """Check an error response of kagent."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert isinstance(body["error"], str)


def checkpoint_of(thread: str, id: str, **more: Any) -> dict[str, Any]:
    """Return a checkpoint."""
    metadata = base64.b64encode(json.dumps({"step": 1}).encode()).decode()
    body = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id, "parent_checkpoint_id": None}
    return {**body, "checkpoint": "AAEC", "metadata": metadata, "type_": "msgpack", "version": 4, **more}


def writes_of(thread: str, id: str, task: str, *writes: tuple[int, str, str, str]) -> dict[str, Any]:
    """Return the writes of a task."""
    names = ("idx", "channel", "type_", "value")
    listed = [dict(zip(names, write, strict=True)) for write in writes]
    return {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id, "task_id": task, "writes": listed}


def state_of(thread: str, method: str, n: int, flow: str = "f") -> dict[str, Any]:
    """Return the state of a flow."""
    return {"thread_id": thread, "flow_uuid": flow, "method_name": method, "state_data": {"n": n}}


def crew_memory_of(thread: str, described: str, score: float = 1.0) -> dict[str, Any]:
    """Return a memory of a crew."""
    data = {"task_description": described, "score": score, "metadata": {}, "datetime": "1"}
    return {"thread_id": thread, "user_id": "u", "memory_data": data}


def memory_of(agent: str, user: str, **more: Any) -> dict[str, Any]:
    """Return a memory of an agent about a user."""
    return {"agent_name": agent, "user_id": user, "content": "tea", "vector": VECTOR, "metadata": {"k": 1}, **more}


class Call(Struct):
    """One request of a client and the response that it needs: the names in each object, and whether it is one or a list."""

    method: str
    path: str
    body: Any
    status: int
    names: frozenset[str] | None
    is_list: bool = False

    def of(self, http: httpx.Client) -> Any:
        """Send it, check the form of the response, and return its data."""
        response = http.request(self.method, self.path, json=self.body)
        if self.status == 204:
            assert (response.status_code, response.content) == (204, b"")
            return None
        is_bare = self.path.startswith("/api/memories")
        data = response.json() if is_bare else good(response, self.status)
        assert response.status_code == self.status, response.text
        assert isinstance(data, list if self.is_list else dict), (self.path, data)
        for item in data if self.is_list else [data]:
            assert self.names is None or self.names <= set(item), (self.path, item)
            assert self.names != frozenset() or item == {}, (self.path, item)
        assert not self.is_list or data, (self.path, "there is something to list")
        return data


def _call(method: str, path: str, status: int, names: str | None, body: Any = None, *, is_list: bool = False) -> Call:
    return Call(method, path, body, status, None if names is None else frozenset(names.split()), is_list)


SESSION = "id user_id created_at updated_at"
EVENT = "id session_id user_id created_at updated_at data"
SHARE = "id token session_id user_id read_only created_at"
CHECKPOINT = "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id checkpoint metadata type_ writes"
STATE = "thread_id flow_uuid method_name state_data"


def calls(name: str, event: str = "e") -> Iterator[Call]:
    """Return every request of every client that writes or reads, in a valid order."""
    session, configs = f"/api/sessions/{name}", f"/api/tasks/{name}/pushNotificationConfigs"
    place = f"thread_id={name}"
    task = {"id": name, "contextId": name, "status": {"state": "working"}, "kind": "task", "history": []}
    writes = writes_of(name, "1", "t", (0, "log", "null", ""))
    search = {"agent_name": name, "user_id": name, "vector": VECTOR, "limit": 5, "min_score": 0.3}
    yield _call("POST", "/api/sessions", 201, SESSION, {"id": name, "agent_ref": f"ns/{name}"})
    yield _call("POST", f"{session}/events", 201, EVENT, {"id": event, "data": "{}"})
    yield _call("GET", f"{session}?order=asc&limit=-1", 200, "session events")
    yield _call("GET", "/api/sessions", 200, SESSION, is_list=True)
    yield _call("POST", f"{session}/shares", 201, SHARE, {"read_only": True})
    yield _call("GET", f"{session}/shares", 200, SHARE, is_list=True)
    yield _call("POST", "/api/tasks", 201, " ".join(task), task)
    yield _call("GET", f"/api/tasks/{name}", 200, " ".join(task))
    yield _call("GET", f"{session}/tasks", 200, " ".join(task), is_list=True)
    yield _call("POST", configs, 201, "id url", {"url": "u"})
    yield _call("GET", configs, 200, "id url", is_list=True)
    yield _call("POST", "/api/memories/sessions", 201, "id", memory_of(name, name))
    yield _call("POST", "/api/memories/sessions/batch", 201, "count", {"items": [memory_of(name, name)]})
    yield _call("POST", "/api/memories/search", 200, "id content score metadata created_at", search, is_list=True)
    yield _call("POST", "/api/langgraph/checkpoints/writes", 201, "", writes)
    yield _call("POST", "/api/langgraph/checkpoints", 201, "", checkpoint_of(name, "1"))
    yield _call("GET", f"/api/langgraph/checkpoints?{place}&checkpoint_ns=&limit=1", 200, CHECKPOINT, is_list=True)
    yield _call("POST", "/api/crewai/memory", 201, "", crew_memory_of(name, "write"))
    memory = "thread_id user_id memory_data"
    yield _call("GET", f"/api/crewai/memory?{place}&q=write&limit=3", 200, memory, is_list=True)
    yield _call("POST", "/api/crewai/flows/state", 201, "", state_of(name, "m", 1))
    yield _call("GET", f"/api/crewai/flows/state?{place}&flow_uuid=f", 200, STATE)


def deletions(name: str, token: str) -> Iterator[Call]:
    """Return every request of every client that deletes, and those of kagent's server only."""
    yield _call("DELETE", f"/api/sessions/{name}/shares/{token}", 200, "")
    yield _call("DELETE", f"/api/tasks/{name}/pushNotificationConfigs/{name}", 204, None)
    yield _call("DELETE", f"/api/tasks/{name}", 204, None)
    yield _call("DELETE", f"/api/langgraph/checkpoints/{name}", 200, "")
    yield _call("DELETE", f"/api/crewai/memory?thread_id={name}", 200, "")
    yield _call("DELETE", f"/api/sessions/{name}", 200, "")


def kept(http: httpx.Client, name: str) -> list[int]:
    """Return the number of objects of each kind that belong to a session."""
    session, shares = http.get(f"/api/sessions/{name}"), http.get(f"/api/sessions/{name}/shares")
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
