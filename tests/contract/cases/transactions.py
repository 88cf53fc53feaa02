"""Joined transactions: our writes commit and roll back with the caller's transaction."""

from __future__ import annotations

from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, NotFound
from holdfast.stores.conversation.new_entries import NewMessage
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, everything, raises, uuid_of


async def notes(world: World) -> list[str]:
    """Return the caller's rows in its own table."""
    return [row[0] for row in await world.caller.execute("SELECT note FROM callers_notes ORDER BY note")]


@contract("joining")
async def committed_writes_are_visible_to_other_connections(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(metadata={text: text for text in TEXTS})
    message = await acme.messages.append(session.id, role="user", content="hi")
    await world.caller.commit()
    outside = await world.outside()
    assert await everything(outside) == [((await outside.sessions.get(session.id)), [message])]
    assert (await outside.sessions.get(session.id)).message_count == 1


@contract("joining")
async def rolled_back_writes_leave_no_trace(world: World) -> None:
    acme = world.tenant()
    kept = await acme.sessions.create(key="kept", id=uuid_of("kept"))
    message = await acme.messages.append(kept.id, role="user", content="kept", id=uuid_of("m"))
    await world.caller.commit()
    await world.caller.begin()
    await acme.messages.append(kept.id, role="user", content="undone")
    await acme.messages.update(message.id, content="undone", token_count=9)
    await acme.sessions.create(key="undone", id=uuid_of("undone"))
    await acme.sessions.delete(kept.id)
    await world.tenant("undone").sessions.create()
    await world.caller.rollback()
    outside = await world.outside()
    before = [(await outside.sessions.get(kept.id), [message])]
    assert await everything(outside) == before
    assert await (await world.outside("undone")).sessions.list() == []
    await world.caller.begin()
    assert (await acme.messages.append(kept.id, role="user", content="again")).seq == 2
    assert (await acme.sessions.create(key="undone", id=uuid_of("undone"))).id == uuid_of("undone")


@contract("joining")
async def uncommitted_writes_are_invisible_to_other_connections(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content="hi")
    assert [session.id for session in await acme.sessions.list()] == [session.id]
    outside = await world.outside()
    assert await outside.sessions.list() == []
    with raises(NotFound):
        await outside.messages.list(session.id)


@contract("joining")
async def the_callers_statements_and_ours_are_one_transaction(world: World) -> None:
    acme = world.tenant()
    await world.caller.execute("INSERT INTO callers_notes VALUES ('before')")
    session = await acme.sessions.create()
    await world.caller.execute("INSERT INTO callers_notes VALUES ('between')")
    await acme.messages.append(session.id, role="user", content="hi")
    assert await notes(world) == ["before", "between"]
    rows = await world.caller.execute("SELECT COUNT(*) FROM messages WHERE tenant_id = 'acme'")
    assert rows[0][0] == 1
    # The caller rolls back now, and the leg checks that neither its rows nor ours exist.


@contract("joining")
async def a_rolled_back_savepoint_undoes_only_its_own_writes(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    outer = await acme.messages.append(session.id, role="user", content="outer")
    await world.caller.execute("SAVEPOINT callers_own")
    await acme.messages.append(session.id, role="user", content="inner")
    await acme.sessions.create(key="inner")
    await world.caller.execute("ROLLBACK TO SAVEPOINT callers_own")
    await world.caller.execute("RELEASE SAVEPOINT callers_own")
    assert await everything(acme) == [(await acme.sessions.get(session.id), [outer])]
    assert (await acme.sessions.get(session.id)).message_count == 1
    after = await acme.messages.append(session.id, role="user", content="after")
    assert after.seq == 2
    await world.caller.commit()
    assert [*await (await world.outside()).messages.list(session.id)] == [outer, after]


@contract("joining")
async def a_failed_call_does_not_undo_the_callers_work(world: World) -> None:
    acme = world.tenant()
    await world.caller.execute("INSERT INTO callers_notes VALUES ('mine')")
    session = await acme.sessions.create(key="k")
    message = await acme.messages.append(session.id, role="user", content="hi", id=uuid_of("m"))
    removed = await acme.sessions.create(key="gone")
    await acme.sessions.delete(removed.id)
    await acme.sessions.create(key="gone")
    before = await everything(acme)
    with raises(AlreadyExists):
        await acme.sessions.create(key="k")
    with raises(Conflict):
        await acme.messages.append(session.id, role="user", content="other", id=uuid_of("m"))
    with raises(Conflict):
        await acme.messages.append_many(
            session.id, [NewMessage(role="user", content="new"), NewMessage(role="user", content="x", id=uuid_of("m"))]
        )
    with raises(Conflict):
        await acme.sessions.restore(removed.id)
    with raises(NotFound):
        await acme.messages.append(uuid_of("missing"), role="user", content="x")
    with raises(InvalidFilter):
        await acme.sessions.list(cursor="garbage")
    assert await everything(acme) == before
    assert await notes(world) == ["mine"]
    assert await acme.messages.append(session.id, role="user", content="hi", id=uuid_of("m")) == message
    await world.caller.execute("INSERT INTO callers_notes VALUES ('still works')")
    assert await notes(world) == ["mine", "still works"]


@contract("joining")
async def several_tenants_share_one_transaction(world: World) -> None:
    acme, zenith = world.tenant("acme"), world.tenant("zenith")
    mine, theirs = await acme.sessions.create(key="k"), await zenith.sessions.create(key="k")
    await world.caller.commit()
    assert await (await world.outside("acme")).sessions.list() == [mine]
    assert await (await world.outside("zenith")).sessions.list() == [theirs]
