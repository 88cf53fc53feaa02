"""Pending messages: the messages in group chats that wait for an answer."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.core.paging import encode_cursor
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.keys import SessionKey
from holdfast.stores.conversation.pending_messages import NewPendingMessage, PendingMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import World, flat, raises, uuid_of

ROOM = ("telegram", "-100")


def new_messages(*bodies: str, room: tuple[str, str] = ROOM, **fields: Any) -> list[NewPendingMessage]:
    """Return new messages of one group."""
    return [NewPendingMessage(channel_name=room[0], history_key=room[1], body=body, **fields) for body in bodies]


async def bodies(acme: AsyncTenantHandle, room: tuple[str, str] = ROOM) -> list[str]:
    """Return the bodies of a group's pending messages."""
    return [message.body for message in await acme.pending_messages.list_by_key(*room)]


@contract()
async def a_batch_keeps_its_order_and_its_fields(world: World) -> None:
    acme = world.tenant()
    new = NewPendingMessage(
        channel_name="telegram", history_key="-100", body="hi", sender="Ada", sender_id="7", platform_msg_id="m1"
    )
    created = await acme.pending_messages.append_batch([new, *new_messages("two", "three")])
    assert [(message.seq, message.body) for message in created] == [(1, "hi"), (2, "two"), (3, "three")]
    first = created[0]
    assert (first.channel_name, first.history_key, first.sender) == ("telegram", "-100", "Ada")
    assert (first.sender_id, first.platform_msg_id, first.is_summary) == ("7", "m1", False)
    assert first.created_at == first.updated_at == from_us(world.clock.now_us())
    assert await acme.pending_messages.list_by_key("telegram", "-100") == created
    assert await acme.pending_messages.append_batch([]) == []
    world.clock.advance(-60)  # order is by place, never by time
    await acme.pending_messages.append_batch(new_messages("four"))
    assert await bodies(acme) == ["hi", "two", "three", "four"]


@contract()
async def a_batch_of_several_groups_is_numbered_in_each_group(world: World) -> None:
    acme = world.tenant()
    other = ("discord", "-100")
    created = await acme.pending_messages.append_batch(
        [*new_messages("a"), *new_messages("x", room=other), *new_messages("b"), *new_messages("y", room=other)]
    )
    assert [(message.body, message.seq) for message in created] == [("a", 1), ("x", 1), ("b", 2), ("y", 2)]
    assert await bodies(acme) == ["a", "b"]
    assert await bodies(acme, other) == ["x", "y"]
    assert await acme.pending_messages.count_by_key(*other) == 2
    assert await acme.pending_messages.count_by_key("telegram", "-1") == 0
    assert await acme.pending_messages.count_all() == 4
    assert await world.tenant("zenith").pending_messages.count_all() == 0
    assert await bodies(world.tenant("zenith")) == []


@contract()
async def a_batch_can_be_repeated_by_its_ids(world: World) -> None:
    acme = world.tenant()
    batch = [*new_messages("a", id=uuid_of("a"), sender="Ada"), *new_messages("b", id=uuid_of("b"))]
    created = await acme.pending_messages.append_batch(batch)
    world.clock.advance(60)
    assert await acme.pending_messages.append_batch(batch) == created
    assert await acme.pending_messages.append_batch(batch[::-1]) == created[::-1]
    assert await acme.pending_messages.list_by_key(*ROOM) == created
    others = [
        new_messages("other", id=uuid_of("a"), sender="Ada"),
        new_messages("a", id=uuid_of("a"), sender="Bob"),
        new_messages("a", id=uuid_of("a"), sender="Ada", room=("telegram", "-1001")),
        [*batch, *new_messages("c", id=uuid_of("c"))],
        [*batch, *new_messages("c")],
    ]
    for other in others:
        with raises(Conflict):
            await acme.pending_messages.append_batch(other)
    assert await acme.pending_messages.list_by_key(*ROOM) == created
    assert await acme.pending_messages.count_all() == 2


