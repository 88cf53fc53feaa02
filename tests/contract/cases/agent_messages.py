"""The messages of an agent: the logs of its sessions, merged by time, on pages of any size."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from holdfast import column
from holdfast.clock import from_us
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.contract.cases.world import World, flat, raises


async def say(acme: AsyncTenantHandle, session_id: str, *texts: str) -> list[Message]:
    """Append messages at one time."""
    return await acme.messages.append_many(session_id, [NewMessage(role="user", content=text) for text in texts])


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.content[0]["text"] for message in messages]


async def paged(acme: AsyncTenantHandle, agent: str, limit: int, **how: Any) -> list[Message]:
    """Return the messages of all pages."""
    pages = [await acme.agent_messages.list(agent, limit=limit, **how)]
    while pages[-1].next is not None:
        assert len(pages[-1]) <= limit
        pages.append(await acme.agent_messages.list(agent, limit=limit, cursor=pages[-1].next, **how))
        assert len(pages) < 300, "the pages do not end"
    return flat(pages)


async def merged(acme: AsyncTenantHandle, agent: str, since: datetime | None = None) -> list[Message]:
    """Return what a list must return, by reading the sessions one by one."""
    entries = []
    for session in await acme.sessions.list(agent=agent):
        earliest = None
        for message in reversed(await acme.messages.list(session.id)):
            earliest = message.created_at if earliest is None else min(earliest, message.created_at)
            if since is None or earliest >= since:
                entries.append((earliest, session.id, message.seq, message))
    return [entry[-1] for entry in sorted(entries, key=lambda entry: entry[:-1], reverse=True)]


@contract()
async def the_sessions_of_an_agent_are_merged_by_time(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    ids = [(await acme.sessions.create(agent=agent, user=user)).id for agent, user in ("au", "bu", "av", "cw")]
    others = [ids[1], ids[3]]
    theirs = await zenith.sessions.create(agent="a")
    for number in range(8):
        world.clock.advance(40)
        await say(acme, ids[number % 4], f"{number}", f"{number}, too")
        await say(zenith, theirs.id, "of another tenant")
    assert texts(await acme.agent_messages.list("a")) == [
        "6, too", "6", "4, too", "4", "2, too", "2", "0, too", "0"
    ]  # fmt: skip
    assert texts(await acme.agent_messages.last("a", 3)) == ["4, too", "6", "6, too"]
    assert texts(await acme.agent_messages.last("a")) == texts(await acme.agent_messages.list("a"))[::-1]
    assert await acme.agent_messages.list("unknown") == [] == await acme.agent_messages.last("unknown")
    await acme.sessions.update(others[0], agent="a")
    assert texts(await acme.agent_messages.last("a", 4)) == ["5", "5, too", "6", "6, too"], (
        "the agent of the session counts"
    )
    assert (
        await acme.agent_messages.list("a", limit=50) == await acme.agent_messages.list("a") == await merged(acme, "a")
    )


@contract()
async def only_what_live_sessions_show_is_listed(world: World) -> None:
    acme = world.tenant()
    one, two = [(await acme.sessions.create(agent="a")).id for _ in range(2)]
    for number in range(4):
        world.clock.advance(1)
        await say(acme, one, f"one {number}")
        await say(acme, two, f"two {number}")
    listed = partial(acme.agent_messages.list, "a")
    assert texts(await listed())[:3] == ["two 3", "one 3", "two 2"]
    message = (await acme.messages.last(two, 1))[0]
    await acme.messages.delete(two, [message.id])
    assert texts(await listed(limit=2)) == ["one 3", "two 2"]
    await acme.messages.restore(two, [message.id])
    await acme.branches.rewind(one, to=2)
    world.clock.advance(1)
    await say(acme, one, "another way")
    assert texts(await listed()) == ["another way", "two 3", "two 2", "two 1", "one 1", "two 0", "one 0"]
    await acme.branches.switch(one, 0)
    assert texts(await listed(limit=2)) == ["two 3", "one 3"]
    await acme.sessions.delete(two)
    assert texts(await listed()) == ["one 3", "one 2", "one 1", "one 0"]
    await acme.sessions.restore(two)
    assert len(await listed()) == 8
    await acme.sessions.purge(one)
    assert texts(await listed(limit=5)) == ["two 3", "two 2", "two 1", "two 0"]


@contract()
async def a_log_keeps_its_order_when_its_times_do_not(world: World) -> None:
    acme = world.tenant()
    one, two = [(await acme.sessions.create(agent="a")).id for _ in range(2)]
    start = from_us(world.clock.now_us())
    for seconds, session, text in ((0, one, "first"), (600, one, "ahead"), (60, one, "back"), (90, two, "between")):
        world.clock.advance(seconds - (from_us(world.clock.now_us()) - start).total_seconds())
        await say(acme, session, text)
    assert texts(await acme.agent_messages.list("a")) == ["between", "back", "ahead", "first"]
    for limit in (1, 2, 3):
        assert texts(await paged(acme, "a", limit)) == ["between", "back", "ahead", "first"]
    since = partial(acme.agent_messages.list, "a")
    assert texts(await since(since=start + timedelta(seconds=60))) == ["between", "back", "ahead"]
    assert texts(await since(since=start + timedelta(seconds=61))) == ["between"]
    assert await since(since=start + timedelta(seconds=91)) == []
    world.clock.advance(200)
    await say(acme, two, "ahead")
    await acme.branches.switch(two, (await acme.branches.fork(two, at=2)).number)
    world.clock.advance(-150)
    await say(acme, two, "back, on a branch")
    assert await merged(acme, "a", start + timedelta(seconds=200)) == []
    assert await since(since=start + timedelta(seconds=200)) == [], "the beginning of the branch counts as old, too"


@contract()
async def any_history_is_listed_on_pages_of_any_size(world: World) -> None:
    """Compared with a merge of the sessions that are read one by one."""
    acme, random = world.tenant(), Random(19)
    ids = [(await acme.sessions.create(agent="a")).id for _ in range(5)]
    start = from_us(world.clock.now_us())
    for _ in range(90):
        session, choice = random.choice(ids), random.random()
        count = (await acme.sessions.get(session)).message_count
        world.clock.advance(random.choice([0, 0, 1, 30, 70, -20]))
        if choice < 0.75 or count < 3:
            await say(acme, session, *["x"] * random.randrange(1, 4))
        elif choice < 0.83:
            await acme.branches.rewind(session, to=random.randrange(1, count))
        elif choice < 0.9:
            branches = await acme.branches.list(session)
            await acme.branches.switch(session, random.choice(branches).number)
        else:
            chosen = random.choice(await acme.messages.list(session))
            await acme.messages.delete(session, [chosen.id])
    expected = await merged(acme, "a")
    assert len(expected) > 60
    assert await acme.agent_messages.list("a") == expected
    for limit in (1, 3, 10, 50):
        assert await paged(acme, "a", limit) == expected, f"pages of {limit}"
    assert await acme.agent_messages.last("a", 7) == expected[:7][::-1]
    for place in range(0, len(expected), 9):
        since = expected[place].created_at
        assert await paged(acme, "a", 4, since=since) == await merged(acme, "a", since), since
    assert await acme.agent_messages.list("a", since=start) == await merged(acme, "a", start)


@contract()
async def the_newest_messages_are_found_whichever_session_has_them(world: World) -> None:
    """More sessions than are read at first; those used last have no recent messages."""
    acme = world.tenant()
    ids = [(await acme.sessions.create(agent="a")).id for _ in range(40)]
    for session in ids:
        world.clock.advance(60)
        await say(acme, session, "old")
    world.clock.advance(1)
    await say(acme, ids[0], "newest")
    for session in ids[3:]:
        world.clock.advance(60)
        await acme.sessions.update(session, metadata={"used": True})
    empty = [(await acme.sessions.create(agent="a")).id for _ in range(40)]
    expected = await merged(acme, "a")
    assert texts(await acme.agent_messages.last("a", 2)) == ["old", "newest"]
    for limit in (1, 7, 41):
        assert await paged(acme, "a", limit) == expected, f"pages of {limit}"
    world.clock.advance(1)
    await say(acme, empty[0], "in an empty one")
    assert texts(await acme.agent_messages.last("a", 1)) == ["in an empty one"]


@contract(limits=Limits(list_rows=5))
async def a_list_is_filtered_and_limited(world: World) -> None:
    acme = world.tenant()
    one, two = [(await acme.sessions.create(agent="a")).id for _ in range(2)]
    for number in range(3):
        world.clock.advance(1)
        for session, role in ((one, "user"), (two, "assistant"), (one, "assistant")):
            await acme.messages.append(session, role=role, content="x" * 100, metadata={"n": number})
    with raises(LimitExceeded, limit="list_rows"):
        await acme.agent_messages.list("a")
    by_user = await acme.agent_messages.list("a", where=[column("role").eq("user")])
    assert [message.metadata["n"] for message in by_user] == [2, 1, 0]
    assert await paged(acme, "a", 1, where=[column("role").eq("user")]) == by_user
    every = await paged(acme, "a", 4)
    page = await acme.agent_messages.list("a", limit=5, max_bytes=300)
    assert [*page] == every[:2]
    assert await paged(acme, "a", 5, max_bytes=300) == every
    assert [*await acme.agent_messages.list("a", limit=5, max_bytes=1)] == every[:1]
    assert await acme.agent_messages.list("nothing", limit=5, max_bytes=1) == []
    for cursor in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await acme.agent_messages.list("a", limit=1, cursor=cursor)
    wrong: list[dict[str, Any]] = [
        {"agent": ""}, {"agent": 7}, {"agent": "a", "limit": 0}, {"agent": "a", "since": "2026-01-01"},
        {"agent": "a", "since": datetime(2026, 1, 1)},  # noqa: DTZ001
    ]  # fmt: skip
    for arguments in wrong:
        with raises(InvalidInput):
            await acme.agent_messages.list(**arguments)
    with raises(InvalidInput):
        await acme.agent_messages.last("a", 0)
    with raises(InvalidFilter):
        await acme.agent_messages.list("a", where=[column("agent").eq("a")])
