"""The actor context: stated once around a block of code, and used as default for new rows."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.core.actor_context import ActorContext
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


@contract()
async def a_new_session_gets_the_acting_user_and_agent(world: World) -> None:
    acme = world.tenant()
    with acme.acting(user="ada", agent="helper"):
        created = await acme.sessions.create(key="k")
        other = await acme.sessions.upsert("l")
    assert (created.user, created.agent) == ("ada", "helper")
    assert (other.user, other.agent) == ("ada", "helper")
    outside = await acme.sessions.create(key="k")
    assert (outside.user, outside.agent) == ("", "")
    assert (await acme.sessions.upsert("l")).id != other.id


@contract()
async def arguments_override_the_actor_context(world: World) -> None:
    acme = world.tenant()
    with acme.acting(user="ada", agent="helper"):
        created = await acme.sessions.create(user="bob")
        assert (created.user, created.agent) == ("bob", "helper")
        created = await acme.sessions.upsert("k", agent="other")
        assert (created.user, created.agent) == ("ada", "other")
        with raises(InvalidInput):
            await acme.sessions.create(user="")
        with raises(InvalidInput):
            await acme.sessions.upsert("k", agent="")


@contract()
async def upsert_does_not_replace_the_agent_by_the_acting_one(world: World) -> None:
    acme = world.tenant()
    first = await acme.sessions.create(key="k", user="ada", agent="first")
    with acme.acting(user="ada", agent="second"):
        again = await acme.sessions.upsert("k", metadata={"n": 1})
        assert (again.id, again.agent, again.metadata) == (first.id, "first", {"n": 1})
        assert (await acme.sessions.upsert("k", agent="third")).agent == "third"


@contract()
async def a_repeated_create_compares_the_acting_user(world: World) -> None:
    acme = world.tenant()
    with acme.acting(user="ada"):
        first = await acme.sessions.create(key="k", id=uuid_of("s"))
        assert await acme.sessions.create(key="k", id=uuid_of("s")) == first
        with raises(AlreadyExists, noun="session", key="k", saying="'ada'"):
            await acme.sessions.create(key="k")
    with acme.acting(user="bob"), raises(Conflict):
        await acme.sessions.create(key="k", id=uuid_of("s"))


@contract()
async def lookups_and_filters_ignore_the_actor_context(world: World) -> None:
    acme = world.tenant()
    mine = await acme.sessions.create(key="k", user="ada", agent="helper")
    theirs = await acme.sessions.create(key="l", user="bob", agent="other")
    await acme.messages.append(theirs.id, role="user", content="x")
    with acme.acting(user="ada", agent="helper", sender="ada", channel="telegram"):
        assert {session.id for session in await acme.sessions.list()} == {mine.id, theirs.id}
        assert await acme.sessions.count() == 2
        assert await acme.sessions.find("l") == await acme.sessions.get(theirs.id)
        assert len(await acme.messages.list(theirs.id)) == 1
        changed = await acme.sessions.update(theirs.id, metadata={"n": 1})
        assert (changed.user, changed.agent) == ("bob", "other")


@contract()
async def messages_ignore_the_actor_context(world: World) -> None:
    """Any caller may repeat an append, so the stored message must not depend on the actor."""
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user", content="x", metadata={"n": 1}, id=uuid_of("m"))
    with acme.acting(user="ada", sender="386246614"):
        first = await append()
    assert first.metadata == {"n": 1}
    assert await append() == first
    with acme.acting(user="bob", sender="another"):
        assert await append() == first
        many = [NewMessage(role="user", content="y", metadata={"sender": acme.acting_now().sender})]
        assert (await acme.messages.append_many(session.id, many))[0].metadata == {"sender": "another"}


@contract()
async def feedback_gets_the_acting_user(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    message = await acme.messages.append(session.id, role="user", content="x")
    with acme.acting(user="ada"):
        assert (await acme.feedback.create(message.id, is_positive=True)).user == "ada"
        with raises(AlreadyExists, noun="feedback", key=message.id, saying="'ada'"):
            await acme.feedback.create(message.id, is_positive=False)
        assert (await acme.feedback.upsert(message.id, is_positive=False)).user == "ada"
        assert (await acme.feedback.upsert(message.id, user="bob", is_positive=True)).user == "bob"
        assert len(await acme.feedback.list()) == 2
    with raises(InvalidInput, field="user"):
        await acme.feedback.upsert(message.id, is_positive=True)
    assert (await acme.feedback.create(message.id, is_positive=True)).user == ""


@contract()
async def a_buffer_gets_the_acting_user_and_agent(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(key="there", user="ada", agent="first")
    with acme.acting(user="ada", agent="helper"):
        fresh = await acme.sessions.buffered("new")
        assert (fresh.user, fresh.agent) == ("ada", "helper")
        old = await acme.sessions.buffered("there")
        assert (old.id, old.agent) == (session.id, "first")
        assert (await acme.sessions.buffered("given", user="bob", agent="other")).agent == "other"
    await fresh.save()
    assert (await acme.sessions.get(fresh.id)).agent == "helper"
    anonymous = await acme.sessions.buffered("new")
    assert (anonymous.user, anonymous.agent) == ("", "")


@contract()
async def a_nested_block_overrides_only_its_own_fields(world: World) -> None:
    acme = world.tenant()
    assert acme.acting_now() == ActorContext()
    with acme.acting(user="ada", agent="helper", agent_type="open", channel="telegram", chat="-100", peer_kind="group"):
        outer = acme.acting_now()
        with acme.acting(agent="other", sender="7") as inner:
            assert inner == acme.acting_now()
            assert (inner.user, inner.agent, inner.sender, inner.channel) == ("ada", "other", "7", "telegram")
            assert (inner.agent_type, inner.chat, inner.peer_kind) == ("open", "-100", "group")
            created = await acme.sessions.create()
            with acme.acting():
                assert acme.acting_now() == inner
        assert acme.acting_now() == outer
        assert (outer.agent, outer.sender) == ("helper", None)
        assert (created.user, created.agent) == ("ada", "other")
    assert acme.acting_now() == ActorContext()


@contract()
async def a_block_works_with_async_with_and_ends_after_an_error(world: World) -> None:
    acme = world.tenant()
    async with acme.acting(user="ada") as who:
        assert who == acme.acting_now() == ActorContext(user="ada")
        assert (await acme.sessions.create()).user == "ada"
    assert acme.acting_now() == ActorContext()
    with raises(KeyError), acme.acting(user="ada"):
        _fail_inside()
    assert acme.acting_now() == ActorContext()
    with raises(KeyError):
        async with acme.acting(user="ada"):
            _fail_inside()
    assert acme.acting_now() == ActorContext()
    assert (await acme.sessions.create()).user == ""


def _fail_inside() -> None:
    raise KeyError


@contract()
async def a_context_belongs_to_one_tenant(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    with acme.acting(user="ada"):
        assert zenith.acting_now() == ActorContext()
        assert (await zenith.sessions.create()).user == ""
        assert (await world.tenant("acme").sessions.create()).user == "ada", "another handle of the same tenant"
        with zenith.acting(user="zoe", agent="z"):
            assert (await acme.sessions.create()).user == "ada"
            assert acme.acting_now() == ActorContext(user="ada")
            assert (await zenith.sessions.create()).user == "zoe"
            with acme.acting(agent="a"):
                assert acme.acting_now() == ActorContext(user="ada", agent="a")
                assert zenith.acting_now() == ActorContext(user="zoe", agent="z")
        assert zenith.acting_now() == ActorContext()


@contract(limits=Limits(name_bytes=10))
async def values_of_a_context_must_be_valid_names(world: World) -> None:
    acme = world.tenant()
    wrong: list[Any] = ["", 7, b"x", True]
    for name in ("user", "agent", "sender", "channel", "chat"):
        for value in wrong:
            with raises(InvalidInput, field=name):
                acme.acting(**{name: value})
        with raises(LimitExceeded, field=name, limit="name_bytes"):
            too_long: dict[str, Any] = {name: "x" * 11}
            acme.acting(**too_long)
    for name in ("agent_type", "peer_kind"):
        for value in (*wrong, "else"):
            with raises(InvalidInput, field=name):
                acme.acting(**{name: value})
    hostile = "\x00\ud800'"
    with acme.acting(user=hostile, agent=hostile):
        created = await acme.sessions.create()
    assert (created.user, created.agent) == (hostile, hostile)


async def _as(acme: AsyncTenantHandle, user: str) -> list[Session]:
    """Create several sessions, each inside its own block."""
    created: list[Session] = []
    for number in range(5):
        with acme.acting(user=user, agent=f"{user} {number}"):
            created.append(await acme.sessions.create(key=f"{user} {number}"))
    return created


@contract("concurrency")
async def concurrent_blocks_do_not_affect_each_other(world: World) -> None:
    acme = world.tenant()
    users = [f"user {number}" for number in range(16)]
    results = await world.together(*[partial(_as, acme, user) for user in users])
    for user, created in zip(users, results, strict=True):
        assert isinstance(created, list), created
        assert [(item.user, item.agent) for item in created] == [(user, f"{user} {number}") for number in range(5)]
    assert acme.acting_now() == ActorContext()