@contract()
async def groups_of_the_same_name_in_another_tenant_are_not_touched(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    batch = [*new_messages("a", id=uuid_of("a")), *new_messages("b", id=uuid_of("b"))]
    for handle in (acme, zenith):
        await handle.pending_messages.append_batch(batch)
    theirs = [*await zenith.pending_messages.list_by_key(*ROOM)]
    assert await acme.pending_messages.count_by_key(*ROOM) == 2
    summary = await acme.pending_messages.compact([uuid_of("a"), uuid_of("b")], "S", id=uuid_of("s"))
    assert await zenith.pending_messages.compact([uuid_of("s")], "S", id=uuid_of("s")) is None
    assert await acme.pending_messages.list_by_key(*ROOM) == [summary]
    assert await acme.pending_messages.delete_by_key(*ROOM) == 1
    assert await zenith.pending_messages.list_by_key(*ROOM) == theirs
    (after,) = await zenith.pending_messages.append_batch(new_messages("c"))
    assert after.seq == 3, "their group still exists"


@contract()
async def invalid_pending_messages_are_rejected(world: World) -> None:
    acme = world.tenant()
    wrong: list[Any] = [
        "text",
        ["text"],
        [None],
        new_messages("a", room=("", "k")),
        new_messages("a", room=("c", "")),
        new_messages("a", id="no id"),
        new_messages(7),  # type: ignore[arg-type]
        new_messages("a", sender=7),
        new_messages("a", platform_msg_id=None),
        new_messages("a", "b", id=uuid_of("same")),
    ]
    for messages in wrong:
        with raises(InvalidInput):
            await acme.pending_messages.append_batch(messages)
        with raises(InvalidInput):
            await acme.pending_messages.append_batch(
                [*new_messages("good"), *(messages if messages != "text" else [None])]
            )
    assert await acme.pending_messages.count_all() == 0


@contract(limits=Limits(name_bytes=4, key_bytes=6, content_bytes=8, batch_rows=2, page_rows=2, list_rows=3))
async def pending_messages_have_limits(world: World) -> None:
    acme, room = world.tenant(), ("chan", "group6")
    await acme.pending_messages.append_batch(new_messages("x" * 8, room=room))
    too_much = [
        (new_messages("x" * 9, room=room), ("content_bytes", 8)),
        (new_messages("x", room=("chann", "g")), ("name_bytes", 4)),
        (new_messages("x", room=("c", "group 7")), ("key_bytes", 6)),
        (new_messages("x", room=room, sender="Grace"), ("name_bytes", 4)),
        (new_messages("x", "y", "z", room=room), ("batch_rows", 2)),
    ]
    for messages, (limit, maximum) in too_much:
        with raises(LimitExceeded, limit=limit, maximum=maximum):
            await acme.pending_messages.append_batch(messages)
    (message,) = await acme.pending_messages.list_by_key(*room)
    with raises(LimitExceeded, limit="content_bytes", maximum=8):
        await acme.pending_messages.compact([message.id], "x" * 9)
    with raises(LimitExceeded, limit="batch_rows", maximum=2):
        await acme.pending_messages.compact([message.id] * 3, "x")
    await acme.pending_messages.append_batch(new_messages("2", "3", room=room))
    assert len(await acme.pending_messages.list_by_key(*room)) == 3
    await acme.pending_messages.append_batch(new_messages("4", room=room))
    with raises(LimitExceeded, limit="list_rows", maximum=3):
        await acme.pending_messages.list_by_key(*room)
    with raises(LimitExceeded, limit="page_rows", maximum=2):
        await acme.pending_messages.list_by_key(*room, limit=3)


@contract()
async def any_text_can_be_a_message_or_a_group(world: World) -> None:
    acme = world.tenant()
    new = [
        NewPendingMessage(channel_name=text, history_key=text, body=text, sender=text, sender_id=text) for text in TEXTS
    ]
    created = await acme.pending_messages.append_batch(new)
    assert [(message.body, message.sender) for message in created] == [(text, text) for text in TEXTS]
    for text, message in zip(TEXTS, created, strict=True):
        assert await acme.pending_messages.list_by_key(text, text) == [message]
    assert {group.name for group in await acme.pending_messages.list_groups()} == {(text, text) for text in TEXTS}
    summary = await acme.pending_messages.compact([created[0].id], "".join(TEXTS))
    assert summary is not None
    assert summary.body == "".join(TEXTS)


@contract()
async def a_summary_takes_the_position_of_the_first_message_it_replaces(world: World) -> None:
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(new_messages(*"abcdef"))
    world.clock.advance(60)
    summary = await acme.pending_messages.compact(
        [created[0].id, created[2].id.upper(), created[1].id, uuid_of("missing")], "S"
    )
    assert summary is not None
    assert (summary.seq, summary.body, summary.is_summary) == (1, "S", True)
    assert (summary.channel_name, summary.history_key, summary.sender) == (*ROOM, "")
    assert summary.created_at == created[2].created_at
    assert summary.updated_at == from_us(world.clock.now_us())
    assert await bodies(acme) == ["S", "d", "e", "f"]
    await acme.pending_messages.append_batch(new_messages("g"))
    again = await acme.pending_messages.compact([summary.id, created[3].id], "T")
    assert again is not None
    assert [(message.body, message.seq) for message in await acme.pending_messages.list_by_key(*ROOM)] == [
        ("T", 1), ("e", 5), ("f", 6), ("g", 7)
    ]  # fmt: skip


@contract()
async def a_summary_comes_before_the_messages_that_remain(world: World) -> None:
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(new_messages(*"abcde"))
    await acme.pending_messages.compact([created[4].id, created[1].id], "S")
    assert await bodies(acme) == ["a", "S", "c", "d"]
    (group,) = await acme.pending_messages.list_groups()
    assert not group.has_summary, "the last message is not a summary"


@contract()
async def without_removed_messages_no_summary_is_stored(world: World) -> None:
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(new_messages("a", "b"))
    ids = [message.id for message in created]
    assert await acme.pending_messages.compact([], "S") is None
    assert await acme.pending_messages.compact([uuid_of("missing")], "S") is None
    assert await world.tenant("zenith").pending_messages.compact(ids, "S") is None
    first = await acme.pending_messages.compact(ids, "first", id=uuid_of("first"))
    assert await acme.pending_messages.compact(ids, "second") is None
    assert await acme.pending_messages.compact(ids, "first", id=uuid_of("first")) == first
    with raises(Conflict):
        await acme.pending_messages.compact(ids, "other words", id=uuid_of("first"))
    assert await acme.pending_messages.list_by_key(*ROOM) == [first]


@contract()
async def a_rejected_summary_changes_nothing(world: World) -> None:
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(
        [*new_messages("a", "b"), *new_messages("x", room=("telegram", "-1001"))]
    )
    ids = [message.id for message in created]
    with raises(InvalidInput, field="message_ids"):
        await acme.pending_messages.compact(ids, "S")
    with raises(Conflict):
        await acme.pending_messages.compact(ids[:1], "S", id=ids[1])
    wrong: list[Any] = [ids[0], None, ["no id"], 7]
    for message_ids in wrong:
        with raises(InvalidInput):
            await acme.pending_messages.compact(message_ids, "S")
    with raises(InvalidInput):
        await acme.pending_messages.compact(ids[:1], None)  # type: ignore[arg-type]
    assert await acme.pending_messages.list_by_key(*ROOM) == created[:2]
    assert await acme.pending_messages.count_all() == 3


@contract()
async def a_cleared_group_is_empty_and_numbered_from_one_again(world: World) -> None:
    acme = world.tenant()
    batch = [*new_messages("a", "b", id=None), *new_messages("x", room=("telegram", "-1001"))]
    await acme.pending_messages.append_batch(batch)
    assert await acme.pending_messages.delete_by_key(*ROOM) == 2
    assert await acme.pending_messages.delete_by_key(*ROOM) == 0
    assert await world.tenant("zenith").pending_messages.delete_by_key("telegram", "-1001") == 0
    assert await bodies(acme) == []
    assert [group.name for group in await acme.pending_messages.list_groups()] == [("telegram", "-1001")]
    (again,) = await acme.pending_messages.append_batch(new_messages("c"))
    assert again.seq == 1
    for wrong in (("", "k"), ("c", "")):
        with raises(InvalidInput):
            await acme.pending_messages.delete_by_key(*wrong)


@contract()
async def only_stale_messages_are_removed(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    for handle in (acme, zenith):
        await handle.pending_messages.append_batch(
            [*new_messages("old"), *new_messages("alone", room=("discord", "1"))]
        )
    world.clock.advance(3_600)
    await acme.pending_messages.append_batch(new_messages("new"))
    assert await acme.pending_messages.delete_stale(older_than=timedelta(hours=1)) == 0
    assert await acme.pending_messages.delete_stale(older_than=timedelta.max) == 0
    assert await acme.pending_messages.delete_stale(older_than=timedelta(minutes=59)) == 2
    assert await bodies(acme) == ["new"]
    assert await zenith.pending_messages.count_all() == 2
    (next_one,) = await acme.pending_messages.append_batch(new_messages("next"))
    assert next_one.seq == 3, "a group with remaining messages keeps counting"
    (message,) = await acme.pending_messages.append_batch(new_messages("again", room=("discord", "1")))
    assert message.seq == 1
    assert await acme.pending_messages.delete_stale(older_than=timedelta(0)) == 0
    wrong: list[Any] = [60, None, timedelta(seconds=-1)]
    for older_than in wrong:
        with raises(InvalidInput):
            await acme.pending_messages.delete_stale(older_than=older_than)


@contract()
async def the_age_of_a_summary_counts_from_its_creation(world: World) -> None:
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(new_messages("a", "b"))
    world.clock.advance(3_600)
    await acme.pending_messages.compact([created[0].id], "S")
    assert await acme.pending_messages.delete_stale(older_than=timedelta(minutes=30)) == 1
    assert await bodies(acme) == ["S"]
    created = await acme.pending_messages.append_batch(new_messages("a"))
    youngest = from_us(world.clock.now_us())
    world.clock.advance(-3_600)
    later = await acme.pending_messages.append_batch(new_messages("b"))
    summary = await acme.pending_messages.compact([created[0].id, later[0].id], "T")
    assert summary is not None
    assert (summary.created_at, summary.updated_at) == (youngest, youngest), (
        "a clock that goes back makes nothing stale"
    )
    (group,) = await acme.pending_messages.list_groups()
    assert group.last_activity == youngest, "a summary does not reduce the activity of a group"


@contract()
async def groups_are_listed_with_the_newest_first(world: World) -> None:
    acme = world.tenant()
    rooms = [("telegram", "1"), ("telegram", "2"), ("discord", "1")]
    for room in rooms:
        created = await acme.pending_messages.append_batch(new_messages("a", "b", room=room))
        world.clock.advance(60)
    await acme.pending_messages.compact([message.id for message in created], "S")
    result = await acme.pending_messages.list_groups()
    assert [group.name for group in result] == rooms[::-1], "a summary does not count as activity"
    assert [(group.message_count, group.has_summary) for group in result] == [(1, True), (2, False), (2, False)]
    assert result[0].last_activity == created[-1].created_at
    await acme.pending_messages.append_batch([*new_messages("c", room=rooms[0]), *new_messages("c", room=rooms[2])])
    result = await acme.pending_messages.list_groups()
    assert [group.name for group in result] == [rooms[2], rooms[0], rooms[1]], "with equal times, sorted by name"
    assert [group.has_summary for group in result] == [False, False, False], "the last message is not the summary"
    assert await world.tenant("zenith").pending_messages.list_groups() == []


@contract()
async def groups_and_messages_can_be_paged(world: World) -> None:
    acme = world.tenant()
    names = [("c", text) for text in TEXTS[:9]]
    for number, room in enumerate(names):
        await acme.pending_messages.append_batch(new_messages(*"abcde", room=room))
        world.clock.advance(number % 2)
    for limit in (2, 4, 10):
        page = await acme.pending_messages.list_groups(limit=limit)
        pages: list[Any] = [page]
        while page.next is not None:
            page = await acme.pending_messages.list_groups(limit=limit, cursor=page.next)
            pages.append(page)
        assert flat(pages) == await acme.pending_messages.list_groups()
        first = await acme.pending_messages.list_by_key(*names[0], limit=limit)
        assert [message.seq for message in first] == [*range(1, min(limit, 5) + 1)]
        assert (first.next is None) == (limit >= 5)
        if first.next is not None:
            rest = await acme.pending_messages.list_by_key(*names[0], cursor=first.next)
            assert [message.seq for message in rest] == [*range(limit + 1, 6)]
    foreign = (await acme.pending_messages.list_groups(limit=1)).next
    for cursor in [*GARBAGE_CURSORS, foreign, encode_cursor("pending", "a")]:
        with raises(InvalidFilter):
            await acme.pending_messages.list_by_key(*names[0], cursor=cursor)
    with raises(InvalidFilter):
        await acme.pending_messages.list_groups(cursor=encode_cursor("pending", 1))


@contract()
async def titles_come_from_the_sessions_of_a_group(world: World) -> None:
    acme = world.tenant()

    async def titled(agent: str, channel: str, peer: str, title: Any, user: str | None = None) -> str:
        key = SessionKey.group(agent=agent, channel=channel, peer=peer)
        return (await acme.sessions.create(key=key, user=user, metadata={"chat_title": title})).id

    await titled("helper", "telegram", "-100", "Friends")
    await titled("helper", "telegram", "-1001", "A longer name of a group")
    await titled("helper", "discord", "-100", "Elsewhere")
    await titled("helper", "telegram", "-100:topic:7", "A topic")
    await titled("helper", "telegram", "numbers", 7)
    await titled("helper", "telegram", "empty", "")
    await titled("helper", "telegram", "nothing", None)
    await titled("helper", "telegram", "%", "percent")
    await titled("helper", "telegram", "a\x00\ud800", "\ud800 title")
    await acme.sessions.create(key="agent:helper:x:telegram:group:inside", metadata={"chat_title": "not a group"})
    await acme.sessions.create(key="telegram:group:bare", metadata={"chat_title": "no agent"})
    await acme.sessions.create(
        key=SessionKey.direct(agent="h", channel="telegram", peer="group:me"), metadata={"chat_title": "x"}
    )
    await world.tenant("zenith").sessions.create(
        key=SessionKey.group(agent="a", channel="telegram", peer="theirs"), metadata={"chat_title": "theirs"}
    )
    peers = ["-100", "-1001", "-10", "-100:topic:7", "numbers", "empty", "nothing", "%", "_", "a\x00\ud800"]
    peers += ["inside", "bare", "theirs", "me", "group:me"]
    asked = [("telegram", peer) for peer in peers] + [("discord", "-100"), ("tele:gram", "x"), ("cron", "x"), ("t", "")]
    assert await acme.pending_messages.resolve_group_titles(asked) == {
        ("telegram", "-100"): "Friends",
        ("telegram", "-1001"): "A longer name of a group",
        ("telegram", "-100:topic:7"): "A topic",
        ("telegram", "%"): "percent",
        ("telegram", "a\x00\ud800"): "\ud800 title",
        ("discord", "-100"): "Elsewhere",
    }
    assert await acme.pending_messages.resolve_group_titles([]) == {}


@contract()
async def of_several_titles_that_of_the_most_recently_used_session_is_returned(world: World) -> None:
    acme, asked = world.tenant(), [ROOM]
    messages = []
    for agent in ("one", "two"):
        key = SessionKey.group(agent=agent, channel="telegram", peer="-100")
        messages.append(await acme.sessions.create(key=key, metadata={"chat_title": agent}))
        world.clock.advance(1)
    assert await acme.pending_messages.resolve_group_titles(asked) == {ROOM: "two"}
    await acme.messages.append(messages[0].id, role="user", content="x")
    assert await acme.pending_messages.resolve_group_titles(asked) == {ROOM: "one"}
    await acme.sessions.delete(messages[0].id)
    assert await acme.pending_messages.resolve_group_titles(asked) == {ROOM: "two"}
    await acme.sessions.delete(messages[1].id)
    assert await acme.pending_messages.resolve_group_titles(asked) == {}
    wrong: list[Any] = ["telegram", ["telegram"], [("a",)], [("a", 7)], [("a", "b", "c")], None]
    for groups in wrong:
        with raises(InvalidInput):
            await acme.pending_messages.resolve_group_titles(groups)


@contract("tenants")
async def a_pending_message_registers_its_tenant_and_is_deleted_with_it(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    for handle in (acme, zenith):
        await handle.pending_messages.append_batch(new_messages("a"))
    assert (await world.tenants.get("acme")).id == "acme"
    with raises(Conflict):
        await world.tenants.delete("acme")
    await world.tenants.delete("acme", cascade=True)
    assert await acme.pending_messages.count_all() == 0
    assert await zenith.pending_messages.count_all() == 1
    (again,) = await acme.pending_messages.append_batch(new_messages("b"))
    assert again.seq == 1
    await acme.pending_messages.delete_by_key(*ROOM)
    await world.tenants.delete("acme")
    with raises(NotFound):
        await world.tenants.get("acme")


@contract("concurrency")
async def concurrent_batches_to_one_group_are_all_stored(world: World) -> None:
    acme = world.tenant()
    rooms = [ROOM, ("discord", "1")]
    calls = [
        partial(
            acme.pending_messages.append_batch,
            [*new_messages(f"{n}a", f"{n}b", room=rooms[n % 2]), *new_messages(f"{n}c", room=rooms[1 - n % 2])],
        )
        for n in range(16)
    ]
    results = await world.together(*calls)
    assert all(isinstance(result, list) for result in results), results
    for room in rooms:
        messages = await acme.pending_messages.list_by_key(*room)
        assert [message.seq for message in messages] == [*range(1, 25)]
        order = [message.body for message in messages]
        for n in range(16):
            if room == rooms[n % 2]:
                assert order.index(f"{n}b") == order.index(f"{n}a") + 1, "a batch has consecutive positions"


@contract("concurrency")
async def concurrent_repetitions_store_one_batch(world: World) -> None:
    acme = world.tenant()
    batch = [*new_messages("a", id=uuid_of("a")), *new_messages("b", id=uuid_of("b"))]
    results = await world.together(*[partial(acme.pending_messages.append_batch, batch)] * 8)
    assert all(result == results[0] for result in results), results
    assert await bodies(acme) == ["a", "b"]
    calls = [partial(acme.pending_messages.append_batch, new_messages(str(n), id=uuid_of("c"))) for n in range(8)]
    kinds = Counter(type(result) for result in await world.together(*calls))
    assert kinds == {list: 1, Conflict: 7}, kinds


@contract("concurrency")
async def one_of_several_concurrent_compactions_wins(world: World) -> None:
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(new_messages(*"abcdef"))
    ids = [message.id for message in created[:4]]
    results: list[Any] = await world.together(
        *[partial(acme.pending_messages.compact, ids, f"S{n}") for n in range(6)],
        *[partial(acme.pending_messages.append_batch, new_messages("g"))] * 2,
    )
    summaries = [result for result in results if isinstance(result, PendingMessage)]
    assert len(summaries) == 1, results
    assert results.count(None) == 5, results
    assert await bodies(acme) == [summaries[0].body, "e", "f", "g", "g"]


@contract("concurrency")
async def concurrent_clears_and_appends_keep_the_order(world: World) -> None:
    """The remaining messages are in the order in which they were appended, whichever call was first."""
    acme = world.tenant()
    created = await acme.pending_messages.append_batch(new_messages(*"abc"))
    for turn in range(4):
        results: list[Any] = await world.together(
            partial(acme.pending_messages.append_batch, new_messages(f"{turn}x", f"{turn}y")),
            partial(acme.pending_messages.delete_by_key, *ROOM),
            partial(acme.pending_messages.compact, [message.id for message in created], f"{turn}S"),
            partial(acme.pending_messages.delete_stale, older_than=timedelta(0)),
            partial(acme.pending_messages.append_batch, new_messages(f"{turn}z")),
        )
        assert not any(isinstance(result, Exception) for result in results), results
        world.clock.advance(1)
        created = await acme.pending_messages.append_batch(new_messages(f"{turn}last"))
        messages = await acme.pending_messages.list_by_key(*ROOM)
        assert messages[-1] == created[0]
        order = [message.body for message in messages]
        if f"{turn}x" in order:
            assert order.index(f"{turn}y") == order.index(f"{turn}x") + 1
