"""Tenants: their list, and their isolation from each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import NewAgent
from holdfast.clock import from_us
from holdfast.core.paging import encode_cursor
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.limits import Limits
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import World, everything, raises, uuid_of


async def names(world: World) -> list[str]:
    """The names of all tenants, in the order of the list."""
    return [tenant.id for tenant in await world.tenants.list()]


@contract("tenants")
async def a_new_tenant_has_the_given_metadata(world: World) -> None:
    before = await names(world)
    made = await world.tenants.create("acme", metadata={"plan": "pro"})
    assert (made.id, made.metadata) == ("acme", {"plan": "pro"})
    assert made.created_at == made.updated_at == from_us(world.clock.now_us())
    assert await world.tenants.get("acme") == made
    assert (await world.tenants.create("plain")).metadata == {}
    assert sorted([*before, "acme", "plain"]) == await names(world)


@contract("tenants")
async def a_tenant_is_created_once(world: World) -> None:
    made = await world.tenants.create("acme", metadata={"n": 1})
    with raises(AlreadyExists):
        await world.tenants.create("acme", metadata={"n": 2})
    assert await world.tenants.get("acme") == made
    await world.tenants.create("Acme")
    await world.tenants.create("acme ")


@contract("tenants")
async def a_tenant_is_created_by_its_first_session(world: World) -> None:
    before = await names(world)
    acme = world.tenant("acme")
    assert await acme.sessions.list() == []
    with raises(NotFound):
        await acme.sessions.get(uuid_of("absent"))
    assert await names(world) == before
    await acme.sessions.create()
    made = await world.tenants.get("acme")
    assert (made.metadata, made.created_at) == ({}, from_us(world.clock.now_us()))
    world.clock.advance(60)
    await acme.sessions.create()
    await world.tenant("zenith").sessions.upsert("k")
    assert await world.tenants.get("acme") == made
    assert sorted([*before, "acme", "zenith"]) == await names(world)
    with raises(AlreadyExists):
        await world.tenants.create("acme")


@contract("tenants")
async def a_registered_tenant_keeps_its_metadata(world: World) -> None:
    made = await world.tenants.create("acme", metadata={"plan": "pro"})
    world.clock.advance(60)
    await world.tenant("acme").sessions.create()
    assert await world.tenants.get("acme") == made


@contract("tenants")
async def update_replaces_the_metadata(world: World) -> None:
    made = await world.tenants.create("acme", metadata={"n": 1, "m": 2})
    world.clock.advance(60)
    changed = await world.tenants.update("acme", metadata={"n": 2})
    assert (changed.id, changed.metadata, changed.created_at) == ("acme", {"n": 2}, made.created_at)
    assert changed.updated_at == from_us(world.clock.now_us())
    assert await world.tenants.get("acme") == changed
    assert (await world.tenants.update("acme", metadata={})).metadata == {}
    with raises(NotFound):
        await world.tenants.update("absent", metadata={})
    with raises(InvalidText):
        await world.tenants.update("acme", metadata={"v": float("nan")})
    wrong: list[Any] = [["x"], "x", 7]
    for metadata in wrong:
        with raises(InvalidInput):
            await world.tenants.update("acme", metadata=metadata)


@contract("tenants")
async def the_name_of_a_tenant_is_text_and_not_empty(world: World) -> None:
    wrong: list[Any] = ["", None, 7, b"bytes", ["acme"]]
    for name in wrong:
        for call in (world.tenants.create, world.tenants.get, world.tenants.delete):
            with raises(InvalidInput):
                await call(name)
        with raises(InvalidInput):
            await world.tenants.update(name, metadata={})
        with raises(InvalidInput):
            world.tenant(name)


@contract("tenants", limits=Limits(tenant_bytes=8, metadata_bytes=20))
async def a_tenant_has_its_limits(world: World) -> None:
    for fits in ("x" * 8, "漢" * 2, "\U0001f600" * 2):
        await world.tenants.create(fits)
    for long in ("x" * 9, "漢" * 3, "\U0001f600" * 2 + "x"):
        for call in (world.tenants.create, world.tenants.get, world.tenants.delete):
            with raises(LimitExceeded, limit="tenant_bytes", maximum=8):
                await call(long)
    with raises(LimitExceeded, limit="metadata_bytes", maximum=20):
        await world.tenants.create("big", metadata={"k": "x" * 13})


@contract("tenants")
async def an_unknown_tenant_is_not_found(world: World) -> None:
    for call in (world.tenants.get, world.tenants.delete):
        with raises(NotFound, noun="tenant", key="absent"):
            await call("absent")


@contract("tenants")
async def any_text_names_a_tenant(world: World) -> None:
    before = await names(world)
    for text in TEXTS:
        assert (await world.tenants.create(text, metadata={text: text})).id == text
    for number, text in enumerate(TEXTS):
        assert await world.tenants.get(text) == await world.tenants.update(text, metadata={text: text})
        made = await world.tenant(text).sessions.create(key=str(number))
        assert await world.tenant(text).sessions.list() == [made]
    assert {*await names(world)} == {*before, *TEXTS}


@contract("tenants")
async def pages_of_every_size_make_the_whole_list(world: World) -> None:
    for text in TEXTS[:12]:
        await world.tenants.create(text)
    whole = [*await world.tenants.list()]
    for limit in (1, 2, 5, len(whole), len(whole) + 1):
        page = await world.tenants.list(limit=limit)
        pages = [*page]
        while page.next is not None:
            assert len(page) == limit
            page = await world.tenants.list(limit=limit, cursor=page.next)
            pages += page
        assert pages == whole


@contract("tenants", limits=Limits(page_rows=3, list_rows=4))
async def a_page_and_a_list_have_their_limits(world: World) -> None:
    for number in range(4 - len(await names(world))):
        await world.tenants.create(f"t{number}")
    assert len(await world.tenants.list()) == 4
    assert len(await world.tenants.list(limit=3)) == 3
    with raises(LimitExceeded, limit="page_rows", maximum=3):
        await world.tenants.list(limit=4)
    wrong: list[Any] = [0, -1, True, "3", 1.5]
    for limit in wrong:
        with raises(InvalidInput):
            await world.tenants.list(limit=limit)
    await world.tenants.create("one too many")
    with raises(LimitExceeded, limit="list_rows", maximum=4):
        await world.tenants.list()


@contract("tenants")
async def only_cursors_of_this_list_are_accepted(world: World) -> None:
    acme = world.tenant("acme")
    await acme.sessions.create()
    await acme.sessions.create()
    foreign = (await acme.sessions.list(limit=1)).next
    assert foreign is not None
    for cursor in [*GARBAGE_CURSORS, foreign, encode_cursor("tenants", 1), encode_cursor("tenants", "a", "b")]:
        with raises(InvalidFilter):
            await world.tenants.list(limit=1, cursor=cursor)


@contract("tenants")
async def a_tenant_with_sessions_is_not_deleted_by_mistake(world: World) -> None:
    await world.tenants.create("empty")
    await world.tenants.delete("empty")
    with raises(NotFound):
        await world.tenants.get("empty")
    acme = world.tenant("acme")
    made = await acme.sessions.create()
    with raises(Conflict):
        await world.tenants.delete("acme")
    await acme.sessions.delete(made.id)
    with raises(Conflict):
        await world.tenants.delete("acme")
    assert (await acme.sessions.restore(made.id)).id == made.id
    await acme.sessions.purge(made.id)
    await world.tenants.delete("acme")
    with raises(NotFound):
        await world.tenants.get("acme")


@contract("tenants")
async def a_reused_tenant_name_finds_no_old_data(world: World) -> None:
    """Data worth keeping prevents a deletion without ``cascade``; all other rows are deleted with the tenant."""
    acme = world.tenant("acme")
    keeping: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: acme.checkpoints.put("thread", id="1", state=b"the private state"),
        lambda: acme.flows.save("f", method="m", state={"secret": 1}),
        lambda: acme.objects.put([b"body"], holder="another"),
        lambda: acme.agents.create(NewAgent("helper")),
    )
    for make in keeping:
        await make()
        with raises(Conflict, reason="not_empty"):
            await world.tenants.delete("acme")
        await world.tenants.delete("acme", cascade=True)
    await acme.activity.record("secret.read", actor="ada")
    await world.tenants.delete("acme")
    await acme.sessions.create()
    assert await acme.activity.list() == []


@contract("tenants")
async def cascade_removes_everything_of_that_tenant_and_nothing_else(world: World) -> None:
    acme, zenith = world.tenant("acme"), world.tenant("zenith")
    for handle in (acme, zenith):
        for key in ("live", "gone"):
            made = await handle.sessions.create(key=key, id=uuid_of(key))
            await handle.messages.append(made.id, role="user", content="x", id=uuid_of(f"message {key}"))
        await handle.sessions.delete(uuid_of("gone"))
    theirs = await everything(zenith)
    await world.tenants.delete("acme", cascade=True)
    with raises(NotFound):
        await world.tenants.get("acme")
    assert await everything(acme) == []
    with raises(NotFound):
        await acme.messages.get(uuid_of("message live"))
    assert await everything(zenith) == theirs
    assert (await world.tenants.get("zenith")).id == "zenith"
    again = await acme.sessions.create(key="live", id=uuid_of("gone"))
    assert again.message_count == 0
    with raises(NotFound):
        await world.tenants.delete("absent", cascade=True)
