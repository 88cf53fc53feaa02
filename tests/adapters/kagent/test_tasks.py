"""``kagent.core.a2a.KAgentTaskStore``, unchanged."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import (
    Artifact,
    DataPart,
    FilePart,
    FileWithBytes,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from kagent.core.a2a import KAgentTaskStore


def task_of(id: str, messages: int = 2, state: TaskState = TaskState.working) -> Task:
    """A task with this many messages, and parts of every kind."""
    history = [
        Message(
            message_id=f"{id}-{n}",
            role=Role.user if n % 2 == 0 else Role.agent,
            parts=[Part(root=TextPart(text=f"word {n} \U0001f600 \x00")), Part(root=DataPart(data={"n": n, "": None}))],
            task_id=id,
            context_id=f"context of {id}",
            metadata={"adk_partial": n % 2 == 1},
        )
        for n in range(messages)
    ]
    file = FilePart(file=FileWithBytes(bytes="AAAA", mime_type="image/png", name="a.png"))
    artifacts = [Artifact(artifact_id="a", parts=[Part(root=TextPart(text="out")), Part(root=file)], name="n")]
    status = TaskStatus(
        state=state, timestamp="2026-11-15T17:59:09.495780+00:00", message=history[-1] if history else None
    )
    return Task(
        id=id, context_id=f"context of {id}", status=status, history=history, artifacts=artifacts, metadata={"k": [1]}
    )


def test_a_task_is_returned_unchanged(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            store = KAgentTaskStore(client)
            assert await store.get(name) is None, "requested before it is saved, as every client does"
            task = task_of(name)
            await store.save(task, ServerCallContext(state={"headers": {"x-user-id": "alice"}}))
            assert await store.get(name) == task
            await store.delete(name)
            assert await store.get(name) is None
            await store.delete(name)
            await store.save(task_of(name, 1))
            assert await store.get(name) == task_of(name, 1), "the id can be used again, without the old content"

    asyncio.run(use())


def test_the_last_save_of_a_growing_task_is_returned(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            store = KAgentTaskStore(client)
            for messages in (0, 1, 3, 7, 6):
                task = task_of(name, messages, TaskState.completed if messages == 6 else TaskState.working)
                await store.save(task)
                assert await store.get(name) == task

    asyncio.run(use())


def test_a_task_of_another_user_is_missing(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base, headers={"X-User-Id": "alice"}) as client:
            await KAgentTaskStore(client).save(task_of(name))
        async with httpx.AsyncClient(base_url=base, headers={"X-User-Id": "eve"}) as client:
            store = KAgentTaskStore(client)
            assert await store.get(name) is None
            await store.delete(name)
        async with httpx.AsyncClient(base_url=base, headers={"X-User-Id": "alice"}) as client:
            assert await KAgentTaskStore(client).get(name) == task_of(name)

    asyncio.run(use())


def test_the_tasks_of_a_session_are_listed_oldest_first(http: httpx.Client, name: str) -> None:
    for number in (1, 2, 3):
        task = {"id": f"{name}-{number}", "contextId": name, "status": {"state": "working"}, "n": number}
        assert http.post("/api/tasks", json=task).status_code == 201
    again = http.post("/api/tasks", json={"id": f"{name}-1", "contextId": name, "n": 1})
    assert again.status_code == 201
    response = http.get(f"/api/sessions/{name}/tasks").json()
    assert [item["n"] for item in response["data"]] == [1, 2, 3]


def test_an_unknown_version_is_refused(http: httpx.Client, name: str) -> None:
    task = {"id": name, "contextId": name}
    for version, status in (("0.3", 201), ("1.0", 201), ("7", 400)):
        assert http.post("/api/tasks", json=task, headers={"A2A-Version": version}).status_code == status


def test_push_notification_configurations_are_stored(http: httpx.Client, name: str) -> None:
    place = f"/api/tasks/{name}/pushNotificationConfigs"
    made = http.post(place, json={"url": "https://example.test", "authentication": {"schemes": ["Bearer"]}})
    assert (made.status_code, made.json()["data"]["id"]) == (201, name)
    http.post(place, json={"id": "other", "url": "https://example.test/2"})
    assert [item["id"] for item in http.get(place).json()["data"]] == [name, "other"]
    assert http.get(f"{place}/other").json()["data"]["url"] == "https://example.test/2"
    assert http.get(f"{place}/absent").status_code == 404
    assert http.delete(f"{place}/other").status_code == 204
    assert [item["id"] for item in http.get(place).json()["data"]] == [name]
    assert http.get(place, headers={"X-User-Id": "eve"}).json()["data"] == []


@pytest.mark.parametrize("body", [{}, {"id": 3}, {"id": "x", "contextId": []}, {"id": "x", "history": 3}])
def test_an_invalid_task_is_refused(http: httpx.Client, body: dict) -> None:
    refused = http.post("/api/tasks", json=body)
    assert refused.status_code == 400
    assert isinstance(refused.json()["error"], str)
