"""Branches: forking, switching, rewinding and what of the log is seen then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...clock import from_us
from ...core.filters import column, meta
from ...errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from ...handles import AsyncTenantHandle
from ...limits import Limits
from ...stores.conversation.branches import Branch
from ...stores.conversation.message_log import Message
from ...stores.conversation.messages import NewMessage
from .messages import BAD_IDS, recounted
from .suite import contract
from .world import World, flat, raises, uuid_of


async def say(handle: AsyncTenantHandle, session_id: str, *words: str, tokens: int = 1) -> list[Message]:
    """Append some messages."""
    new = [
        NewMessage(role="user", content=word, token_count=tokens, metadata={"w": word, "n": len(word)})
        for word in words
    ]
    return await handle.messages.append_many(session_id, new)


def words(messages: Sequence[Message]) -> str:
    """What messages say, joined."""
    return " ".join(message.content[0]["text"] for message in messages)


async def heard(handle: AsyncTenantHandle, session_id: str) -> str:
    """What a session shows, read in every way; its counters agree."""
    there = await handle.messages.list(session_id)
    assert [*await handle.messages.list(session_id, newest_first=True)] == there[::-1]
    assert [*await handle.messages.last(session_id, 1_000)] == there
    assert len({message.seq for message in there}) == len(there)
    assert sorted(message.seq for message in there) == [message.seq for message in there]
    await recounted(handle, session_id)
    return words(there)


async def started(world: World, *said: str) -> tuple[AsyncTenantHandle, str]:
    """A session in which something was said."""
    acme = world.tenant()
    session = await acme.sessions.create()
    await say(acme, session.id, *said)
    return acme, session.id


@contract()
async def a_fork_shares_what_came_before_and_the_session_goes_on_as_it_was(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    before = await acme.sessions.get(id)
    world.clock.advance(60)
    made = await acme.branches.fork(id, at=2, label="other way")
    assert made == Branch(id, 1, 0, 2, "fork", "other way", from_us(world.clock.now_us()))
    assert await acme.sessions.get(id) == before
    assert await acme.branches.current(id) == 0
    await say(acme, id, "d")
    assert await heard(acme, id) == "a b c d"
    assert await acme.branches.switch(id, 1) == made
    assert await heard(acme, id) == "a b"
    (message,) = await say(acme, id, "C")
    assert message.seq == 3
    assert await heard(acme, id) == "a b C"
    assert await acme.branches.current(id) == 1
    await acme.branches.switch(id, 0)
    assert await heard(acme, id) == "a b c d"
    await acme.branches.switch(id, 1)
    assert await heard(acme, id) == "a b C"


@contract()
async def a_fork_starts_after_the_last_message_unless_it_is_told_where(world: World) -> None:
    acme, id = await started(world, "a", "b")
    made = await acme.branches.fork(id)
    assert (made.forked_after, made.parent, made.label) == (2, 0, "")
    beginning = await acme.branches.fork(id, at=0)
    assert (beginning.number, beginning.forked_after) == (2, 0)
    await acme.branches.switch(id, 1)
    assert (await say(acme, id, "x"))[0].seq == 3
    await acme.branches.switch(id, 2)
    assert await heard(acme, id) == ""
    assert (await say(acme, id, "y"))[0].seq == 1
    assert await heard(acme, id) == "y"


@contract()
async def a_session_without_messages_can_be_forked_too(world: World) -> None:
    acme, id = await started(world)
    made = await acme.branches.fork(id)
    assert made.forked_after == 0
    await acme.branches.switch(id, made.number)
    assert await heard(acme, id) == ""
    await say(acme, id, "x")
    await acme.branches.switch(id, 0)
    assert await heard(acme, id) == ""


@contract()
async def a_fork_of_a_fork_shares_with_both(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    await acme.branches.switch(id, (await acme.branches.fork(id, at=2)).number)
    await say(acme, id, "x", "y")
    deeper = await acme.branches.fork(id, at=3)
    assert (deeper.parent, deeper.forked_after) == (1, 3)
    shallower = await acme.branches.fork(id, at=1)
    assert (shallower.parent, shallower.forked_after) == (1, 1)
    await acme.branches.switch(id, deeper.number)
    await say(acme, id, "z")
    assert await heard(acme, id) == "a b x z"
    await acme.branches.switch(id, shallower.number)
    await say(acme, id, "s")
    assert await heard(acme, id) == "a s"
    await acme.branches.switch(id, 1)
    assert await heard(acme, id) == "a b x y"
    assert [each.number for each in await acme.branches.list(id)] == [0, 1, 2, 3]


@contract()
async def a_rewind_goes_back_and_redo_comes_back(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    world.clock.advance(60)
    back = await acme.branches.rewind(id, to=1, label="again")
    assert back == Branch(id, 1, 0, 1, "rewind", "again", from_us(world.clock.now_us()))
    assert await heard(acme, id) == "a"
    assert (await acme.sessions.get(id)).updated_at == from_us(world.clock.now_us())
    await say(acme, id, "x")
    redone = await acme.branches.redo(id)
    assert (redone.number, redone.origin) == (0, "start")
    assert await heard(acme, id) == "a b c"
    with raises(Conflict, saying="no rewind to redo"):
        await acme.branches.redo(id)
    await acme.branches.switch(id, 1)
    assert await heard(acme, id) == "a x"


@contract()
async def rewinds_are_redone_one_after_the_other(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    await acme.branches.rewind(id, to=2)
    await acme.branches.rewind(id, to=0)
    await acme.branches.rewind(id, to=0)
    assert await heard(acme, id) == ""
    assert (await acme.branches.redo(id)).number == 2
    assert (await acme.branches.redo(id)).number == 1
    assert await heard(acme, id) == "a b"
    assert (await acme.branches.redo(id)).number == 0
    assert await heard(acme, id) == "a b c"
    await acme.branches.switch(id, (await acme.branches.fork(id, at=1)).number)
    with raises(Conflict):
        await acme.branches.redo(id)
    assert await heard(acme, id) == "a"


@contract()
async def branches_are_listed_from_the_first_even_before_there_is_another(world: World) -> None:
    acme, id = await started(world, "a")
    session = await acme.sessions.get(id)
    first = Branch(id, 0, None, 0, "start", "", session.created_at)
    assert await acme.branches.list(id) == [first]
    world.clock.advance(60)
    assert await acme.branches.switch(id, 0) == first
    assert await acme.sessions.get(id) == session
    forks = [await acme.branches.fork(id, label=str(number)) for number in range(5)]
    there = await acme.branches.list(id)
    assert there == [first, *forks]
    assert there.next is None
    pages = [await acme.branches.list(id, limit=4)]
    pages.append(await acme.branches.list(id, limit=4, cursor=pages[0].next))
    assert [len(page) for page in pages] == [4, 2]
    assert flat(pages) == there
    assert pages[1].next is None
    with raises(InvalidFilter):
        await acme.branches.list(id, limit=4, cursor="nonsense")
    for limit in (0, -1, True):
        with raises(InvalidInput):
            await acme.branches.list(id, limit=limit)


@contract(limits=Limits(list_rows=3, page_rows=3))
async def more_branches_than_a_list_may_hold_are_paged(world: World) -> None:
    acme, id = await started(world, "a")
    for _ in range(2):
        await acme.branches.fork(id)
    assert len(await acme.branches.list(id)) == 3
    await acme.branches.fork(id)
    with raises(LimitExceeded, saying="list_rows"):
        await acme.branches.list(id)
    assert len(await acme.branches.list(id, limit=3)) == 3
    with raises(LimitExceeded, saying="page_rows"):
        await acme.branches.list(id, limit=4)


@contract()
async def a_branch_starts_after_a_message_that_is_there(world: World) -> None:
    acme, id = await started(world, "a", "b", "c", "d")
    there = await acme.messages.list(id)
    await acme.messages.delete(id, [there[1].id])
    wrong: list[Any] = [5, 2, -1, True, "2", 1.0, 2**40, 2**70]
    for at in wrong:
        with raises(InvalidInput):
            await acme.branches.fork(id, at=at)
        with raises(InvalidInput):
            await acme.branches.rewind(id, to=at)
    with raises(InvalidInput, saying="shows no message 2"):
        await acme.branches.fork(id, at=2)
    with raises(InvalidInput):
        await acme.branches.rewind(id, to=None)  # type: ignore[arg-type]
    assert await acme.branches.list(id) == [(await acme.branches.list(id))[0]]
    assert (await acme.branches.fork(id, at=3)).number == 1, "what was refused took a number"
    await acme.branches.switch(id, 1)
    assert await heard(acme, id) == "a c"
    with raises(InvalidInput):
        await acme.branches.fork(id, at=4)


@contract()
async def a_fork_after_the_last_place_does_not_mind_that_its_message_is_gone(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    await acme.messages.delete(id, [(await acme.messages.list(id))[2].id])
    for made in (await acme.branches.fork(id), await acme.branches.fork(id, at=3)):
        assert made.forked_after == 3
        await acme.branches.switch(id, made.number)
        assert (await say(acme, id, "x"))[0].seq == 4
        assert await heard(acme, id) == "a b x"
        await acme.branches.switch(id, 0)


@contract(limits=Limits(name_bytes=10))
async def a_label_is_a_name(world: World) -> None:
    acme, id = await started(world, "a")
    for label in ("x" * 10, "\x00\ud800"):
        assert (await acme.branches.fork(id, label=label)).label == label
    with raises(LimitExceeded, saying="label"):
        await acme.branches.fork(id, label="x" * 11)
    with raises(LimitExceeded, saying="label"):
        await acme.branches.rewind(id, to=0, label="x" * 11)
    wrong: list[Any] = ["", 7]
    for label in wrong:
        with raises(InvalidInput, saying="label"):
            await acme.branches.fork(id, label=label)
    assert [each.label for each in await acme.branches.list(id)] == ["", "x" * 10, "\x00\ud800"]
    assert await heard(acme, id) == "a"


@contract()
async def only_branches_that_are_there_can_be_switched_to(world: World) -> None:
    acme, id = await started(world, "a")
    for number in (1, 7, 2**40, 2**70):
        with raises(NotFound, saying="has no branch"):
            await acme.branches.switch(id, number)
    wrong: list[Any] = [-1, "1", True, None, 1.0]
    for each in wrong:
        with raises(InvalidInput):
            await acme.branches.switch(id, each)
    await acme.branches.fork(id)
    with raises(NotFound):
        await acme.branches.switch(id, 2)
    assert await acme.branches.current(id) == 0
    assert await heard(acme, id) == "a"


@contract()
async def there_are_no_branches_without_a_live_session(world: World) -> None:
    acme, id = await started(world, "a")
    await acme.branches.rewind(id, to=0)
    await acme.sessions.delete(id)
    for calls in (acme.branches, world.tenant("zenith").branches):
        for session_id in (id, uuid_of("nobody")):
            for call in (
                partial(calls.fork, session_id),
                partial(calls.switch, session_id, 0),
                partial(calls.rewind, session_id, to=0),
                partial(calls.redo, session_id),
                partial(calls.list, session_id),
                partial(calls.current, session_id),
            ):
                with raises(NotFound, saying=session_id):
                    await call()
    for bad in BAD_IDS:
        with raises(InvalidInput):
            await acme.branches.fork(bad)
        with raises(InvalidInput):
            await acme.branches.list(bad)


@contract()
async def a_deleted_session_comes_back_on_the_branch_it_showed(world: World) -> None:
    acme, id = await started(world, "a", "b")
    await acme.branches.rewind(id, to=1)
    await say(acme, id, "x")
    before = await acme.sessions.get(id), await acme.branches.list(id)
    await acme.sessions.delete(id)
    with raises(NotFound):
        await acme.messages.list(id)
    with raises(NotFound):
        await acme.messages.count(id)
    await acme.sessions.restore(id)
    assert (await acme.sessions.get(id), await acme.branches.list(id)) == before
    assert await heard(acme, id) == "a x"
    await acme.branches.redo(id)
    assert await heard(acme, id) == "a b"


@contract()
async def a_purge_leaves_no_branch(world: World) -> None:
    acme, id = await started(world, "a", "b")
    hidden = (await acme.messages.list(id))[1]
    await acme.branches.rewind(id, to=1)
    await acme.sessions.purge(id)
    with raises(NotFound):
        await acme.branches.list(id)
    with raises(NotFound):
        await acme.messages.get(hidden.id)
    await acme.sessions.create(id=id)
    assert [each.number for each in await acme.branches.list(id)] == [0]
    assert await heard(acme, id) == ""
    assert (await acme.branches.fork(id)).number == 1


@contract()
async def a_message_that_branches_share_is_one_message(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    shared, gone, own = await acme.messages.list(id)
    await acme.branches.rewind(id, to=2)
    await say(acme, id, "x", tokens=5)
    await acme.messages.update(shared.id, content="A", token_count=10)
    assert await acme.messages.delete(id, [gone.id]) == 1
    assert await heard(acme, id) == "A x"
    assert (await acme.sessions.get(id)).token_count == 15
    await acme.branches.redo(id)
    assert await heard(acme, id) == "A c"
    assert (await acme.sessions.get(id)).token_count == 11
    assert own in await acme.messages.list(id)


@contract()
async def a_message_of_another_branch_is_reached_by_its_id(world: World) -> None:
    acme, id = await started(world, "a", "b", "c")
    _, b, c = await acme.messages.list(id)
    await acme.branches.rewind(id, to=1)
    await say(acme, id, "x", tokens=3)
    before = await acme.sessions.get(id)
    assert await acme.messages.get(b.id) == b
    changed = await acme.messages.update(b.id, content="B", token_count=100)
    assert (changed.seq, changed.token_count) == (2, 100)
    after = await acme.sessions.get(id)
    assert (after.message_count, after.token_count) == (before.message_count, before.token_count)
    assert await acme.messages.delete(id, [c.id]) == 1
    assert await heard(acme, id) == "a x"
    await acme.branches.redo(id)
    assert await heard(acme, id) == "a B"
    assert (await acme.sessions.get(id)).token_count == 101


@contract()
async def an_append_that_is_repeated_after_a_switch_happened_once(world: World) -> None:
    acme, id = await started(world, "a")
    append = partial(acme.messages.append, id, role="user", content="b", id=uuid_of("m"))
    first = await append()
    await acme.branches.rewind(id, to=1)
    assert await append() == first
    assert await heard(acme, id) == "a"
    with raises(Conflict):
        await acme.messages.append(id, role="user", content="other", id=uuid_of("m"))
    many = [NewMessage(role="user", content="b", id=uuid_of("m")), NewMessage(role="user", content="c")]
    with raises(Conflict, saying="some of these"):
        await acme.messages.append_many(id, many)
    assert await heard(acme, id) == "a"
    await acme.branches.redo(id)
    assert await heard(acme, id) == "a b"


@contract()
async def pages_go_across_the_fork_from_either_end(world: World) -> None:
    acme, id = await started(world, *"abcdef")
    await acme.branches.rewind(id, to=4)
    await say(acme, id, *"ghi")
    await acme.branches.rewind(id, to=6)
    await say(acme, id, *"jk")
    assert await heard(acme, id) == "a b c d g h j k"
    whole = [*await acme.messages.list(id)]
    for newest_first in (False, True):
        for limit in (1, 2, 3, 8, 9):
            pages = [await acme.messages.list(id, newest_first=newest_first, limit=limit)]
            while pages[-1].next:
                pages.append(
                    await acme.messages.list(id, newest_first=newest_first, limit=limit, cursor=pages[-1].next)
                )
            assert flat(pages) == (whole[::-1] if newest_first else whole)
            assert all(len(page) == limit for page in pages[:-1])
    for count in range(1, 10):
        assert [*await acme.messages.last(id, count)] == whole[-count:]
    for after in range(10):
        for before in (None, *range(10)):
            found = await acme.messages.list(id, after=after, before=before)
            assert found == [each for each in whole if after < each.seq < (before or 100 if before is None else before)]


@contract()
async def filters_see_what_the_branch_shows(world: World) -> None:
    acme, id = await started(world, "a", "bb", "cc")
    await acme.branches.rewind(id, to=2)
    await say(acme, id, "dd", "e")
    for where, found in (
        ([column("seq").eq(3)], "dd"),
        ([column("seq").ge(2)], "bb dd e"),
        ([column("seq").is_in([1, 3, 9])], "a dd"),
        ([meta("n").eq(2)], "bb dd"),
        ([meta("n").eq(1), column("seq").gt(1)], "e"),
        ([meta("w").eq("cc")], ""),
        ([column("role").eq("assistant")], ""),
    ):
        assert words(await acme.messages.list(id, where=where)) == found
        assert words([*await acme.messages.list(id, where=where, newest_first=True)][::-1]) == found
        assert await acme.messages.count(id, where=where) == len(found.split())
        first = await acme.messages.list(id, where=where, limit=1)
        assert words(first) == found.partition(" ")[0]
        assert (first.next is not None) == (" " in found)


@contract()
async def a_page_is_found_behind_many_messages_that_were_deleted(world: World) -> None:
    acme, id = await started(world, *[str(number) for number in range(60)])
    await acme.branches.rewind(id, to=40)
    await say(acme, id, *[str(number) for number in range(100, 130)])
    there = await acme.messages.list(id)
    await acme.messages.delete(id, [message.id for message in [*there[3:37], *there[45:68]]])
    left = [*there[:3], *there[37:45], *there[68:]]
    for count in (1, 2, 3, 5, 11, 12, 13, 14):
        assert [*await acme.messages.last(id, count)] == left[-count:]
        assert [*await acme.messages.list(id, limit=count)] == left[:count]
    assert await heard(acme, id) == words(left)


@contract()
async def a_session_is_plain_again_on_its_first_branch(world: World) -> None:
    """What was never forked and what came back to its beginning cannot be told apart, except by the list of branches."""
    acme, id = await started(world, "a", "b")
    await acme.branches.rewind(id, to=1)
    await say(acme, id, "x", tokens=9)
    await acme.branches.redo(id)
    assert (await say(acme, id, "c"))[0].seq == 3
    assert await heard(acme, id) == "a b c"
    assert (await acme.sessions.get(id)).token_count == 3
    assert await acme.branches.current(id) == 0


@contract()
async def compare_and_set_sees_a_switch_and_not_a_fork(world: World) -> None:
    acme, id = await started(world, "a", "b")
    before = await acme.sessions.get(id)
    await acme.branches.fork(id, at=1)
    after = await acme.sessions.update(id, metadata={"n": 1}, expected=before)
    world.clock.advance(1)
    await acme.branches.switch(id, 1)
    with raises(Conflict):
        await acme.sessions.update(id, metadata={"n": 2}, expected=after)


@contract()
async def branches_outlast_many_rewinds(world: World) -> None:
    """A conversation in which every answer was tried twice: as many pieces as answers, and still one log."""
    acme, id = await started(world)
    for turn in range(30):
        await say(acme, id, f"q{turn}", "bad")
        await acme.branches.rewind(id, to=2 * turn + 1)
        await say(acme, id, f"a{turn}")
    said = [f"{letter}{turn}" for turn in range(30) for letter in "qa"]
    assert await heard(acme, id) == " ".join(said)
    assert words(await acme.messages.last(id, 7)) == " ".join(said[-7:])
    assert words(await acme.messages.list(id, after=10, before=20)) == " ".join(said[10:19])
    assert len(await acme.branches.list(id)) == 31
    for _ in range(30):
        await acme.branches.redo(id)
    assert await heard(acme, id) == "q0 bad"


@contract("concurrency")
async def appends_and_switches_at_once_lose_nothing(world: World) -> None:
    acme, id = await started(world, "a", "b")
    for _ in range(2):
        await acme.branches.fork(id, at=1)
    calls: list[Any] = []
    for number in range(15):
        calls.append(partial(say, acme, id, f"x{number}", f"y{number}"))
        calls.append(partial(acme.branches.switch, id, number % 3))
    done = await world.together(*calls)
    assert not [each for each in done if isinstance(each, Exception)], done
    made = [each for each in done if isinstance(each, list)]
    assert all([message.seq for message in pair] == [pair[0].seq, pair[0].seq + 1] for pair in made), "torn apart"
    seen: list[str] = []
    for number in range(3):
        await acme.branches.switch(id, number)
        there = (await heard(acme, id)).split()
        assert there[: 2 if number == 0 else 1] == ["a", "b"][: 2 if number == 0 else 1]
        assert [message.seq for message in await acme.messages.list(id)] == [*range(1, len(there) + 1)]
        own = there[2 if number == 0 else 1 :]
        assert all(own[place + 1] == f"y{word[1:]}" for place, word in enumerate(own) if word[0] == "x"), own
        seen += own
    assert sorted(seen) == sorted(f"{letter}{number}" for number in range(15) for letter in "xy")


@contract("concurrency")
async def forks_at_once_get_numbers_of_their_own(world: World) -> None:
    acme, id = await started(world, "a", "b")
    calls: list[Any] = [partial(acme.branches.fork, id, at=1), partial(acme.branches.rewind, id, to=1)] * 8
    done = await world.together(*calls)
    made = [each for each in done if isinstance(each, Branch)]
    assert len(made) == 16, done
    assert sorted(each.number for each in made) == [*range(1, 17)]
    there = await acme.branches.list(id)
    assert sorted(there[1:], key=lambda each: each.number) == sorted(made, key=lambda each: each.number)
    for each in there:
        await acme.branches.switch(id, each.number)
        assert await heard(acme, id) == ("a b" if each.number == 0 else "a")


@contract("concurrency")
async def counters_follow_whoever_deletes_while_others_switch(world: World) -> None:
    acme, id = await started(world, *[str(number) for number in range(20)])
    there = await acme.messages.list(id)
    await acme.branches.fork(id, at=10)
    calls: list[Any] = []
    for number in range(10):
        calls.append(partial(acme.messages.delete, id, [there[number].id, there[-1 - number].id]))
        calls.append(partial(acme.branches.switch, id, (number + 1) % 2))
        calls.append(partial(acme.messages.update, there[number // 2].id, token_count=number))
        calls.append(partial(acme.messages.list, id))
    done = await world.together(*calls)
    assert not [each for each in done if isinstance(each, Exception) and not isinstance(each, NotFound)], done
    await recounted(acme, id)
    for number in (0, 1):
        await acme.branches.switch(id, number)
        assert await heard(acme, id) == ""


@contract("concurrency")
async def a_reader_never_sees_a_log_half_switched(world: World) -> None:
    acme, id = await started(world, *"abcdef")
    await acme.branches.rewind(id, to=3)
    await say(acme, id, *"xyz")
    whole = {"a b c d e f", "a b c x y z"}
    calls: list[Any] = []
    for number in range(12):
        calls.append(partial(acme.branches.switch, id, number % 2))
        calls += [partial(acme.messages.list, id), partial(acme.messages.last, id, 9), partial(acme.messages.count, id)]
    for each in await world.together(*calls):
        assert not isinstance(each, Exception), each
        if isinstance(each, list):
            assert words(each) in whole
        elif isinstance(each, int):
            assert each == 6


@contract("joining")
async def a_fork_lives_and_dies_with_the_callers_transaction(world: World) -> None:
    acme, id = await started(world, "a", "b")
    await world.caller.commit()
    await world.caller.begin()
    acme = world.tenant()
    await acme.branches.rewind(id, to=1)
    await say(acme, id, "x")
    assert await heard(acme, id) == "a x"
    outside = await world.outside()
    assert await heard(outside, id) == "a b"
    await world.caller.rollback()
    await world.caller.begin()
    acme = world.tenant()
    assert await heard(acme, id) == "a b"
    assert [each.number for each in await acme.branches.list(id)] == [0]
    await acme.sessions.purge(id)
    await world.caller.commit()
    await world.caller.begin()


@contract("reopening")
async def branches_are_there_after_reopening(world: World) -> None:
    acme, id = await started(world, "a", "b")
    await acme.branches.rewind(id, to=1, label="again")
    await say(acme, id, "x")
    there = await acme.branches.list(id)
    await world.reopen()
    acme = world.tenant()
    assert await acme.branches.list(id) == there
    assert await heard(acme, id) == "a x"
    await acme.branches.redo(id)
    assert await heard(acme, id) == "a b"


@contract("tenants")
async def a_tenant_goes_with_its_branches(world: World) -> None:
    acme, id = await started(world, "a", "b")
    await acme.branches.rewind(id, to=1)
    await world.tenants.delete("acme", cascade=True)
    acme = world.tenant()
    await acme.sessions.create(id=id)
    assert [each.number for each in await acme.branches.list(id)] == [0]
