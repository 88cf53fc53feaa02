"""Durability: completed writes survive reopening, and a closed handle raises."""

from __future__ import annotations

from holdfast.errors import Closed
from holdfast.stores.conversation.new_entries import NewMessage
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, everything, raises


@contract("reopening", "tenants")
async def completed_writes_survive_reopening(world: World) -> None:
    acme = world.tenant()
    one = await acme.sessions.create(key="one", metadata={text: text for text in TEXTS})
    two = await acme.sessions.upsert("two", user="ada")
    await acme.messages.append(one.id, role="user", content="hi", token_count=3)
    created = await acme.messages.append_many(two.id, [NewMessage(role="user", content=text) for text in TEXTS])
    await acme.messages.update(created[0].id, content="changed")
    await acme.messages.delete(two.id, [created[1].id])
    await acme.sessions.delete(one.id)
    await world.tenants.update("acme", metadata={"n": 1})
    before, tenant = await everything(acme), await world.tenants.get("acme")
    await world.reopen()
    acme = world.tenant()
    assert await everything(acme) == before
    assert await world.tenants.get("acme") == tenant
    assert (await acme.sessions.restore(one.id)).message_count == 1


@contract("reopening", "tenants")
async def a_closed_handle_raises(world: World) -> None:
    acme, tenants = world.tenant(), world.tenants
    session = await acme.sessions.create()
    await world.reopen()
    for call in (
        lambda: acme.sessions.get(session.id),
        acme.sessions.create,
        lambda: acme.messages.append(session.id, role="user", content="x"),
        lambda: acme.messages.list(session.id),
        tenants.list,
        lambda: tenants.create("new"),
    ):
        with raises(Closed):
            await call()
    assert await world.tenant().sessions.list() == [session]
