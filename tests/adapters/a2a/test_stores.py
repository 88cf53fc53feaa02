"""Both stores behave like those of the SDK, and their data is available in another process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types.a2a_pb2 import (
    Artifact,
    AuthenticationInfo,
    ListTasksRequest,
    Message,
    Part,
    Role,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import InvalidParamsError
from google.protobuf.struct_pb2 import Struct as Json
from google.protobuf.timestamp_pb2 import Timestamp

from holdfast import AsyncTenantHandle, Holdfast
from holdfast.adapters.a2a import HoldfastPushNotificationConfigStore, HoldfastTaskStore
from holdfast.errors import InvalidInput
from tests.adapters.a2a.conftest import Use
from tests.errors import raises


class KnownUser(User):
    """An authenticated user."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def of(user: str = "") -> ServerCallContext:
    """Return the context of a call."""
    return ServerCallContext(user=KnownUser(user)) if user else ServerCallContext()


def task_of(id: str, *, messages: int = 2, at_s: int | None = 1, state: Any = TaskState.TASK_STATE_WORKING) -> Task:
    """Return a task with parts of every kind."""
    metadata = Json()
    metadata.update({"n": 1.5, "nested": {"": [None, True, "\U0001f600"]}})
    history = [
        Message(
            message_id=f"{id}-{n}",
            role=Role.ROLE_USER,
            parts=[Part(text=f"word {n}"), Part(raw=bytes(range(8)), media_type="x/y"), Part(url="http://x")],
            metadata=metadata,
        )
        for n in range(messages)
    ]
    artifacts = [Artifact(artifact_id="a", name="n", parts=[Part(text=f"part {n}") for n in range(messages)])]
    status = TaskStatus(state=state, message=history[-1] if history else None)
    if at_s is not None:
        status.timestamp.CopyFrom(Timestamp(seconds=1_700_000_000 + at_s, nanos=123_000))
    return Task(
        id=id, context_id=f"c{int(id[-1]) % 2}", status=status, history=history, artifacts=artifacts, metadata=metadata
    )


def test_a_task_is_read_unchanged_in_another_process(on: Use) -> None:
    async def save(tenant: AsyncTenantHandle) -> None:
        store = HoldfastTaskStore(tenant)
        assert await store.get("t1", of()) is None
        for messages in (0, 3, 2):
            await store.save(task_of("t1", messages=messages), of())

    async def read(tenant: AsyncTenantHandle) -> Task | None:
        return await HoldfastTaskStore(tenant).get("t1", of())

    asyncio.run(on(save))
    assert asyncio.run(on(read)) == task_of("t1")


def test_lists_equal_those_of_the_sdks_own_store(on: Use) -> None:
    tasks = [task_of(f"t{n}", at_s=None if n in (3, 7) else n % 5) for n in range(12)]
    tasks[4].status.state = TaskState.TASK_STATE_COMPLETED
    asked = [
        ListTasksRequest(),
        ListTasksRequest(context_id="c1"),
        ListTasksRequest(status=TaskState.TASK_STATE_COMPLETED),
        ListTasksRequest(status_timestamp_after=Timestamp(seconds=1_700_000_003)),
        ListTasksRequest(page_size=5),
        ListTasksRequest(page_size=5, context_id="c0"),
    ]

    async def pages(store: Any, request: ListTasksRequest) -> list[Any]:
        tasks_seen: list[Any] = []
        for _ in range(20):
            page = await store.list(request, of("ada"))
            tasks_seen.append(([task.id for task in page.tasks], page.total_size, page.page_size))
            if not page.next_page_token:
                return tasks_seen
            request.page_token = page.next_page_token
        raise AssertionError("no end of pages")

    async def both(tenant: AsyncTenantHandle) -> None:
        ours, theirs = HoldfastTaskStore(tenant), InMemoryTaskStore()
        for store in (ours, theirs):
            for task in tasks:
                await store.save(task, of("ada"))
            await store.save(task_of("t99"), of("bob"))
        for request in asked:
            one, other = ListTasksRequest(), ListTasksRequest()
            one.CopyFrom(request)
            other.CopyFrom(request)
            assert await pages(ours, one) == await pages(theirs, other), request
        with pytest.raises(InvalidParamsError):
            await ours.list(ListTasksRequest(page_token="nonsense"), of("ada"))

    asyncio.run(on(both))


