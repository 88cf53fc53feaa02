"""Several calls at once: nothing lost, nothing doubled, no gap."""

from __future__ import annotations

from collections import Counter
from functools import partial

from holdfast.errors import AlreadyExists, Conflict, NotFound
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.messages import NewMessage
from holdfast.stores.conversation.sessions import Session
from tests.contract.cases.messages import recounted
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, uuid_of


@contract("concurrency")
async def concurrent_appends_take_places_without_a_gap(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user", token_count=2)
    done = await world.together(*[partial(append, content=str(number)) for number in range(40)])
    made = [each for each in done if isinstance(each, Message)]
    assert len(made) == 40, done
    assert sorted(message.seq for message in made) == [*range(1, 41)]
    there = {message.id: message for message in await acme.messages.list(session.id)}
    assert all(there[message.id] == message for message in made)
    await recounted(acme, session.id)


@contract("concurrency")
async def concurrent_batches_stay_whole(world: World) -> None:
    acme = world.tenant()
    session, other = await acme.sessions.create(), await acme.sessions.create()
    batches = [[NewMessage(role="user", content=f"{batch}:{n}") for n in range(5)] for batch in range(8)]
    calls = [partial(acme.messages.append_many, (session, other)[n % 2].id, batch) for n, batch in enumerate(batches)]
    for done in await world.together(*calls):
        assert isinstance(done, list), done
        assert [message.seq for message in done] == [*range(done[0].seq, done[0].seq + 5)]
    for each in (session, other):
        assert [message.seq for message in await acme.messages.list(each.id)] == [*range(1, 21)]
        await recounted(acme, each.id)


@contract("concurrency")
async def one_id_is_appended_once_however_often_it_is_tried(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user", id=uuid_of("m"))
    done = await world.together(*[partial(append, content="same")] * 10)
    assert isinstance(done[0], Message), done
    assert all(each == done[0] for each in done), done
    await recounted(acme, session.id)
    append = partial(acme.messages.append, session.id, role="user", id=uuid_of("n"))
    done = await world.together(*[partial(append, content=str(number)) for number in range(10)])
    assert Counter(type(each) for each in done) == {Message: 1, Conflict: 9}, done
    assert [message.seq for message in await acme.messages.list(session.id)] == [1, 2]
    await recounted(acme, session.id)


@contract("concurrency")
async def one_failure_takes_nobody_with_it(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    gone = await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content="there", id=uuid_of("m"))
    await acme.sessions.delete(gone.id)
    good = [partial(acme.messages.append, session.id, role="user", content=str(number)) for number in range(9)]
    bad = [
        partial(acme.messages.append, gone.id, role="user", content="x"),
        partial(acme.messages.append, session.id, role="user", content="other", id=uuid_of("m")),
        partial(acme.messages.append, uuid_of("nobody"), role="user", content="x"),
    ]
    done = await world.together(*good[:4], bad[0], *good[4:6], bad[1], *good[6:], bad[2])
    assert Counter(type(each) for each in done) == {Message: 9, NotFound: 2, Conflict: 1}, done
    assert [message.seq for message in await acme.messages.list(session.id)] == [*range(1, 11)]
    await recounted(acme, session.id)


@contract("concurrency")
async def one_key_is_given_once(world: World) -> None:
    acme = world.tenant()
    done = await world.together(*[partial(acme.sessions.create, key="k", user="ada")] * 8)
    assert Counter(type(each) for each in done) == {Session: 1, AlreadyExists: 7}, done
    upserted = await world.together(*[partial(acme.sessions.upsert, "u", user="ada")] * 8)
    assert len({each.id for each in upserted if isinstance(each, Session)}) == 1, upserted
    assert all(isinstance(each, Session) for each in upserted)
    assert await acme.sessions.count() == 2


@contract("concurrency")
async def one_compare_and_set_wins(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(metadata={"n": 0})
    update = partial(acme.sessions.update, session.id, expected=session)
    done = await world.together(*[partial(update, metadata={"n": number}) for number in range(1, 9)])
    assert Counter(type(each) for each in done) == {Session: 1, Conflict: 7}, done
    winner = next(each for each in done if isinstance(each, Session))
    assert await acme.sessions.get(session.id) == winner


@contract("concurrency")
async def an_append_comes_before_a_deletion_or_fails(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    append = partial(acme.messages.append, session.id, role="user")
    appends = [partial(append, content=str(number)) for number in range(12)]
    done = await world.together(*appends[:6], partial(acme.sessions.delete, session.id), *appends[6:])
    made = [each for each in done if isinstance(each, Message)]
    assert all(isinstance(each, (Message, NotFound)) or each is None for each in done), done
    restored = await acme.sessions.restore(session.id)
    assert restored.message_count == len(made)
    assert [message.seq for message in await acme.messages.list(session.id)] == [*range(1, len(made) + 1)]


@contract("concurrency")
async def concurrent_changes_keep_the_counters_right(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    made = await acme.messages.append_many(
        session.id, [NewMessage(role="user", content="x", token_count=10) for _ in range(12)]
    )
    await world.together(
        *[partial(acme.messages.update, message.id, token_count=number) for number, message in enumerate(made[:6])],
        *[partial(acme.messages.update, made[0].id, token_count=number) for number in range(4)],
        *[partial(acme.messages.delete, session.id, [message.id, made[-1].id]) for message in made[6:]],
        *[partial(acme.messages.append, session.id, role="user", content="y", token_count=3) for _ in range(4)],
    )
    assert await acme.messages.count(session.id) == 10
    await recounted(acme, session.id)


@contract("concurrency")
async def tenants_do_not_wait_for_or_disturb_each_other(world: World) -> None:
    handles = [world.tenant(f"tenant {number}") for number in range(4)]
    sessions = [await handle.sessions.create(id=uuid_of("same")) for handle in handles]
    calls = [
        partial(handle.messages.append, session.id, role="user", content=handle.name, id=uuid_of(number))
        for handle, session in zip(handles, sessions, strict=True)
        for number in range(5)
    ]
    done = await world.together(*calls)
    assert all(isinstance(each, Message) for each in done), done
    for handle, session in zip(handles, sessions, strict=True):
        texts = {message.content[0]["text"] for message in await handle.messages.list(session.id)}
        assert texts == {handle.name}
        await recounted(handle, session.id)
