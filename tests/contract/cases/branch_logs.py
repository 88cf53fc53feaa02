"""Branches: the part of the log that is visible during changes and concurrent switches."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.core.filters import column, meta
from holdfast.errors import Conflict, NotFound
from holdfast.stores.conversation.branches import Branch
from holdfast.stores.conversation.new_entries import NewMessage
from tests.contract.cases.branches import append_texts, joined_text, session_with_texts, shown_text
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, flat, raises, uuid_of


@contract()
async def a_shared_message_is_one_message(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    shared, removed, own = await acme.messages.list(id)
    await acme.branches.rewind(id, to=2)
    await append_texts(acme, id, "x", tokens=5)
    await acme.messages.update(shared.id, content="A", token_count=10)
    assert await acme.messages.delete(id, [removed.id]) == 1
    assert await shown_text(acme, id) == "A x"
    assert (await acme.sessions.get(id)).token_count == 15
    await acme.branches.redo(id)
    assert await shown_text(acme, id) == "A c"
    assert (await acme.sessions.get(id)).token_count == 11
    assert own in await acme.messages.list(id)


@contract()
async def a_message_of_another_branch_is_found_by_its_id(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b", "c")
    _, b, c = await acme.messages.list(id)
    await acme.branches.rewind(id, to=1)
    await append_texts(acme, id, "x", tokens=3)
    before = await acme.sessions.get(id)
    assert await acme.messages.get(b.id) == b
    changed = await acme.messages.update(b.id, content="B", token_count=100)
    assert (changed.seq, changed.token_count) == (2, 100)
    after = await acme.sessions.get(id)
    assert (after.message_count, after.token_count) == (before.message_count, before.token_count)
    assert await acme.messages.delete(id, [c.id]) == 1
    assert await shown_text(acme, id) == "a x"
    await acme.branches.redo(id)
    assert await shown_text(acme, id) == "a B"
    assert (await acme.sessions.get(id)).token_count == 101


@contract()
async def an_append_repeated_after_a_switch_is_stored_once(world: World) -> None:
    acme, id = await session_with_texts(world, "a")
    append = partial(acme.messages.append, id, role="user", content="b", id=uuid_of("m"))
    first = await append()
    await acme.branches.rewind(id, to=1)
    assert await append() == first
    assert await shown_text(acme, id) == "a"
    with raises(Conflict):
        await acme.messages.append(id, role="user", content="other", id=uuid_of("m"))
    many = [NewMessage(role="user", content="b", id=uuid_of("m")), NewMessage(role="user", content="c")]
    with raises(Conflict, reason="partly_stored"):
        await acme.messages.append_many(id, many)
    assert await shown_text(acme, id) == "a"
    await acme.branches.redo(id)
    assert await shown_text(acme, id) == "a b"


@contract()
async def pages_continue_across_the_fork_in_both_directions(world: World) -> None:
    acme, id = await session_with_texts(world, *"abcdef")
    await acme.branches.rewind(id, to=4)
    await append_texts(acme, id, *"ghi")
    await acme.branches.rewind(id, to=6)
    await append_texts(acme, id, *"jk")
    assert await shown_text(acme, id) == "a b c d g h j k"
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
            messages = await acme.messages.list(id, after=after, before=before)
            assert messages == [
                branch for branch in whole if after < branch.seq < (before or 100 if before is None else before)
            ]


@contract()
async def filters_apply_to_the_current_branch(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "bb", "cc")
    await acme.branches.rewind(id, to=2)
    await append_texts(acme, id, "dd", "e")
    for where, result in (
        ([column("seq").eq(3)], "dd"),
        ([column("seq").ge(2)], "bb dd e"),
        ([column("seq").is_in([1, 3, 9])], "a dd"),
        ([meta("n").eq(2)], "bb dd"),
        ([meta("n").eq(1), column("seq").gt(1)], "e"),
        ([meta("w").eq("cc")], ""),
        ([column("role").eq("assistant")], ""),
    ):
        assert joined_text(await acme.messages.list(id, where=where)) == result
        assert joined_text([*await acme.messages.list(id, where=where, newest_first=True)][::-1]) == result
        assert await acme.messages.count(id, where=where) == len(result.split())
        first = await acme.messages.list(id, where=where, limit=1)
        assert joined_text(first) == result.partition(" ")[0]
        assert (first.next is not None) == (" " in result)


@contract()
async def a_page_is_found_after_many_deleted_messages(world: World) -> None:
    acme, id = await session_with_texts(world, *[str(number) for number in range(60)])
    await acme.branches.rewind(id, to=40)
    await append_texts(acme, id, *[str(number) for number in range(100, 130)])
    messages = await acme.messages.list(id)
    await acme.messages.delete(id, [message.id for message in [*messages[3:37], *messages[45:68]]])
    left = [*messages[:3], *messages[37:45], *messages[68:]]
    for count in (1, 2, 3, 5, 11, 12, 13, 14):
        assert [*await acme.messages.last(id, count)] == left[-count:]
        assert [*await acme.messages.list(id, limit=count)] == left[:count]
    assert await shown_text(acme, id) == joined_text(left)


@contract()
async def a_session_without_branches_equals_one_back_on_its_first_branch(world: World) -> None:
    """The only difference is the list of branches."""
    acme, id = await session_with_texts(world, "a", "b")
    await acme.branches.rewind(id, to=1)
    await append_texts(acme, id, "x", tokens=9)
    await acme.branches.redo(id)
    assert (await append_texts(acme, id, "c"))[0].seq == 3
    assert await shown_text(acme, id) == "a b c"
    assert (await acme.sessions.get(id)).token_count == 3
    assert await acme.branches.current(id) == 0


@contract("concurrency")
async def concurrent_appends_and_switches_lose_nothing(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    for _ in range(2):
        await acme.branches.fork(id, at=1)
    calls: list[Any] = []
    for number in range(15):
        calls.append(partial(append_texts, acme, id, f"x{number}", f"y{number}"))
        calls.append(partial(acme.branches.switch, id, number % 3))
    results = await world.together(*calls)
    assert not [result for result in results if isinstance(result, Exception)], results
    branches = [result for result in results if isinstance(result, list)]
    assert all([message.seq for message in pair] == [pair[0].seq, pair[0].seq + 1] for pair in branches), (
        "a batch was split"
    )
    seen: list[str] = []
    for number in range(3):
        await acme.branches.switch(id, number)
        existing = (await shown_text(acme, id)).split()
        assert existing[: 2 if number == 0 else 1] == ["a", "b"][: 2 if number == 0 else 1]
        assert [message.seq for message in await acme.messages.list(id)] == [*range(1, len(existing) + 1)]
        own = existing[2 if number == 0 else 1 :]
        assert all(own[place + 1] == f"y{word[1:]}" for place, word in enumerate(own) if word[0] == "x"), own
        seen += own
    assert sorted(seen) == sorted(f"{letter}{number}" for number in range(15) for letter in "xy")


@contract("concurrency")
async def concurrent_forks_get_distinct_numbers(world: World) -> None:
    acme, id = await session_with_texts(world, "a", "b")
    calls: list[Any] = [partial(acme.branches.fork, id, at=1), partial(acme.branches.rewind, id, to=1)] * 8
    results = await world.together(*calls)
    created = [result for result in results if isinstance(result, Branch)]
    assert len(created) == 16, results
    assert sorted(branch.number for branch in created) == [*range(1, 17)]
    branches = await acme.branches.list(id)
    assert sorted(branches[1:], key=lambda branch: branch.number) == sorted(created, key=lambda branch: branch.number)
    for branch in branches:
        await acme.branches.switch(id, branch.number)
        assert await shown_text(acme, id) == ("a b" if branch.number == 0 else "a")


@contract("concurrency")
async def counters_are_correct_after_concurrent_deletions_and_switches(world: World) -> None:
    acme, id = await session_with_texts(world, *[str(number) for number in range(20)])
    messages = await acme.messages.list(id)
    await acme.branches.fork(id, at=10)
    calls: list[Any] = []
    for number in range(10):
        calls.append(partial(acme.messages.delete, id, [messages[number].id, messages[-1 - number].id]))
        calls.append(partial(acme.branches.switch, id, (number + 1) % 2))
        calls.append(partial(acme.messages.update, messages[number // 2].id, token_count=number))
        calls.append(partial(acme.messages.list, id))
    results = await world.together(*calls)
    assert not [result for result in results if isinstance(result, Exception) and not isinstance(result, NotFound)], (
        results
    )
    await check_counters(acme, id)
    for number in (0, 1):
        await acme.branches.switch(id, number)
        assert await shown_text(acme, id) == ""


@contract("concurrency")
async def a_reader_never_sees_a_log_half_switched(world: World) -> None:
    acme, id = await session_with_texts(world, *"abcdef")
    await acme.branches.rewind(id, to=3)
    await append_texts(acme, id, *"xyz")
    whole = {"a b c d e f", "a b c x y z"}
    calls: list[Any] = []
    for number in range(12):
        calls.append(partial(acme.branches.switch, id, number % 2))
        calls += [partial(acme.messages.list, id), partial(acme.messages.last, id, 9), partial(acme.messages.count, id)]
    for result in await world.together(*calls):
        assert not isinstance(result, Exception), result
        if isinstance(result, list):
            assert joined_text(result) in whole
        elif isinstance(result, int):
            assert result == 6
