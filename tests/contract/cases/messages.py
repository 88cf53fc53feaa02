"""Messages: appending to a session's log."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import NOT_JSON, nested, same
from tests.contract.cases.world import World, everything, raises, raises_kind_of, uuid_of

BAD_IDS: tuple[Any, ...] = ("", "42", "not-a-uuid", "x" * 36, 7, uuid_of("a") + "0", "'; --")


class FrameworkRole(StrEnum):
    """Frameworks define their roles as string enumerations, which drivers convert in their own ways."""

    USER = "user"


async def check_counters(handle: AsyncTenantHandle, session_id: str) -> None:
    """Check that the counters of a session equal its messages."""
    session, existing = await handle.sessions.get(session_id), await handle.messages.list(session_id)
    assert session.message_count == len(existing) == await handle.messages.count(session_id)
    assert session.token_count == sum(message.token_count for message in existing)


@contract()
async def a_message_is_returned_as_it_was_appended(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append(
        session.id,
        role="assistant",
        content="Hello",
        metadata={"n": 1},
        token_count=7,
        is_preserved=True,
        is_summary=True,
    )
    assert (created.session_id, created.seq, created.kind, created.role) == (session.id, 1, "message", "assistant")
    assert created.content == [{"type": "text", "text": "Hello"}]
    assert (created.metadata, created.token_count, created.is_preserved, created.is_summary) == (
        {"n": 1},
        7,
        True,
        True,
    )
    assert created.created_at == created.updated_at == from_us(world.clock.now_us())
    assert await acme.messages.get(created.id) == created
    assert await acme.messages.list(session.id) == [created]
    assert await acme.messages.last(session.id) == [created]


@contract()
async def optional_fields_of_a_message_have_defaults(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append(session.id, role="user", content="")
    assert (created.metadata, created.is_preserved, created.is_summary) == ({}, False, False)
    assert created.content == [{"type": "text", "text": ""}]
    assert len(created.id) == 36
    assert await acme.messages.get(created.id.upper()) == created


@contract()
async def content_blocks_are_stored_unchanged(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x", "n": [1, 2.0, None, True]}},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}], "is_error": False},
        {"type": "thinking", "thinking": "...", "signature": "\x00\ud800"},
        {"type": "made up", "": None},
        {"type": ""},
    ]
    created = await acme.messages.append(session.id, role="assistant", content=blocks)
    assert same(created.content, blocks)
    assert same((await acme.messages.get(created.id)).content, blocks)
    assert (await acme.messages.append(session.id, role="user", content=[])).content == []
    assert (await acme.messages.append(session.id, role="user", content=({"type": "text", "text": "t"},))).content == [
        {"type": "text", "text": "t"}
    ]


@contract()
async def content_of_a_message_must_be_text_or_blocks(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    wrong: list[Any] = [
        None,
        7,
        True,
        {"type": "text"},
        ["text"],
        [{"text": "no type"}],
        [{"type": 7}],
        [None],
        b"bytes",
    ]
    for content in wrong:
        with raises(InvalidInput):
            await acme.messages.append(session.id, role="user", content=content)
    for value in NOT_JSON:
        with raises_kind_of(InvalidText):
            await acme.messages.append(session.id, role="user", content=[{"type": "x", "v": value}])
        with raises_kind_of(InvalidText):
            await acme.messages.append(session.id, kind="x.y", content=value)
        with raises_kind_of(InvalidText):
            await acme.messages.append(session.id, role="user", content="x", metadata={"v": value})
    assert await acme.messages.count(session.id) == 0


@contract()
async def a_message_has_one_of_three_roles(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for role in ("user", "assistant", "system", FrameworkRole.USER):
        created = await acme.messages.append(session.id, role=role, content="x")
        assert repr(created.role) == repr(str(role))
        assert await acme.messages.get(created.id) == created
    wrong: list[Any] = [None, "", "tool", "User", "user ", "user\n", 7, ["user"]]
    for role in wrong:
        with raises(InvalidInput, field="role"):
            await acme.messages.append(session.id, role=role, content="x")
        if role is not None:
            with raises(InvalidInput, field="role"):
                await acme.messages.append(session.id, kind="x", role=role, content="x")
    assert await acme.messages.count(session.id) == 4


@contract()
async def content_of_other_kinds_is_stored_verbatim(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    entries: list[tuple[str, Any]] = [
        ("adk.event", {"author": "agent", "actions": {"state_delta": {"a": 1}}, "partial": None}),
        ("openai.item", {"type": "function_call", "arguments": "{}", "call_id": "c"}),
        ("claude.entry", ["a", ["b"], {"c": []}]),
        ("a2a.message", "just text"),
        ("x", None),
        ("0", True),
        ("a-b_c.d", 1.0),
        ("n" * 64, 10**30),
        ("deep", nested(50)),
    ]
    for kind, content in entries:
        created = await acme.messages.append(session.id, kind=kind, content=content)
        assert (created.kind, created.role) == (kind, None)
        assert same(created.content, content)
    assert [message.kind for message in await acme.messages.list(session.id)] == [kind for kind, _ in entries]
    for message, (_, content) in zip(await acme.messages.list(session.id), entries, strict=True):
        assert same(message.content, content)
    assert (await acme.messages.append(session.id, kind="x", role="user", content={})).role == "user"


@contract()
async def a_kind_must_be_a_plain_name(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    wrong: list[Any] = ["", "A", "é", "a b", "a\n", ".a", "-a", "_a", "a/b", "n" * 65, None, 7, ["x"], "a\x00", "'--"]
    for kind in wrong:
        with raises(InvalidInput, field="kind"):
            await acme.messages.append(session.id, kind=kind, content="x")


@contract()
async def positions_have_no_gap_and_order_is_never_by_time(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for number in range(1, 8):
        world.clock.advance(-61 if number % 2 else 20)
        created = await acme.messages.append(session.id, role="user", content=str(number))
        assert (created.seq, created.created_at) == (number, from_us(world.clock.now_us()))
    messages = await acme.messages.list(session.id)
    assert [message.content[0]["text"] for message in messages] == [str(number) for number in range(1, 8)]
    assert [message.seq for message in await acme.messages.last(session.id, 3)] == [5, 6, 7]


@contract()
async def a_failed_append_leaves_no_gap(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content="one", id=uuid_of("m"))
    with raises(Conflict):
        await acme.messages.append(session.id, role="user", content="other", id=uuid_of("m"))
    with raises(InvalidInput):
        await acme.messages.append(session.id, role="invalid", content="x")
    with raises(NotFound):
        await acme.messages.append(uuid_of("missing"), role="user", content="x")
    with raises(Conflict):
        await acme.messages.append_many(
            session.id, [NewMessage(role="user", content="new"), NewMessage(role="user", content="x", id=uuid_of("m"))]
        )
    assert (await acme.messages.append(session.id, role="user", content="two")).seq == 2
    await check_counters(acme, session.id)


@contract()
async def token_counts_are_whole_numbers(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for count in (0, 1, 2**31 - 1):
        assert (
            await acme.messages.append(session.id, role="user", content="x", token_count=count)
        ).token_count == count
    wrong: list[Any] = [-1, 2**31, 1.5, True, "1"]
    for count in wrong:
        with raises(InvalidInput, field="token_count"):
            await acme.messages.append(session.id, role="user", content="x", token_count=count)
    session = await acme.sessions.get(session.id)
    assert (session.message_count, session.token_count) == (3, 2**31)


@contract()
async def the_counters_of_a_session_follow_its_messages(world: World) -> None:
    acme = world.tenant()
    session, other = await acme.sessions.create(), await acme.sessions.create()
    world.clock.advance(30)
    await acme.messages.append(session.id, role="user", content="x", token_count=5)
    await acme.messages.append(session.id, role="assistant", content="y", token_count=5)
    await acme.messages.append_many(
        session.id, [NewMessage(role="user", content="z", token_count=n) for n in (1, 2, 3)]
    )
    now = await acme.sessions.get(session.id)
    assert (now.message_count, now.token_count, now.updated_at) == (5, 16, from_us(world.clock.now_us()))
    assert await acme.sessions.get(other.id) == other
    await check_counters(acme, session.id)


@contract()
async def a_repeated_append_with_the_same_id_returns_the_first_result(world: World) -> None:
    acme, id = world.tenant(), uuid_of("m")
    session = await acme.sessions.create()
    content = [{"type": "x", "a": 1, "b": [1.5, None]}]
    first = await acme.messages.append(session.id, role="user", content=content, metadata={"n": 1, "m": 2}, id=id)
    await acme.messages.append(session.id, role="user", content="between")
    world.clock.advance(60)
    again = [{"b": [1.5, None], "a": 1, "type": "x"}]  # the order of an object's keys does not matter
    for value in (id, id.upper(), f"urn:uuid:{id}"):
        repeated = await acme.messages.append(
            session.id, role="user", content=again, metadata={"m": 2, "n": 1}, id=value
        )
        assert repeated == first
    await check_counters(acme, session.id)
    assert (await acme.messages.append(session.id, role="user", content="next")).seq == 3


@contract()
async def the_same_id_with_other_content_is_a_conflict(world: World) -> None:
    acme, id = world.tenant(), uuid_of("m")
    session, other = await acme.sessions.create(), await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content=[{"type": "x", "v": 1}], metadata={"n": 1}, id=id)
    before = await everything(acme)
    one = {"role": "user", "content": [{"type": "x", "v": 1}], "metadata": {"n": 1}, "id": id}
    changes: list[dict[str, Any]] = [
        {"role": "assistant"},
        {"content": "text"},
        {"content": [{"type": "x", "v": 2}]},
        {"content": [{"type": "x", "v": True}]},
        {"content": [{"type": "x", "v": 1.0}]},
        {"content": [{"type": "x", "v": "1"}]},
        {"content": [{"type": "x", "v": 1, "w": None}]},
        {"metadata": {"n": 2}},
        {"metadata": {"n": True}},
        {"metadata": None},
        {"kind": "other"},
    ]
    for change in changes:
        with raises(Conflict):
            await acme.messages.append(session.id, **{**one, **change})
    with raises(Conflict):
        await acme.messages.append(other.id, **one)  # type: ignore[arg-type]
    assert await everything(acme) == before


@contract()
async def message_ids_must_be_uuids(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for bad in BAD_IDS:
        with raises(InvalidInput, field="message id"):
            await acme.messages.append(session.id, role="user", content="x", id=bad)
        with raises(InvalidInput, field="session id"):
            await acme.messages.append(bad, role="user", content="x")
        with raises(InvalidInput, field="session id"):
            await acme.messages.append_many(bad, [NewMessage(role="user", content="x")])
        with raises(InvalidInput, field="message id"):
            await acme.messages.get(bad)
        with raises(InvalidInput, field="message id"):
            await acme.messages.update(bad, content="x")
        with raises(InvalidInput, field="message id"):
            await acme.messages.delete(session.id, [bad])
        for call in (acme.messages.list, acme.messages.last, acme.messages.count):
            with raises(InvalidInput, field="session id"):
                await call(bad)


@contract()
async def messages_need_a_live_session(world: World) -> None:
    acme, missing_id = world.tenant(), uuid_of("missing")
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.append(missing_id, role="user", content="x")
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.append_many(missing_id, [NewMessage(role="user", content="x")])
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.list(missing_id)
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.list(missing_id, limit=1, newest_first=True)
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.last(missing_id)
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.count(missing_id)
    with raises(NotFound, noun="session", key=missing_id):
        await acme.messages.delete(missing_id, [])
    with raises(NotFound, noun="message", key=missing_id):
        await acme.messages.get(missing_id)
    with raises(NotFound, noun="message", key=missing_id):
        await acme.messages.update(missing_id, content="x")


@contract(limits=Limits(content_bytes=100, metadata_bytes=30, json_depth=6))
async def a_message_may_be_as_large_and_deep_as_the_limits(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    around = len('[{"type":"text","text":""}]')
    for letter, size in (("x", 1), ("漢", 3), ("\U0001f600", 4)):
        fits = letter * ((100 - around) // size)
        created = await acme.messages.append(session.id, role="user", content=fits)
        assert created.content == [{"type": "text", "text": fits}]
        with raises(LimitExceeded, limit="content_bytes", maximum=100):
            await acme.messages.append(session.id, role="user", content=fits + letter)
        with raises(LimitExceeded, limit="content_bytes", maximum=100):
            await acme.messages.update(created.id, content=fits + letter)
    await acme.messages.append(session.id, kind="x", content="x" * 98)
    with raises(LimitExceeded, limit="content_bytes", maximum=100):
        await acme.messages.append(session.id, kind="x", content="x" * 99)
    with raises(LimitExceeded, limit="metadata_bytes", maximum=30):
        await acme.messages.append(session.id, role="user", content="x", metadata={"k": "x" * 23})
    await acme.messages.append(session.id, kind="x", content=nested(6))
    with raises(LimitExceeded, limit="json_depth"):
        await acme.messages.append(session.id, kind="x", content=nested(7))
    assert await acme.messages.count(session.id) == 5


@contract()
async def a_message_of_a_megabyte_can_be_stored(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    content = [{"type": "text", "text": "漢字 and letters \U0001f600\x00 " * 45_000}]
    created = await acme.messages.append(session.id, role="user", content=content)
    assert (await acme.messages.get(created.id)).content == content


@contract()
async def append_many_takes_consecutive_positions(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await acme.messages.append(session.id, role="user", content="first")
    new = [
        NewMessage(role="user", content="a"),
        NewMessage(kind="x.y", content={"b": 1}, metadata={"n": 1}, token_count=3, is_preserved=True, id=uuid_of("b")),
        NewMessage(role="assistant", content=[{"type": "c"}], is_summary=True),
    ]
    created = await acme.messages.append_many(session.id, new)
    assert [message.seq for message in created] == [2, 3, 4]
    assert [message.kind for message in created] == ["message", "x.y", "message"]
    assert (created[1].id, created[1].metadata, created[1].token_count, created[1].is_preserved) == (
        uuid_of("b"),
        {"n": 1},
        3,
        True,
    )
    assert created[2].is_summary
    assert [*await acme.messages.list(session.id)][1:] == created
    assert await acme.messages.append_many(session.id, []) == []
    await check_counters(acme, session.id)


@contract()
async def append_many_is_all_or_nothing(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    before = await everything(acme)
    good = NewMessage(role="user", content="good")
    for bad in (
        NewMessage(role="invalid", content="x"),
        NewMessage(role="user", content=None),
        NewMessage(role="user", content="x", token_count=-1),
        NewMessage(role="user", content="x", id="42"),
        NewMessage(kind="NO", content="x"),
    ):
        with raises(InvalidInput):
            await acme.messages.append_many(session.id, [good, bad, good])
    twice = NewMessage(role="user", content="x", id=uuid_of("m"))
    with raises(InvalidInput, field="messages"):
        await acme.messages.append_many(session.id, [twice, good, twice])
    assert await everything(acme) == before


@contract()
async def invalid_lists_of_messages_and_flags_are_rejected(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    message = await acme.messages.append(session.id, role="user", content="x")
    before = await everything(acme)
    not_messages: list[Any] = [
        None,
        "text",
        7,
        ["text"],
        [None],
        [{"role": "user", "content": "x"}],
        NewMessage(content=1),
    ]
    for item in not_messages:
        with raises(InvalidInput):
            await acme.messages.append_many(session.id, item)
    not_ids: list[Any] = [None, message.id, 7, {message.id}]
    for item in not_ids:
        with raises(InvalidInput):
            await acme.messages.delete(session.id, item)
    not_flags: list[Any] = ["yes", 1, 0, [True], "true"]
    for item in not_flags:
        with raises(InvalidInput, field="is_preserved"):
            await acme.messages.append(session.id, role="user", content="x", is_preserved=item)
        with raises(InvalidInput, field="is_summary"):
            await acme.messages.append(session.id, role="user", content="x", is_summary=item)
        with raises(InvalidInput, field="is_preserved"):
            await acme.messages.update(message.id, is_preserved=item)
    assert await everything(acme) == before


@contract()
async def append_many_can_be_repeated_as_a_whole_but_not_in_part(world: World) -> None:
    acme = world.tenant()
    session, other = await acme.sessions.create(), await acme.sessions.create()
    new = [NewMessage(role="user", content=str(n), id=uuid_of(n)) for n in range(3)]
    first = await acme.messages.append_many(session.id, new)
    world.clock.advance(10)
    assert await acme.messages.append_many(session.id, new) == first
    assert await acme.messages.append_many(session.id, new[1:]) == first[1:]
    assert await acme.messages.append_many(session.id, new[::-1]) == first[::-1]
    assert await acme.messages.append(session.id, role="user", content="1", id=uuid_of(1)) == first[1]
    before = await everything(acme)
    part = [*new, NewMessage(role="user", content="new", id=uuid_of("new"))]
    with raises(Conflict):
        await acme.messages.append_many(session.id, part)
    with raises(Conflict):
        await acme.messages.append_many(session.id, [*new[:2], NewMessage(role="user", content="other", id=uuid_of(2))])
    with raises(Conflict):
        await acme.messages.append_many(other.id, new)
    assert await everything(acme) == before


@contract(limits=Limits(batch_rows=3))
async def a_batch_has_a_maximum_size(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    new = [NewMessage(role="user", content=str(n)) for n in range(4)]
    created = await acme.messages.append_many(session.id, new[:3])
    with raises(LimitExceeded, limit="batch_rows", maximum=3):
        await acme.messages.append_many(session.id, new)
    with raises(LimitExceeded, limit="batch_rows", maximum=3):
        await acme.messages.delete(session.id, [uuid_of(n) for n in range(4)])
    assert await acme.messages.count(session.id) == 3
    assert await acme.messages.delete(session.id, [message.id for message in created]) == 3


@contract()
async def a_thousand_messages_can_be_appended_in_one_call(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append_many(
        session.id, [NewMessage(role="user", content=f"{n}é", token_count=n) for n in range(1_000)]
    )
    assert [message.seq for message in created] == [*range(1, 1_001)]
    assert await acme.messages.list(session.id) == created
    await check_counters(acme, session.id)
