"""Profiles: the first contact of a user with an agent, later contacts, and the users of an agent."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast import NewAgent
from holdfast.clock import from_us
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.agents.agents import AgentChange
from holdfast.stores.agents.profiles import NewProfile, Profile, ProfileChange, Visit
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.contract.cases.world import World, flat, raises


@contract()
async def the_first_contact_creates_a_profile_and_its_workspace_stays(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada"))
    first = await acme.profiles.get_or_create("ada", "u1", workspace="/srv/ws/", channel="telegram")
    now = from_us(world.clock.now_us())
    assert first == Visit(Profile("ada", "u1", "/srv/ws/telegram", {}, 1, now, now, now), created=True)
    world.clock.advance(60)
    again = await acme.profiles.get_or_create("ada", "u1", workspace="/other", channel="slack")
    seen = from_us(world.clock.now_us())
    assert again == Visit(Profile("ada", "u1", "/srv/ws/telegram", {}, 1, now, now, seen), created=False)
    assert await acme.profiles.get("ada", "u1") == again.profile
    assert (await acme.profiles.get_or_create("ada", "u2", channel="slack")).profile.workspace == ""
    assert (await acme.profiles.get_or_create("ada", "u3", workspace="ws")).profile.workspace == "ws"
    changed = await acme.profiles.update("ada", "u2", change=ProfileChange(workspace="/late", metadata={"a": 1}))
    merged = await acme.profiles.update("ada", "u2", change=ProfileChange(metadata={"b": 2}), version=changed.version)
    assert (merged.workspace, merged.metadata, merged.version) == ("/late", {"a": 1, "b": 2}, 3)
    assert (await acme.profiles.get_or_create("ada", "u2")).profile.metadata == {"a": 1, "b": 2}
    await acme.profiles.create(NewProfile("ada", "u4", workspace="/given"))
    assert not (await acme.profiles.get_or_create("ada", "u4")).created
    await acme.profiles.delete("ada", "u1")
    assert (await acme.profiles.get_or_create("ada", "u1")).created
    before = await acme.profiles.users("ada")
    await acme.agents.delete("ada")
    assert await acme.profiles.list() == []
    for call in (acme.profiles.users, partial(acme.profiles.get_or_create, user="u1")):
        with raises(NotFound, noun="agent", key="ada"):
            await call("ada")
    await acme.agents.restore("ada")
    assert await acme.profiles.users("ada") == before


@contract()
async def a_contact_with_an_unknown_agent_or_an_unsafe_channel_is_refused(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada"))
    await world.tenant("zenith").agents.create(NewAgent("zoe"))
    for agent in ("unknown", "zoe"):
        with raises(NotFound, noun="agent", key=agent):
            await acme.profiles.get_or_create(agent, "u1")
        with raises(NotFound, noun="agent", key=agent):
            await acme.profiles.users(agent)
    wrong: list[Any] = ["..", ".", "a/b", "a\\b", "a\x00", 7, None]
    for channel in wrong:
        with raises(InvalidInput, field="channel"):
            await acme.profiles.get_or_create("ada", "u1", workspace="/ws", channel=channel)
    arguments: list[dict[str, Any]] = [{"user": ""}, {"user": 7}, {"user": "u1", "workspace": 7}]
    for wrong_arguments in arguments:
        with raises(InvalidInput):
            await acme.profiles.get_or_create("ada", **wrong_arguments)
    assert await acme.profiles.count() == 0


@contract()
async def a_new_user_gets_context_files_in_the_same_transaction(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada"))
    await acme.context_files.set("ada", "BOOTSTRAP.md", "hello")
    assert (await acme.profiles.get_or_create("ada", "u1", seed=True)).created
    assert (await acme.context_files.get("ada", "BOOTSTRAP.md", user="u1")).user == "u1"
    await acme.context_files.delete("ada", "BOOTSTRAP.md", user="u1")
    await acme.profiles.get_or_create("ada", "u1", seed=True)
    assert (await acme.context_files.get("ada", "BOOTSTRAP.md", user="u1")).user == "", "only on the first contact"
    await acme.profiles.get_or_create("ada", "u2")
    assert (await acme.context_files.get("ada", "BOOTSTRAP.md", user="u2")).user == ""


@contract(limits=Limits(list_rows=4))
async def the_users_of_an_agent_are_listed_with_their_files(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada"))
    await acme.agents.create(NewAgent("bob"))
    assert await acme.profiles.users("ada") == []
    for place, user in enumerate(("u1", "u2", "u3", "u4")):
        world.clock.advance(place % 2)  # some were seen at the same time
        await acme.profiles.get_or_create("ada", user)
        await acme.profiles.get_or_create("bob", user)
    for file_name in ("SOUL.md", "USER.md"):
        await acme.context_files.set("ada", file_name, "template")
        await acme.context_files.set("ada", file_name, "mine", user="u2")
    world.clock.advance(1)
    await acme.profiles.get_or_create("ada", "u1")
    users = await acme.profiles.users("ada")
    assert [(item.profile.user, item.file_count) for item in users] == [("u1", 0), ("u4", 0), ("u3", 0), ("u2", 2)]
    assert [item.profile for item in users] == [await acme.profiles.get("ada", item.profile.user) for item in users]
    for limit in (1, 2, 3, 4, 5):
        pages = [await acme.profiles.users("ada", limit=limit)]
        while pages[-1].next is not None:
            pages.append(await acme.profiles.users("ada", limit=limit, cursor=pages[-1].next))
        assert flat(pages) == users, f"pages of {limit}"
    for cursor in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await acme.profiles.users("ada", cursor=cursor)
    await acme.agents.update("ada", change=AgentChange(agent_type="predefined"))
    assert {item.profile.user: item.file_count for item in await acme.profiles.users("ada")}["u2"] == 1
    await acme.profiles.get_or_create("ada", "u5")
    with raises(LimitExceeded, limit="list_rows"):
        await acme.profiles.users("ada")


@contract()
async def only_the_first_contact_is_logged(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada"))
    before = await acme.activity.count()
    with acme.acting(user="u1"):
        for _ in range(3):
            await acme.profiles.get_or_create("ada", "u1")
    assert await acme.activity.count() == before + 1
    (entry,) = await acme.activity.list(limit=1)
    assert (entry.action, entry.subject_id, entry.actor) == ("profile.created", "ada/u1", "u1")


@contract("concurrency")
async def of_concurrent_first_contacts_one_has_created_the_profile(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada"))
    await acme.context_files.set("ada", "SOUL.md", "hello")
    contact = partial(acme.profiles.get_or_create, "ada", "u1", seed=True)
    visits = await world.together(*[partial(contact, workspace=f"/{number}") for number in range(8)])
    assert all(isinstance(visit, Visit) for visit in visits), visits
    created = [visit.created for visit in visits if isinstance(visit, Visit)]
    assert sorted(created) == [False] * 7 + [True]
    assert len({visit.profile.workspace for visit in visits if isinstance(visit, Visit)}) == 1
    assert [file.user for file in await acme.context_files.list("ada", user="u1")] == ["u1"]
