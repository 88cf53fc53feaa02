"""Messages: reading, filtering, paging from both ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.filters import Filter, column, meta
from holdfast.core.paging import encode_cursor
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import World, flat, raises, raises_kind_of


async def a_session(world: World, count: int) -> tuple[AsyncTenantHandle, str, list[Message]]:
    """Create a session with messages."""
    acme = world.tenant()
    session = await acme.sessions.create()
    new = [NewMessage(role="user", content=str(number), metadata={"n": number}) for number in range(1, count + 1)]
    return acme, session.id, await acme.messages.append_many(session.id, new)


async def pages(handle: AsyncTenantHandle, session_id: str, limit: int, **how: Any) -> list[list[Message]]:
    """Return all pages of a log."""
    page = await handle.messages.list(session_id, limit=limit, **how)
    results = [[*page]]
    while page.next is not None:
        page = await handle.messages.list(session_id, limit=limit, cursor=page.next, **how)
        results.append([*page])
    return results


async def seqs(handle: AsyncTenantHandle, session_id: str, *where: Filter, **how: Any) -> list[int]:
    """Return the ``seq`` of the messages that ``list`` returns; check that ``count`` agrees."""
    messages = await handle.messages.list(session_id, where=where, **how)
    if not how:
        assert await handle.messages.count(session_id, where=where) == len(messages)
    return [message.seq for message in messages]


@contract()
async def large_messages_are_read_unchanged(world: World) -> None:
    """Both without and with a view: engines decode large messages in a thread."""
    acme = world.tenant()
    session = await acme.sessions.create()
    new = [NewMessage(role="user", content=letter * 100_000) for letter in "abc"]
    created = await acme.messages.append_many(session.id, new)
    assert [*await acme.messages.list(session.id)] == created == [*await acme.messages.last(session.id)]
    await acme.branches.rewind(session.id, to=created[1].seq)
    assert [*await acme.messages.list(session.id)] == created[:2]


@contract()
async def list_and_get_return_the_same_message(world: World) -> None:
    """Also for unusual messages: lists are decoded by faster code than single messages."""
    acme = world.tenant()
    session = await acme.sessions.create()
    new = [
        NewMessage(role="user", content=str(TEXTS), metadata=metadata, is_preserved=preserved, is_summary=summary)
        for metadata in (None, {"texts": [*TEXTS]})
        for preserved in (False, True)
        for summary in (False, True)
    ]
    new += [NewMessage(kind="x.item", content=[text], token_count=3) for text in TEXTS]
    created = await acme.messages.append_many(session.id, new)
    world.clock.advance(0.000001)
    created[::2] = [await acme.messages.update(message.id, metadata=message.metadata) for message in created[::2]]
    assert all((message.updated_at == message.created_at) is bool(place % 2) for place, message in enumerate(created))
    assert [await acme.messages.get(message.id) for message in created] == created
    assert await acme.messages.list(session.id) == created
    assert await acme.messages.list(session.id, newest_first=True) == created[::-1]
    assert await acme.messages.last(session.id) == created[-50:]


@contract()
async def changing_a_returned_message_affects_no_other(world: World) -> None:
    acme, id, _ = await a_session(world, 2)
    await acme.messages.append_many(id, [NewMessage(role="user", content="plain") for _ in range(2)])
    before = await acme.messages.list(id)
    for message in await acme.messages.list(id):
        message.metadata["mine"] = message.seq
        message.content.append(message.seq)
    assert await acme.messages.list(id) == before


@contract()
async def the_last_messages_are_read_oldest_first(world: World) -> None:
    acme, id, created = await a_session(world, 7)
    for count in (1, 2, 6, 7, 8, 1_000):
        assert await acme.messages.last(id, count) == created[-count:]
    assert await acme.messages.last(id) == created
    wrong: list[Any] = [0, -1, True, 1.5, "5"]
    for count in wrong:
        with raises(InvalidInput):
            await acme.messages.last(id, count)
    with raises(LimitExceeded, limit="page_rows"):
        await acme.messages.last(id, 1_001)
    empty = await acme.sessions.create()
    assert await acme.messages.last(empty.id) == []


@contract()
async def after_and_before_are_exclusive(world: World) -> None:
    acme, id, created = await a_session(world, 6)
    for after in range(8):
        for before in (None, 0, 1, 3, 6, 7, 2**63 - 1):
            expected = [
                message.seq for message in created if message.seq > after and (before is None or message.seq < before)
            ]
            assert await seqs(acme, id, after=after, before=before) == expected
            assert await seqs(acme, id, after=after, before=before, newest_first=True) == expected[::-1]
    wrong: list[Any] = [-1, 2**63, "1", 1.5, True]
    for place in wrong:
        with raises(InvalidInput):
            await acme.messages.list(id, after=place)
        with raises(InvalidInput):
            await acme.messages.list(id, before=place)


@contract()
async def pages_from_both_ends_make_the_whole_log(world: World) -> None:
    acme, id, created = await a_session(world, 7)
    await acme.messages.delete(id, [created[2].id, created[3].id])  # pages skip empty positions
    existing = [*created[:2], *created[4:]]
    for limit in range(1, 7):
        for how, expected in (({}, existing), ({"newest_first": True}, existing[::-1])):
            result = await pages(acme, id, limit, **how)
            assert flat(result) == expected
            assert [len(page) for page in result[:-1]] == [limit] * (len(result) - 1)
            assert 0 < len(result[-1]) <= limit
    assert flat(await pages(acme, id, 2, after=1, before=7)) == [created[1], created[4], created[5]]
    assert flat(await pages(acme, id, 2, after=1, before=7, newest_first=True)) == [created[5], created[4], created[1]]


@contract()
async def a_page_ends_before_it_exceeds_max_bytes(world: World) -> None:
    acme, id, _ = await a_session(world, 0)
    created = await acme.messages.append_many(
        id,
        [NewMessage(role="user", content=f"{number}" * size) for number, size in enumerate([1_500] * 5 + [9_000, 1])],
    )
    for how, expected in (({}, [2, 2, 1, 1, 1]), ({"newest_first": True}, [1, 1, 2, 2, 1])):
        result = await pages(acme, id, 4, max_bytes=4_000, **how)
        assert flat(result) == (created[::-1] if how else created)
        assert [len(item) for item in result] == expected
    assert [len(page) for page in await pages(acme, id, 4, max_bytes=1_000_000)] == [4, 3]


@contract()
async def pages_continue_where_they_ended_despite_concurrent_changes(world: World) -> None:
    acme, id, created = await a_session(world, 6)
    forward = await acme.messages.list(id, limit=2)
    backward = await acme.messages.list(id, limit=2, newest_first=True)
    late = await acme.messages.append(id, role="user", content="late")
    await acme.messages.delete(id, [created[1].id, created[4].id])
    rest = await acme.messages.list(id, limit=10, cursor=forward.next)
    assert [*rest] == [created[2], created[3], created[5], late]
    assert [*await acme.messages.list(id, limit=10, cursor=backward.next, newest_first=True)] == [
        created[3],
        created[2],
        created[0],
    ]
    assert rest.next is None


@contract()
async def pages_of_filtered_messages_are_full(world: World) -> None:
    acme, id, created = await a_session(world, 9)
    odd = [message for message in created if message.metadata["n"] % 2]
    where = [meta("n").is_in([1, 3, 5, 7, 9])]
    assert [len(page) for page in await pages(acme, id, 2, where=where)] == [2, 2, 1]
    assert flat(await pages(acme, id, 2, where=where)) == odd
    assert flat(await pages(acme, id, 3, where=where, newest_first=True)) == odd[::-1]


@contract()
async def only_cursors_of_this_log_are_accepted(world: World) -> None:
    acme, id, _ = await a_session(world, 3)
    await acme.sessions.create()
    forward = (await acme.messages.list(id, limit=1)).next
    backward = (await acme.messages.list(id, limit=1, newest_first=True)).next
    sessions = (await acme.sessions.list(limit=1)).next
    assert None not in (forward, backward, sessions)
    forged = [
        encode_cursor("messages", 2**64 - 1),
        encode_cursor("messages", -1),
        encode_cursor("messages", "1"),
        encode_cursor("messages", 1.5),
        encode_cursor("messages"),
        encode_cursor("messages", 1, 2),
    ]
    for cursor in [*GARBAGE_CURSORS, sessions, backward, *forged]:
        with raises_kind_of(InvalidInput):
            await acme.messages.list(id, limit=1, cursor=cursor)
    for cursor in [*GARBAGE_CURSORS, sessions, forward]:
        with raises_kind_of(InvalidInput):
            await acme.messages.list(id, cursor=cursor, newest_first=True)


@contract(limits=Limits(page_rows=4, list_rows=5))
async def pages_and_lists_of_messages_have_limits(world: World) -> None:
    acme, id, created = await a_session(world, 5)
    assert await acme.messages.list(id) == created
    assert len(await acme.messages.list(id, limit=4)) == 4
    assert len(await acme.messages.last(id, 4)) == 4
    with raises(LimitExceeded, limit="page_rows", maximum=4):
        await acme.messages.list(id, limit=5)
    with raises(LimitExceeded, limit="page_rows", maximum=4):
        await acme.messages.last(id, 5)
    wrong: list[Any] = [0, -1, True, 1.5, "4"]
    for limit in wrong:
        with raises(InvalidInput):
            await acme.messages.list(id, limit=limit)
    await acme.messages.append(id, role="user", content="one too many")
    for newest_first in (False, True):
        with raises(LimitExceeded, limit="list_rows", maximum=5):
            await acme.messages.list(id, newest_first=newest_first)
    assert len(await acme.messages.list(id, after=1)) == 5


@contract()
async def every_column_can_be_filtered_on(world: World) -> None:
    acme, id, _ = await a_session(world, 0)
    first = await acme.messages.append(id, role="user", content="a")
    world.clock.advance(60)
    two = await acme.messages.append(
        id, kind="adk.event", content={}, token_count=9, is_preserved=True, is_summary=True, metadata={"plan": "pro"}
    )
    between = first.created_at + timedelta(seconds=1)
    only_two: Sequence[Filter] = [
        column("seq").eq(2),
        column("seq").gt(1),
        column("seq").is_in([2, 3]),
        column("seq").ne(1),
        column("kind").eq("adk.event"),
        column("kind").contains("event"),
        column("kind").lt("message"),
        column("kind").is_in(["adk.event"]),
        column("role").eq(None),
        column("role").ne("user"),
        column("role").is_in([None]),
        column("role").is_in([None, "system"]),
        column("token_count").ge(9),
        column("is_preserved").eq(True),
        column("is_preserved").ne(False),
        column("is_preserved").is_in([True]),
        column("is_summary").eq(True),
        column("created_at").gt(between),
        column("created_at").is_in([two.created_at]),
        meta("plan").eq("pro"),
        meta("plan").contains("r"),
    ]
    for item in only_two:
        assert await seqs(acme, id, item) == [2], item
        assert await seqs(acme, id, item, newest_first=True, limit=5) == [2], item
    for item in (
        column("role").ne(None),
        column("role").eq("user"),
        column("role").is_in(["user"]),
        column("role").ge("a"),
    ):
        assert await seqs(acme, id, item) == [1], item
    assert await seqs(acme, id, column("is_preserved").is_in([True, False])) == [1, 2]
    assert await seqs(acme, id, column("role").contains("unknown")) == []
    assert await seqs(acme, id, *only_two) == [2]


@contract()
async def invalid_filters_are_rejected(world: World) -> None:
    acme, id, _ = await a_session(world, 1)
    wrong: list[Any] = [
        column("content").eq("x"),
        column("id").eq(id),
        column("session_id").eq(id),
        column("is_preserved").eq(1),
        column("is_preserved").lt(True),
        column("is_summary").contains(True),
        column("role").eq(1),
        column("seq").eq("1"),
        Filter("regex", "x", column="role"),  # type: ignore[arg-type]
        "seq = 1",
    ]
    for item in wrong:
        with raises(InvalidFilter):
            await acme.messages.list(id, where=[item])
        with raises(InvalidFilter):
            await acme.messages.count(id, where=[item])
    not_lists: list[Any] = [column("seq").eq(1), "seq", None, {column("seq").eq(1)}]
    for item in not_lists:
        with raises(InvalidFilter):
            await acme.messages.list(id, where=item)
    with raises(LimitExceeded, limit="filters", maximum=32):
        await acme.messages.list(id, where=[column("seq").eq(1)] * 33)


@contract()
async def metadata_keys_have_no_special_characters(world: World) -> None:
    acme, id, _ = await a_session(world, 0)
    await acme.messages.append_many(id, [NewMessage(role="user", content="x", metadata={text: text}) for text in TEXTS])
    for place, text in enumerate(TEXTS, 1):
        assert await seqs(acme, id, meta(text).eq(text)) == [place], text
        assert await seqs(acme, id, meta(text).ge(text)) == [place], text
        assert await seqs(acme, id, meta(text).is_in([text, 1])) == [place], text


@contract()
async def a_list_contains_only_its_session(world: World) -> None:
    acme, one, created = await a_session(world, 3)
    _, other, theirs = await a_session(world, 2)
    assert await acme.messages.list(one) == created
    assert await acme.messages.list(other) == theirs
    assert await acme.messages.last(other, 10) == theirs
    assert (await acme.messages.count(one), await acme.messages.count(other)) == (3, 2)
    page = await acme.messages.list(one, limit=1)
    assert [*await acme.messages.list(other, limit=5, cursor=page.next)] == theirs[1:]
