"""Branches: forking, switching and rewinding, and the part of the log that each branch shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.branches import Branch
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.messages import BAD_IDS, check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, flat, raises, uuid_of


async def append_texts(handle: AsyncTenantHandle, session_id: str, *words: str, tokens: int = 1) -> list[Message]:
    """Append some messages."""
    new = [
        NewMessage(role="user", content=word, token_count=tokens, metadata={"w": word, "n": len(word)})
        for word in words
    ]
    return await handle.messages.append_many(session_id, new)


def joined_text(messages: Sequence[Message]) -> str:
    """Return the texts of messages, joined."""
    return " ".join(message.content[0]["text"] for message in messages)


async def shown_text(handle: AsyncTenantHandle, session_id: str) -> str:
    """Return the texts that a session shows; check that every way to read them and the counters agree."""
    messages = await handle.messages.list(session_id)
    assert [*await handle.messages.list(session_id, newest_first=True)] == messages[::-1]
    assert [*await handle.messages.last(session_id, 1_000)] == messages
    assert len({message.seq for message in messages}) == len(messages)
    assert sorted(message.seq for message in messages) == [message.seq for message in messages]
    await check_counters(handle, session_id)
    return joined_text(messages)


async def session_with_texts(world: World, *said: str) -> tuple[AsyncTenantHandle, str]:
    """Create a session with messages."""
    acme = world.tenant()
    session = await acme.sessions.create()
    await append_texts(acme, session.id, *said)
    return acme, session.id


@contract()
async def a_fork_shares_earlier_messages_and_does_not_switch_the_session(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    before = await acme.sessions.get(id)
    world.clock.advance(60)
    created = await acme.branches.fork(id, at=2, label="other way")
    assert created == Branch(id, 1, 0, 2, "fork", "other way", from_us(world.clock.now_us()))
    assert await acme.sessions.get(id) == before
    assert await acme.branches.current(id) == 0
    await append_texts(acme, id, "d")
    assert await shown_text(acme, id) == "a b c d"
    assert await acme.branches.switch(id, 1) == created
    assert await shown_text(acme, id) == "a b"
    (message,) = await append_texts(acme, id, "C")
    assert message.seq == 3
    assert await shown_text(acme, id) == "a b C"
    assert await acme.branches.current(id) == 1
    await acme.branches.switch(id, 0)
    assert await shown_text(acme, id) == "a b c d"
    await acme.branches.switch(id, 1)
    assert await shown_text(acme, id) == "a b C"


@contract()
async def a_fork_starts_after_the_last_message_by_default(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    created = await acme.branches.fork(id)
    assert (created.forked_after, created.parent, created.label) == (2, 0, "")
    beginning = await acme.branches.fork(id, at=0)
    assert (beginning.number, beginning.forked_after) == (2, 0)
    await acme.branches.switch(id, 1)
    assert (await append_texts(acme, id, "x"))[0].seq == 3
    await acme.branches.switch(id, 2)
    assert await shown_text(acme, id) == ""
    assert (await append_texts(acme, id, "y"))[0].seq == 1
    assert await shown_text(acme, id) == "y"


@contract()
async def a_session_without_messages_can_be_forked_too(world: World) -> None:
    acme, id = await session_with_texts(world)
    created = await acme.branches.fork(id)
    assert created.forked_after == 0
    await acme.branches.switch(id, created.number)
    assert await shown_text(acme, id) == ""
    await append_texts(acme, id, "x")
    await acme.branches.switch(id, 0)
    assert await shown_text(acme, id) == ""


@contract()
async def a_fork_of_a_fork_shares_with_both(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    await acme.branches.switch(id, (await acme.branches.fork(id, at=2)).number)
    await append_texts(acme, id, "x", "y")
    deeper = await acme.branches.fork(id, at=3)
    assert (deeper.parent, deeper.forked_after) == (1, 3)
    shallower = await acme.branches.fork(id, at=1)
    assert (shallower.parent, shallower.forked_after) == (1, 1)
    await acme.branches.switch(id, deeper.number)
    await append_texts(acme, id, "z")
    assert await shown_text(acme, id) == "a b x z"
    await acme.branches.switch(id, shallower.number)
    await append_texts(acme, id, "s")
    assert await shown_text(acme, id) == "a s"
    await acme.branches.switch(id, 1)
    assert await shown_text(acme, id) == "a b x y"
    assert [branch.number for branch in await acme.branches.list(id)] == [0, 1, 2, 3]


@contract()
async def redo_undoes_a_rewind(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    world.clock.advance(60)
    back = await acme.branches.rewind(id, to=1, label="again")
    assert back == Branch(id, 1, 0, 1, "rewind", "again", from_us(world.clock.now_us()))
    assert await shown_text(acme, id) == "a"
    assert (await acme.sessions.get(id)).updated_at == from_us(world.clock.now_us())
    await append_texts(acme, id, "x")
    redone = await acme.branches.redo(id)
    assert (redone.number, redone.origin) == (0, "start")
    assert await shown_text(acme, id) == "a b c"
    with raises(Conflict, reason="nothing_to_redo"):
        await acme.branches.redo(id)
    await acme.branches.switch(id, 1)
    assert await shown_text(acme, id) == "a x"


@contract()
async def rewinds_are_redone_one_after_the_other(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    await acme.branches.rewind(id, to=2)
    await acme.branches.rewind(id, to=0)
    await acme.branches.rewind(id, to=0)
    assert await shown_text(acme, id) == ""
    assert (await acme.branches.redo(id)).number == 2
    assert (await acme.branches.redo(id)).number == 1
    assert await shown_text(acme, id) == "a b"
    assert (await acme.branches.redo(id)).number == 0
    assert await shown_text(acme, id) == "a b c"
    await acme.branches.switch(id, (await acme.branches.fork(id, at=1)).number)
    with raises(Conflict):
        await acme.branches.redo(id)
    assert await shown_text(acme, id) == "a"


@contract()
async def the_first_branch_is_listed_even_before_the_first_fork(world: World) -> None:
    acme, id = await session_with_texts(world, "a")
    session = await acme.sessions.get(id)
    first = Branch(id, 0, None, 0, "start", "", session.created_at)
    assert await acme.branches.list(id) == [first]
    world.clock.advance(60)
    assert await acme.branches.switch(id, 0) == first
    assert await acme.sessions.get(id) == session
    forks = [await acme.branches.fork(id, label=str(number)) for number in range(5)]
    branches = await acme.branches.list(id)
    assert branches == [first, *forks]
    assert branches.next is None
    pages = [await acme.branches.list(id, limit=4)]
    pages.append(await acme.branches.list(id, limit=4, cursor=pages[0].next))
    assert [len(page) for page in pages] == [4, 2]
    assert flat(pages) == branches
    assert pages[1].next is None
    with raises(InvalidFilter):
        await acme.branches.list(id, limit=4, cursor="nonsense")
    for limit in (0, -1, True):
        with raises(InvalidInput):
            await acme.branches.list(id, limit=limit)


@contract(limits=Limits(list_rows=3, page_rows=3))
async def more_branches_than_list_rows_need_pages(world: World) -> None:
    acme, id = await session_with_texts(world, "a")
    for _ in range(2):
        await acme.branches.fork(id)
    assert len(await acme.branches.list(id)) == 3
    await acme.branches.fork(id)
    with raises(LimitExceeded, limit="list_rows"):
        await acme.branches.list(id)
    assert len(await acme.branches.list(id, limit=3)) == 3
    with raises(LimitExceeded, limit="page_rows"):
        await acme.branches.list(id, limit=4)


@contract()
async def a_branch_must_start_after_an_existing_message(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c", "d")
    messages = await acme.messages.list(id)
    await acme.messages.delete(id, [messages[1].id])
    wrong: list[Any] = [5, 2, -1, True, "2", 1.0, 2**40, 2**70]
    for at in wrong:
        with raises(InvalidInput):
            await acme.branches.fork(id, at=at)
        with raises(InvalidInput):
            await acme.branches.rewind(id, to=at)
    with raises(InvalidInput, saying=" 2", field="seq"):
        await acme.branches.fork(id, at=2)
    with raises(InvalidInput):
        await acme.branches.rewind(id, to=None)  # type: ignore[arg-type]
    assert await acme.branches.list(id) == [(await acme.branches.list(id))[0]]
    assert (await acme.branches.fork(id, at=3)).number == 1, "a rejected fork must not use up a number"
    await acme.branches.switch(id, 1)
    assert await shown_text(acme, id) == "a c"
    with raises(InvalidInput):
        await acme.branches.fork(id, at=4)


@contract()
async def a_fork_after_the_last_position_does_not_need_its_message(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    await acme.messages.delete(id, [(await acme.messages.list(id))[2].id])
    for created in (await acme.branches.fork(id), await acme.branches.fork(id, at=3)):
        assert created.forked_after == 3
        await acme.branches.switch(id, created.number)
        assert (await append_texts(acme, id, "x"))[0].seq == 4
        assert await shown_text(acme, id) == "a b x"
        await acme.branches.switch(id, 0)


@contract(limits=Limits(name_bytes=10))
async def a_label_must_be_a_valid_name(world: World) -> None:
    acme, id = await session_with_texts(world, "a")
    for label in ("x" * 10, "\x00\ud800"):
        assert (await acme.branches.fork(id, label=label)).label == label
    with raises(LimitExceeded, field="label"):
        await acme.branches.fork(id, label="x" * 11)
    with raises(LimitExceeded, field="label"):
        await acme.branches.rewind(id, to=0, label="x" * 11)
    wrong: list[Any] = ["", 7]
    for label in wrong:
        with raises(InvalidInput, field="label"):
            await acme.branches.fork(id, label=label)
    assert [branch.label for branch in await acme.branches.list(id)] == ["", "x" * 10, "\x00\ud800"]
    assert await shown_text(acme, id) == "a"


@contract()
async def only_existing_branches_can_be_switched_to(world: World) -> None:
    acme, id = await session_with_texts(world, "a")
    for number in (1, 7, 2**40, 2**70):
        with raises(NotFound, noun="branch"):
            await acme.branches.switch(id, number)
    wrong: list[Any] = [-1, "1", True, None, 1.0]
    for value in wrong:
        with raises(InvalidInput):
            await acme.branches.switch(id, value)
    await acme.branches.fork(id)
    with raises(NotFound):
        await acme.branches.switch(id, 2)
    assert await acme.branches.current(id) == 0
    assert await shown_text(acme, id) == "a"


@contract()
async def branches_need_a_live_session(world: World) -> None:
    acme, id = await session_with_texts(world, "a")
    await acme.branches.rewind(id, to=0)
    await acme.sessions.delete(id)
    for calls in (acme.branches, world.tenant("zenith").branches):
        for session_id in (id, uuid_of("missing")):
            for call in (
                partial(calls.fork, session_id),
                partial(calls.switch, session_id, 0),
                partial(calls.rewind, session_id, to=0),
                partial(calls.redo, session_id),
                partial(calls.list, session_id),
                partial(calls.current, session_id),
            ):
                with raises(NotFound, noun="session", key=session_id):
                    await call()
    for bad in BAD_IDS:
        with raises(InvalidInput):
            await acme.branches.fork(bad)
        with raises(InvalidInput):
            await acme.branches.list(bad)


@contract()
async def a_restored_session_shows_the_branch_it_showed_before(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    await acme.branches.rewind(id, to=1)
    await append_texts(acme, id, "x")
    before = await acme.sessions.get(id), await acme.branches.list(id)
    await acme.sessions.delete(id)
    with raises(NotFound):
        await acme.messages.list(id)
    with raises(NotFound):
        await acme.messages.count(id)
    await acme.sessions.restore(id)
    assert (await acme.sessions.get(id), await acme.branches.list(id)) == before
    assert await shown_text(acme, id) == "a x"
    await acme.branches.redo(id)
    assert await shown_text(acme, id) == "a b"


@contract()
async def a_purge_leaves_no_branch(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    hidden = (await acme.messages.list(id))[1]
    await acme.branches.rewind(id, to=1)
    await acme.sessions.purge(id)
    with raises(NotFound):
        await acme.branches.list(id)
    with raises(NotFound):
        await acme.messages.get(hidden.id)
    await acme.sessions.create(id=id)
    assert [branch.number for branch in await acme.branches.list(id)] == [0]
    assert await shown_text(acme, id) == ""
    assert (await acme.branches.fork(id)).number == 1


@contract()
async def compare_and_set_detects_a_switch_but_not_a_fork(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    before = await acme.sessions.get(id)
    await acme.branches.fork(id, at=1)
    after = await acme.sessions.update(id, metadata={"n": 1}, expected=before)
    world.clock.advance(1)
    await acme.branches.switch(id, 1)
    with raises(Conflict):
        await acme.sessions.update(id, metadata={"n": 2}, expected=after)


@contract()
async def a_log_survives_many_rewinds(world: World) -> None:
    """A conversation in which every answer was tried twice: one range per answer, and still one log."""
    acme, id = await session_with_texts(world)
    for turn in range(30):
        await append_texts(acme, id, f"q{turn}", "bad")
        await acme.branches.rewind(id, to=2 * turn + 1)
        await append_texts(acme, id, f"a{turn}")
    output = [f"{letter}{turn}" for turn in range(30) for letter in "qa"]
    assert await shown_text(acme, id) == " ".join(output)
    assert joined_text(await acme.messages.last(id, 7)) == " ".join(output[-7:])
    assert joined_text(await acme.messages.list(id, after=10, before=20)) == " ".join(output[10:19])
    assert len(await acme.branches.list(id)) == 31
    for _ in range(30):
        await acme.branches.redo(id)
    assert await shown_text(acme, id) == "q0 bad"


@contract("joining")
async def a_fork_commits_and_rolls_back_with_the_callers_transaction(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    await world.caller.commit()
    await world.caller.begin()
    acme = world.tenant()
    await acme.branches.rewind(id, to=1)
    await append_texts(acme, id, "x")
    assert await shown_text(acme, id) == "a x"
    outside = await world.outside()
    assert await shown_text(outside, id) == "a b"
    await world.caller.rollback()
    await world.caller.begin()
    acme = world.tenant()
    assert await shown_text(acme, id) == "a b"
    assert [branch.number for branch in await acme.branches.list(id)] == [0]
    await acme.sessions.purge(id)
    await world.caller.commit()
    await world.caller.begin()


@contract("reopening")
async def branches_survive_reopening(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    await acme.branches.rewind(id, to=1, label="again")
    await append_texts(acme, id, "x")
    branches = await acme.branches.list(id)
    await world.reopen()
    acme = world.tenant()
    assert await acme.branches.list(id) == branches
    assert await shown_text(acme, id) == "a x"
    await acme.branches.redo(id)
    assert await shown_text(acme, id) == "a b"


@contract("tenants")
async def deleting_a_tenant_deletes_its_branches(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    await acme.branches.rewind(id, to=1)
    await world.tenants.delete("acme", cascade=True)
    acme = world.tenant()
    await acme.sessions.create(id=id)
    assert [branch.number for branch in await acme.branches.list(id)] == [0]