def test_changing_a_returned_object_does_not_change_the_store(on: Use) -> None:
    async def use(tenant: AsyncTenantHandle) -> None:
        store = HoldfastTaskStore(tenant)
        task = task_of("t1")
        await store.save(task, of("ada"))
        task.context_id = "changed and not saved"
        saved = await store.get("t1", of("ada"))
        assert saved == task_of("t1")
        assert await store.get("t1", of("eve")) is None
        await store.delete("t1", of("eve"))
        assert await store.get("t1", of("ada")) == task_of("t1")
        await store.delete("t1", of("ada"))
        assert await store.get("t1", of("ada")) is None
        await store.delete("t1", of("ada"))
        assert (await tenant.a2a_tasks.restore("t1", user="ada")).id == "t1"
        assert await store.get("t1", of("ada")) == task_of("t1")
        assert await store.get("", of("ada")) is None

    asyncio.run(on(use))


def test_push_notification_configurations_equal_those_of_the_sdks_own_store(on: Use) -> None:
    async def kept(store: Any) -> list[Any]:
        seen: list[Any] = []
        plain = TaskPushNotificationConfig(url="https://example.test", token="t")
        other = TaskPushNotificationConfig(
            id="o", url="https://example.test/2", authentication=AuthenticationInfo(scheme="Bearer", credentials="c")
        )
        seen.append(await store.set_info("t1", plain, of("ada")))
        assert plain.id == "", "the passed configuration is not changed"
        seen.append(await store.set_info("t1", other, of("ada")))
        await store.set_info("t1", plain, of("bob"))
        seen.append(await store.get_info("t1", of("ada")))
        seen.append(await store.get_info("t1", of("eve")))
        seen.append(sorted(config.id for config in await store.get_info_for_dispatch("t1")))
        await store.delete_info("t1", of("ada"), "o")
        await store.delete_info("t1", of("ada"), "absent")
        seen.append([config.id for config in await store.get_info("t1", of("ada"))])
        await store.delete_info("t1", of("ada"))
        await store.delete_info("t1", of("ada"))
        seen.append(await store.get_info("t1", of("ada")))
        seen.append([config.id for config in await store.get_info_for_dispatch("t1")])
        return seen

    async def both(tenant: AsyncTenantHandle) -> None:
        ours = await kept(HoldfastPushNotificationConfigStore(tenant))
        assert ours == await kept(InMemoryPushNotificationConfigStore())

    asyncio.run(on(both))


def test_three_hundred_saves_of_a_growing_task_store_its_content_once(on: Use) -> None:
    words = "word " * 200

    async def use(tenant: AsyncTenantHandle) -> tuple[int, int]:
        store = HoldfastTaskStore(tenant)
        task = Task(id="t1", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
        artifact = task.artifacts.add(artifact_id="a")
        written = 0
        for n in range(300):
            message = task.history.add(message_id=str(n), role=Role.ROLE_AGENT)
            message.parts.add(text=f"{n} {words}")
            artifact.parts.add(text=f"part {n} {words}")
            await store.save(task, of())
        rows = await tenant.a2a_tasks._engine.read(_bodies)  # type: ignore[arg-type]
        written = sum(len(row[0]) for row in rows)
        assert await store.get("t1", of()) == task
        return len(rows), written

    rows, written = asyncio.run(on(use))
    assert rows == 601, "300 messages, 300 parts and the artifact they are parts of"
    assert written < 1.2 * 600 * len(words)


async def _bodies(connection: Any) -> Any:
    return await connection.fetch("SELECT body FROM a2a_task_items", ())


def test_a_store_on_an_address_or_a_synchronous_handle_works_in_every_event_loop(address: str) -> None:
    with Holdfast(address, auto_migrate=True) as holdfast:
        for where in (address, holdfast.tenant("default")):
            tasks, configs = HoldfastTaskStore(where), HoldfastPushNotificationConfigStore(where)
            asyncio.run(tasks.save(task_of("t1"), of("ada")))
            assert asyncio.run(tasks.get("t1", of("ada"))) == task_of("t1")
            asyncio.run(configs.set_info("t", TaskPushNotificationConfig(url="http://x"), of("ada")))
            assert [config.id for config in asyncio.run(configs.get_info("t", of("ada")))] == ["t"]


def test_an_invalid_location_is_refused() -> None:
    with raises(InvalidInput, field="where"):
        HoldfastTaskStore(5)  # type: ignore[arg-type]
