"""Keys that several sessions of a user share, and the session that each key finds."""

from __future__ import annotations

from holdfast.core.filters import column
from holdfast.errors import AlreadyExists, Conflict, InvalidInput
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


@contract()
async def several_sessions_share_a_key_and_find_returns_the_newest(world: World) -> None:
    acme = world.tenant()
    sessions = [await acme.sessions.create(key="k", user="ada", unique=False) for _ in range(3)]
    assert [session.is_unique for session in sessions] == [False] * 3
    assert await acme.sessions.find("k", user="ada") == await acme.sessions.find("k") == sessions[-1]
    assert {session.id for session in await acme.sessions.list(where=[column("key").eq("k")])} == {
        session.id for session in sessions
    }
    await acme.sessions.delete(sessions[-1].id)
    assert await acme.sessions.find("k", user="ada") == sessions[1]
    await acme.sessions.create(key="k", user="bob", unique=False)
    with raises(Conflict, reason="ambiguous"):
        await acme.sessions.find("k")


@contract()
async def a_session_with_an_exclusive_key_is_found_before_those_that_share_it(world: World) -> None:
    acme = world.tenant()
    shared = await acme.sessions.create(key="k", user="ada", unique=False)
    own = await acme.sessions.upsert("k", user="ada")
    later = await acme.sessions.create(key="k", user="ada", unique=False)
    assert own.is_unique
    assert own.id not in (shared.id, later.id)
    assert await acme.sessions.find("k", user="ada") == own
    assert (await acme.sessions.upsert("k", user="ada", metadata={"a": 1})).id == own.id
    with raises(AlreadyExists, noun="session", key="k"):
        await acme.sessions.create(key="k", user="ada")
    await acme.sessions.delete(own.id)
    again = await acme.sessions.create(key="k", user="ada")
    with raises(Conflict, reason="key_taken"):
        await acme.sessions.restore(own.id)
    await acme.sessions.purge(again.id)
    assert (await acme.sessions.restore(own.id)).is_unique


@contract()
async def a_repeated_create_must_have_the_same_unique_argument(world: World) -> None:
    acme, id = world.tenant(), uuid_of("mine")
    first = await acme.sessions.create(key="k", id=id, unique=False)
    assert await acme.sessions.create(key="k", id=id, unique=False) == first
    with raises(Conflict, reason="id_taken"):
        await acme.sessions.create(key="k", id=id)
    with raises(InvalidInput, field="unique"):
        await acme.sessions.create(key="k", unique="no")  # type: ignore[arg-type]
