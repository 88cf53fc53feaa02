"""A2A tasks: a task is returned as saved, unchanged elements are not written again, and deletion can be undone."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from holdfast import NewA2APushConfig, column
from holdfast.clock import from_us
from holdfast.core.crypto import Secret
from holdfast.errors import Conflict, InvalidFilter, NotFound
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


def task_of(id: str, messages: int, parts: int = 2) -> dict[str, Any]:
    """Return a task with these numbers of messages and parts, in the form of A2A 0.3: with nulls and ordered keys."""
    return {
        "contextId": "c",
        "id": id,
        "kind": "task",
        "history": [{"messageId": f"m{n}", "parts": [{"kind": "text", "text": f"word {n}"}]} for n in range(messages)],
        "artifacts": [
            {"artifactId": "a", "parts": [{"kind": "text", "text": f"part {n}"} for n in range(parts)], "name": None},
            {"artifactId": "b", "parts": [], "metadata": {"parts": [1]}},
        ],
        "status": {"state": "working", "message": None},
        "metadata": None,
    }


async def _a_task_is_returned_as_saved(world: World, name: str) -> None:
    tasks = world.tenant(name).a2a_tasks
    assert await tasks.find("t") is None
    task = task_of("t", 3)
    task["metadata"] = {"texts": list(TEXTS), "": [1, 2.5, True, None, {"$": 1e300}]}
    await tasks.save("t", task, context_id="c", state="working")
    saved = await tasks.find("t")
    assert saved is not None
    assert json.dumps(saved.task) == json.dumps(task), "with its keys in order"
    assert (saved.id, saved.context_id, saved.state, saved.user) == ("t", "c", "working", "")
    assert saved.created_at == saved.updated_at == from_us(world.clock.now_us())
    bare: dict[str, Any] = {"id": "u", "history": None}
    await tasks.save("u", bare)
    strange: dict[str, Any] = {"history": [], "artifacts": [None, "text", {"parts": None}], "other": [1]}
    await tasks.save("v", strange)
    for id, expected in (("u", bare), ("v", strange)):
        stored_task = await tasks.find(id)
        assert stored_task is not None
        assert stored_task.task == expected


async def _the_last_save_wins(world: World, name: str) -> None:
    tasks = world.tenant(name).a2a_tasks
    created_at = from_us(world.clock.now_us() + 1_000_000)
    for messages, parts in ((1, 0), (2, 3), (2, 4), (1, 2), (0, 0), (5, 1)):
        world.clock.advance(1)
        task = task_of("t", messages, parts)
        task["history"][:1] = [{"messageId": "changed", "n": parts}] if messages else []
        await tasks.save("t", task, state=f"{messages}")
        saved = await tasks.find("t")
        assert saved is not None
        assert (saved.task, saved.state, saved.created_at) == (task, f"{messages}", created_at)
        assert saved.updated_at == from_us(world.clock.now_us())


async def _each_user_has_separate_task_ids(world: World, name: str) -> None:
    tasks = world.tenant(name).a2a_tasks
    for user in (None, "ada", "bob"):
        await tasks.save("t", {"of": user}, user=user)
    for user in (None, "ada", "bob"):
        task = await tasks.find("t", user=user)
        assert task is not None
        assert (task.task, task.user) == ({"of": user}, user or "")
    assert await tasks.find("t", user="eve") is None
    assert await tasks.delete("t", user="eve") is False
    assert await tasks.delete("t", user="ada") is True
    assert [await tasks.find("t", user=user) is None for user in (None, "ada", "bob")] == [False, True, False]
    assert await world.tenant("zenith").a2a_tasks.find("t") is None


@contract()
async def tasks_are_returned_as_last_saved_and_separate_by_user(world: World) -> None:
    for part in (
        _a_task_is_returned_as_saved,
        _the_last_save_wins,
        _each_user_has_separate_task_ids,
    ):
        await part(world, part.__name__)


async def _tasks_are_listed_newest_state_first(world: World, name: str) -> None:
    tasks = world.tenant(name).a2a_tasks
    for name in ("a", "b", "c", "d"):
        world.clock.advance(1)
        await tasks.save(name, task_of(name, 2), context_id=(name in "ab" and "one") or "two", state="working")
    world.clock.advance(1)
    before = from_us(world.clock.now_us())
    world.clock.advance(1)
    await tasks.save("a", task_of("a", 1), context_id="one", state="completed")
    await tasks.save("e", {}, user="ada", context_id="one")
    assert [task.id for task in await tasks.list()] == ["a", "d", "c", "b"]
    assert [task.id for task in await tasks.list(context_id="one")] == ["a", "b"]
    assert [task.id for task in await tasks.list(state="working")] == ["d", "c", "b"]
    assert [task.id for task in await tasks.list(since=before)] == ["a"]
    assert await tasks.list(since=before + timedelta(seconds=2)) == []
    assert await tasks.count() == 4
    assert await tasks.count(context_id="one", state="working") == 1
    assert [task.id for task in await tasks.list(user="ada")] == ["e"]
    page = await tasks.list(limit=3)
    assert [task.task for task in page] == [task_of("a", 1), task_of("d", 2), task_of("c", 2)]
    rest = await tasks.list(limit=3, cursor=page.next)
    assert ([task.id for task in rest], rest.next) == (["b"], None)
    with raises(InvalidFilter):
        await tasks.list(cursor="nonsense")
    await tasks.save("b", {}, state_at=from_us(0))
    await tasks.save("z", {}, state_at=before + timedelta(days=1))
    last_and_first = await tasks.list()
    assert (last_and_first[0].id, last_and_first[-1].id) == ("z", "b"), "the caller's state_at decides"
    assert last_and_first[-1].state_at == from_us(0)


async def _a_deleted_task_can_be_restored_until_its_id_is_taken(world: World, name: str) -> None:
    tenant = world.tenant(name)
    tasks, configs = tenant.a2a_tasks, tenant.a2a_push_configs
    await tasks.save("t", task_of("t", 2))
    await configs.upsert(NewA2APushConfig(task_id="t", config=Secret({"url": "u"})))
    assert await tasks.delete("t") is True
    assert await tasks.delete("t") is False
    assert await tasks.find("t") is None
    assert (await tasks.list(), await configs.list(where=[column("task_id").eq("t"), column("user").eq("")])) == (
        [],
        [],
    )
    restored = await tasks.restore("t")
    assert restored.task == task_of("t", 2)
    assert [item.config for item in await configs.list(where=[column("task_id").eq("t"), column("user").eq("")])] == [
        Secret({"url": "u"})
    ]
    world.clock.advance(1)
    await tasks.delete("t")
    await tasks.save("t", task_of("t", 1))
    saved = await tasks.find("t")
    assert saved is not None
    assert saved.task == task_of("t", 1), "it contains nothing of the deleted task"
    assert await configs.list(where=[column("task_id").eq("t"), column("user").eq("")]) == []
    with raises(Conflict, saying="'t'", reason="id_taken"):
        await tasks.restore("t")
    world.clock.advance(1)
    await tasks.delete("t")
    assert (await tasks.restore("t")).task == task_of("t", 1), "the task that was deleted last"
    assert await tasks.purge("t") == 2
    assert await tasks.purge("t") == 0
    with raises(NotFound, noun="task", key="t"):
        await tasks.restore("t")


async def _a_task_belongs_to_the_session_of_its_context(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="c", user="ada")
    world.clock.advance(90)
    await tenant.a2a_tasks.save("t", task_of("t", 2), context_id="c", user="ada")
    await tenant.a2a_tasks.save("t", {"of": "bob"}, context_id="c", user="bob")
    await tenant.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config=Secret({"url": "u"}), user="ada"))
    used = await tenant.sessions.get(session.id)
    assert used.updated_at == from_us(world.clock.now_us()), "a saved task counts as use of its session"
    await tenant.sessions.delete(session.id)
    assert await tenant.a2a_tasks.find("t", user="ada") is None
    assert await tenant.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("ada")]) == []
    assert await tenant.a2a_tasks.find("t", user="bob") is not None
    await tenant.sessions.restore(session.id)
    restored = await tenant.a2a_tasks.find("t", user="ada")
    assert restored is not None
    assert restored.task == task_of("t", 2)
    assert len(await tenant.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("ada")])) == 1
    await tenant.sessions.purge(session.id)
    assert await tenant.a2a_tasks.find("t", user="ada") is None
    with raises(NotFound):
        await tenant.a2a_tasks.restore("t", user="ada")


@contract("concurrency")
async def concurrent_saves_leave_one_of_them(world: World) -> None:
    tasks = world.tenant().a2a_tasks

    def save(number: int) -> Any:
        return lambda: tasks.save("t", task_of("t", number, number), state=str(number))

    await world.together(*(save(number) for number in range(1, 9)))
    saved = await tasks.find("t")
    assert saved is not None
    assert saved.task == task_of("t", int(saved.state), int(saved.state)), "never a mixture"


@contract()
async def tasks_are_listed_deleted_restored_and_belong_to_their_session(world: World) -> None:
    for part in (
        _tasks_are_listed_newest_state_first,
        _a_deleted_task_can_be_restored_until_its_id_is_taken,
        _a_task_belongs_to_the_session_of_its_context,
    ):
        await part(world, part.__name__)
