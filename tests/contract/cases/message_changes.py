"""Messages: changing and deleting."""

from __future__ import annotations

from typing import Any

from holdfast.clock import from_us
from holdfast.errors import InvalidInput, NotFound
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


@contract()
async def update_changes_a_message_at_its_position(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content="first", token_count=1)
    created = await acme.messages.append(session.id, role="assistant", content="old", metadata={"n": 1}, token_count=10)
    await acme.messages.append(session.id, role="user", content="last", token_count=2)
    world.clock.advance(60)
    changed = await acme.messages.update(created.id, content="new", token_count=4, is_preserved=True, metadata={"m": 2})
    assert changed.content == [{"type": "text", "text": "new"}]
    assert (changed.token_count, changed.is_preserved, changed.metadata) == (4, True, {"m": 2})
    kept = (
        created.id,
        created.session_id,
        created.seq,
        created.kind,
        created.role,
        created.created_at,
        created.is_summary,
    )
    now = (
        changed.id,
        changed.session_id,
        changed.seq,
        changed.kind,
        changed.role,
        changed.created_at,
        changed.is_summary,
    )
    assert now == kept
    assert changed.updated_at == from_us(world.clock.now_us())
    assert [message.id for message in await acme.messages.list(session.id)][1] == created.id
    assert await acme.messages.get(created.id) == changed
    assert (await acme.sessions.get(session.id)).token_count == 7
    await check_counters(acme, session.id)


@contract()
async def update_keeps_fields_that_are_not_given(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append(
        session.id, role="user", content="c", metadata={"n": 1}, token_count=3, is_preserved=True
    )
    assert (await acme.messages.update(created.id, token_count=0)).content == created.content
    assert (await acme.messages.update(created.id, is_preserved=False)).metadata == {"n": 1}
    assert (await acme.messages.update(created.id, metadata={})).is_preserved is False
    changed = await acme.messages.update(created.id)
    assert (changed.content, changed.metadata, changed.token_count) == (created.content, {}, 0)
    other = await acme.messages.append(session.id, kind="x", content={"a": 1})
    assert (await acme.messages.update(other.id, content=[1, "any JSON"])).content == [1, "any JSON"]
    wrong: list[Any] = [7, {"type": "x"}, ["x"]]
    for content in wrong:
        with raises(InvalidInput):
            await acme.messages.update(created.id, content=content)
    with raises(InvalidInput):
        await acme.messages.update(created.id, token_count=-1)
    with raises(InvalidInput):
        await acme.messages.update(created.id, metadata=["x"])  # type: ignore[arg-type]
    assert await acme.messages.get(created.id) == changed
    await check_counters(acme, session.id)


@contract()
async def delete_removes_exactly_the_given_messages(world: World) -> None:
    acme = world.tenant()
    session, other = await acme.sessions.create(), await acme.sessions.create()
    messages = [await acme.messages.append(session.id, role="user", content=str(n), token_count=n) for n in range(6)]
    theirs = await acme.messages.append(other.id, role="user", content="theirs")
    assert await acme.messages.delete(session.id, []) == 0
    assert await acme.messages.delete(session.id, [uuid_of("missing"), theirs.id]) == 0
    assert await acme.messages.list(other.id) == [theirs]
    world.clock.advance(1)
    ids = [messages[1].id, messages[4].id.upper(), messages[1].id, theirs.id]
    assert await acme.messages.delete(session.id, ids) == 2
    assert await acme.messages.list(session.id) == [messages[n] for n in (0, 2, 3, 5)]
    await check_counters(acme, session.id)
    await check_counters(acme, other.id)
    assert (await acme.sessions.get(session.id)).updated_at == from_us(world.clock.now_us())
    with raises(NotFound):
        await acme.messages.get(messages[1].id)


@contract()
async def positions_of_deleted_messages_stay_empty(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    messages = [await acme.messages.append(session.id, role="user", content=str(n), id=uuid_of(n)) for n in range(3)]
    assert await acme.messages.delete(session.id, [message.id for message in messages]) == 3
    assert await acme.messages.list(session.id) == []
    assert await acme.messages.last(session.id) == []
    again = await acme.messages.append(session.id, role="user", content="an id is free again", id=uuid_of(0))
    assert again.seq == 4
    await check_counters(acme, session.id)
