"""Push configurations: kept as they were given, each user's by themselves."""

from __future__ import annotations

from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World


async def _a_push_configuration_comes_back_as_it_was(world: World, name: str) -> None:
    configs = world.tenant(name).a2a_push_configs
    config = {"url": "https://example.test", "token": None, "texts": list(TEXTS)}
    made = await configs.save("t", config)
    assert (made.id, made.task_id, made.config) == ("t", "t", config), "without an id, it is the task's"
    assert await configs.list("t") == [made]
    world.clock.advance(1)
    other = await configs.save("t", {"url": "other"}, id="o")
    again = await configs.save("t", {"url": "changed"}, id="t")
    assert (again.config, again.created_at) == ({"url": "changed"}, made.created_at)
    assert await configs.list("t") == [again, other], "the one made first first"
    assert await configs.list("u") == []


async def _push_configurations_are_removed_one_by_one_or_all(world: World, name: str) -> None:
    configs = world.tenant(name).a2a_push_configs
    for id in ("a", "b", "c"):
        await configs.save("t", {}, id=id)
    assert await configs.delete("t", id="b") == 1
    assert await configs.delete("t", id="b") == 0
    assert sorted(each.id for each in await configs.list("t")) == ["a", "c"]
    assert await configs.delete("t") == 2
    assert await configs.list("t") == []


async def _whoever_tells_sees_the_push_configurations_of_everybody_and_a_user_their_own(
    world: World, name: str
) -> None:
    configs = world.tenant(name).a2a_push_configs
    for user in (None, "ada", "bob"):
        await configs.save("t", {"of": user}, user=user)
    assert [each.config["of"] for each in await configs.list("t", user="ada")] == ["ada"]
    assert await configs.delete("t", user="ada") == 1
    assert sorted(each.user for each in await configs.of_everybody("t")) == ["", "bob"]
    assert await world.tenant("zenith").a2a_push_configs.of_everybody("t") == []


@contract()
async def push_configurations_are_kept_and_each_users_own(world: World) -> None:
    for part in (
        _a_push_configuration_comes_back_as_it_was,
        _push_configurations_are_removed_one_by_one_or_all,
        _whoever_tells_sees_the_push_configurations_of_everybody_and_a_user_their_own,
    ):
        await part(world, part.__name__)
