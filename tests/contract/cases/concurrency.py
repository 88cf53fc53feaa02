"""Concurrency: nothing is lost, nothing is stored twice, and there are no gaps."""

from __future__ import annotations

from collections import Counter
from functools import partial

from holdfast.errors import AlreadyExists, Conflict, NotFound
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, uuid_of


@contract("concurrency")
async def concurrent_appends_take_positions_without_a_gap(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user", token_count=2)
    results = await world.together(*[partial(append, content=str(number)) for number in range(40)])
    created = [result for result in results if isinstance(result, Message)]
    assert len(created) == 40, results
    assert sorted(message.seq for message in created) == [*range(1, 41)]
    existing = {message.id: message for message in await acme.messages.list(session.id)}
    assert all(existing[message.id] == message for message in created)
    await check_counters(acme, session.id)


@contract("concurrency")
async def concurrent_batches_stay_consecutive(world: World) -> None:
    acme = world.tenant()
    session, other = await acme.sessions.create(), await acme.sessions.create()
    batches = [[NewMessage(role="user", content=f"{batch}:{n}") for n in range(5)] for batch in range(8)]
    calls = [partial(acme.messages.append_many, (session, other)[n % 2].id, batch) for n, batch in enumerate(batches)]
    for result in await world.together(*calls):
        assert isinstance(result, list), result
        assert [message.seq for message in result] == [*range(result[0].seq, result[0].seq + 5)]
    for value in (session, other):
        assert [message.seq for message in await acme.messages.list(value.id)] == [*range(1, 21)]
        await check_counters(acme, value.id)


@contract("concurrency")
async def concurrent_appends_with_one_id_are_stored_once(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user", id=uuid_of("m"))
    results = await world.together(*[partial(append, content="same")] * 10)
    assert isinstance(results[0], Message), results
    assert all(result == results[0] for result in results), results
    await check_counters(acme, session.id)
    append = partial(acme.messages.append, session.id, role="user", id=uuid_of("n"))
    results = await world.together(*[partial(append, content=str(number)) for number in range(10)])
    assert Counter(type(result) for result in results) == {Message: 1, Conflict: 9}, results
    assert [message.seq for message in await acme.messages.list(session.id)] == [1, 2]
    await check_counters(acme, session.id)


@contract("concurrency")
async def a_failed_append_does_not_fail_the_others_of_its_group(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    removed = await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content="there", id=uuid_of("m"))
    await acme.sessions.delete(removed.id)
    good = [partial(acme.messages.append, session.id, role="user", content=str(number)) for number in range(9)]
    bad = [
        partial(acme.messages.append, removed.id, role="user", content="x"),
        partial(acme.messages.append, session.id, role="user", content="other", id=uuid_of("m")),
        partial(acme.messages.append, uuid_of("missing"), role="user", content="x"),
    ]
    results = await world.together(*good[:4], bad[0], *good[4:6], bad[1], *good[6:], bad[2])
    assert Counter(type(result) for result in results) == {Message: 9, NotFound: 2, Conflict: 1}, results
    assert [message.seq for message in await acme.messages.list(session.id)] == [*range(1, 11)]
    await check_counters(acme, session.id)


@contract("concurrency")
async def concurrent_creates_with_one_key_store_one_session(world: World) -> None:
    acme = world.tenant()
    results = await world.together(*[partial(acme.sessions.create, key="k", user="ada")] * 8)
    assert Counter(type(result) for result in results) == {Session: 1, AlreadyExists: 7}, results
    upserted = await world.together(*[partial(acme.sessions.upsert, "u", user="ada")] * 8)
    assert len({item.id for item in upserted if isinstance(item, Session)}) == 1, upserted
    assert all(isinstance(item, Session) for item in upserted)
    assert await acme.sessions.count() == 2


@contract("concurrency")
async def one_of_several_concurrent_compare_and_sets_wins(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(metadata={"n": 0})
    update = partial(acme.sessions.update, session.id, expected=session)
    results = await world.together(*[partial(update, metadata={"n": number}) for number in range(1, 9)])
    assert Counter(type(result) for result in results) == {Session: 1, Conflict: 7}, results
    winner = next(result for result in results if isinstance(result, Session))
    assert await acme.sessions.get(session.id) == winner


@contract("concurrency")
async def an_append_concurrent_with_a_deletion_is_stored_or_rejected(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user")
    appends = [partial(append, content=str(number)) for number in range(12)]
    results = await world.together(*appends[:6], partial(acme.sessions.delete, session.id), *appends[6:])
    created = [result for result in results if isinstance(result, Message)]
    assert all(isinstance(result, (Message, NotFound)) or result is None for result in results), results
    restored = await acme.sessions.restore(session.id)
    assert restored.message_count == len(created)
    assert [message.seq for message in await acme.messages.list(session.id)] == [*range(1, len(created) + 1)]


@contract("concurrency")
async def counters_are_correct_after_concurrent_changes(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append_many(
        session.id, [NewMessage(role="user", content="x", token_count=10) for _ in range(12)]
    )
    await world.together(
        *[partial(acme.messages.update, message.id, token_count=number) for number, message in enumerate(created[:6])],
        *[partial(acme.messages.update, created[0].id, token_count=number) for number in range(4)],
        *[partial(acme.messages.delete, session.id, [message.id, created[-1].id]) for message in created[6:]],
        *[partial(acme.messages.append, session.id, role="user", content="y", token_count=3) for _ in range(4)],
    )
    assert await acme.messages.count(session.id) == 10
    await check_counters(acme, session.id)


@contract("concurrency")
async def tenants_do_not_affect_each_other(world: World) -> None:
    handles = [world.tenant(f"tenant {number}") for number in range(4)]
    sessions = [await handle.sessions.create(id=uuid_of("same")) for handle in handles]
    calls = [
        partial(handle.messages.append, session.id, role="user", content=handle.name, id=uuid_of(number))
        for handle, session in zip(handles, sessions, strict=True)
        for number in range(5)
    ]
    results = await world.together(*calls)
    assert all(isinstance(result, Message) for result in results), results
    for handle, session in zip(handles, sessions, strict=True):
        texts = {message.content[0]["text"] for message in await handle.messages.list(session.id)}
        assert texts == {handle.name}
        await check_counters(handle, session.id)
