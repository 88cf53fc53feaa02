"""Push configurations: per user and task. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from holdfast.core.crypto import Secret
from holdfast.core.filters import column
from holdfast.stores.execution.a2a_push_configs import NewA2APushConfig
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World


@contract()
async def push_configurations_are_stored_for_a_task_and_cleared(world: World) -> None:
    configs = world.tenant().a2a_push_configs
    created = await configs.upsert(NewA2APushConfig("t", Secret({"url": "https://example.test", "token": None})))
    assert (created.id, created.task_id, created.user) == ("t", "t", ""), "without an id, it gets the id of the task"
    world.clock.advance(1)
    other = await configs.upsert(NewA2APushConfig("t", Secret({}), id="o"))
    again = await configs.upsert(NewA2APushConfig("t", Secret({"url": "changed"})))
    assert (again.config, again.created_at) == (Secret({"url": "changed"}), created.created_at)
    of_user = await configs.upsert(NewA2APushConfig("t", Secret({}), user="ada"))
    assert await configs.list(where=[column("task_id").eq("t"), column("user").eq("")]) == [again, other]
    assert await configs.list(where=[column("task_id").eq("t")]) == [again, other, of_user]
    assert await configs.clear("t", id="o") == 1
    assert await configs.clear("t", id="o") == 0
    assert await configs.clear("t") == 1
    assert await configs.list() == [of_user]
    assert await configs.clear("t", user="ada") == 1
