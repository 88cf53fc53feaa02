"""Threads: rows stored under a session's key are deleted, restored and purged with the session."""

from __future__ import annotations

from typing import Any

from holdfast import NewA2APushConfig, column
from holdfast.core.crypto import Secret
from holdfast.errors import Conflict
from holdfast.stores.conversation.linked_threads import SERVICE_USER, thread_of
from holdfast.stores.memory.new_crew_memories import NewCrewMemory
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises


async def fill(tenant: AsyncTenantHandle, key: str, user: str, words: str) -> None:
    """Store a row under a key in every store."""
    place: dict[str, Any] = {"thread_id": thread_of(key), "user": user}
    await tenant.checkpoints.put(thread_of(key), id="1", state=words.encode(), pieces=[b"piece"], user=user)
    await tenant.flows.save("f", method="m", state={"words": words}, **place)
    await tenant.crew_memories.save([NewCrewMemory(id="i", content=words)], **place)


async def kept(tenant: AsyncTenantHandle, key: str, user: str) -> list[str | None]:
    """Return the rows that each store has under a key."""
    place: dict[str, Any] = {"thread_id": thread_of(key), "user": user}
    checkpoint = await tenant.checkpoints.find(thread_of(key), user=user)
    flow = await tenant.flows.find("f", **place)
    memories = await tenant.crew_memories.list(**place)
    return [
        None if checkpoint is None else checkpoint.state.decode(),
        None if flow is None else flow.state["words"],
        *(memory.content for memory in memories),
    ]


async def _rows_under_a_sessions_key_are_hidden_and_restored_with_it(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="k", user="ada")
    await fill(tenant, "k", "ada", "first")
    await fill(tenant, "k", "bob", "bob's")
    await fill(tenant, "other", "ada", "other")
    await tenant.sessions.delete(session.id)
    assert await kept(tenant, "k", "ada") == [None, None]
    assert await kept(tenant, "k", "bob") == ["bob's"] * 3
    assert await kept(tenant, "other", "ada") == ["other"] * 3
    await tenant.sessions.restore(session.id)
    assert await kept(tenant, "k", "ada") == ["first"] * 3
    await tenant.sessions.delete(session.id)
    await fill(tenant, "k", "ada", "second")
    assert await kept(tenant, "k", "ada") == ["second"] * 3, "the key can be used afresh"
    with raises(Conflict, reason="data_under_key"):
        await tenant.sessions.restore(session.id)
    other = await tenant.sessions.create(key="k", user="ada")
    with raises(Conflict, reason="key_taken"):
        await tenant.sessions.restore(session.id)
    assert await tenant.sessions.find("k", user="ada") == other
    assert await kept(tenant, "k", "ada") == ["second"] * 3
    await tenant.sessions.purge(session.id)
    assert await kept(tenant, "k", "ada") == ["second"] * 3


async def _purging_a_session_removes_the_rows_under_its_key(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="k", user="ada")
    await fill(tenant, "k", "ada", "first")
    await tenant.sessions.purge(session.id)
    assert await kept(tenant, "k", "ada") == [None, None]
    again = await tenant.sessions.create(key="k", user="ada")
    await fill(tenant, "k", "ada", "second")
    await tenant.sessions.delete(again.id)
    await tenant.sessions.purge(again.id)
    assert await kept(tenant, "k", "ada") == [None, None]
    assert await tenant.flows.list(user="ada") == []
    assert await tenant.checkpoints.list(user="ada") == []


async def _threads_with_other_names_are_not_touched(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="k", user="ada")
    await tenant.flows.save("f", method="m", state={}, thread_id="k", user="ada")
    await tenant.checkpoints.put("k", id="1", state=b"", user="ada")
    await tenant.sessions.purge(session.id)
    assert await tenant.flows.find("f", thread_id="k", user="ada") is not None
    assert await tenant.checkpoints.find("k", user="ada") is not None


async def _rows_of_the_service_user_under_the_key_are_hidden_with_the_session(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="k", user="ada")
    await fill(tenant, "k", "ada", "ada's")
    await fill(tenant, "k", SERVICE_USER, "the graph's")
    for user in ("ada", SERVICE_USER):
        await tenant.a2a_tasks.save("t", {"id": "t"}, context_id="k", user=user)
        await tenant.a2a_push_configs.upsert(
            NewA2APushConfig(task_id="t", config=Secret({"url": "u"}), id="c", user=user)
        )
    await tenant.sessions.delete(session.id)
    assert await kept(tenant, "k", "ada") == await kept(tenant, "k", SERVICE_USER) == [None, None]
    assert await tenant.a2a_tasks.find("t", user=SERVICE_USER) is None
    assert await tenant.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq(SERVICE_USER)]) == []
    await tenant.sessions.restore(session.id)
    assert await kept(tenant, "k", SERVICE_USER) == ["the graph's"] * 3
    assert await tenant.a2a_tasks.find("t", user=SERVICE_USER) is not None
    assert (
        len(await tenant.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq(SERVICE_USER)])) == 1
    )
    await tenant.sessions.purge(session.id)
    assert await kept(tenant, "k", SERVICE_USER) == [None, None]
    assert await tenant.checkpoints.list(user=SERVICE_USER) == []


async def _rows_that_another_session_of_the_key_may_own_stay(world: World, name: str) -> None:
    tenant = world.tenant(name)
    first = await tenant.sessions.create(key="k", user="ada")
    second = await tenant.sessions.create(key="k", user="bob")
    await fill(tenant, "k", SERVICE_USER, "shared")
    await tenant.sessions.delete(first.id)
    assert await kept(tenant, "k", SERVICE_USER) == ["shared"] * 3
    await tenant.sessions.delete(second.id)
    assert await kept(tenant, "k", SERVICE_USER) == [None, None]


async def _a_session_that_shares_its_key_owns_nothing_by_name(world: World, name: str) -> None:
    tenant = world.tenant(name)
    shared = await tenant.sessions.create(key="k", user="ada", unique=False)
    await fill(tenant, "k", "ada", "ada's")
    await tenant.sessions.delete(shared.id)
    assert await kept(tenant, "k", "ada") == ["ada's"] * 3
    await tenant.sessions.purge(shared.id)
    assert await kept(tenant, "k", "ada") == ["ada's"] * 3


@contract()
async def rows_under_a_sessions_key_follow_the_session(world: World) -> None:
    for part in (
        _rows_under_a_sessions_key_are_hidden_and_restored_with_it,
        _purging_a_session_removes_the_rows_under_its_key,
        _threads_with_other_names_are_not_touched,
        _rows_of_the_service_user_under_the_key_are_hidden_with_the_session,
        _rows_that_another_session_of_the_key_may_own_stay,
        _a_session_that_shares_its_key_owns_nothing_by_name,
    ):
        await part(world, part.__name__)
