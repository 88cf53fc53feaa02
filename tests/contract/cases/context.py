"""Contexts: the messages that are sent to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.new_entries import NewMessage
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


async def session_of(world: World, count: int, tokens: int = 10) -> tuple[Any, str]:
    """Create a session with messages of these token counts."""
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for number in range(1, count + 1):
        role = "user" if number % 2 else "assistant"
        await acme.messages.append(session, role=role, content=f"m{number}", token_count=tokens)
    return acme, session


def call(*ids: str) -> list[dict[str, Any]]:
    """Return blocks that call tools."""
    return [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]


def result(*ids: str) -> list[dict[str, Any]]:
    """Return blocks with the results of tool calls."""
    return [{"type": "tool_result", "tool_use_id": id, "content": "found"} for id in ids]


def seqs(context: Any) -> list[int | None]:
    """Return the seqs of a context's messages; ``None`` for placeholder results."""
    return [message.seq for message in context.messages]


def unanswered(messages: Sequence[Any]) -> set[str]:
    """Return the calls without a result and the results without a call before them."""
    called: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        for block in message.content:
            if block["type"] == "tool_use":
                called.add(block["id"])
            elif block["type"] == "tool_result":
                answered.add(block["tool_use_id"])
                assert block["tool_use_id"] in called, "a result without a call"
    return called - answered


@contract()
async def a_context_has_the_newest_messages_that_fit(world: World) -> None:
    acme, session = await session_of(world, 9)
    assert seqs(await acme.messages.context(session, max_tokens=30)) == [7, 8, 9]
    assert seqs(await acme.messages.context(session, max_tokens=39)) == [7, 8, 9]
    everything = await acme.messages.context(session, max_tokens=1_000)
    assert seqs(everything) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert everything.token_count == 90
    assert [message.content for message in everything.messages] == [
        message.content for message in await acme.messages.list(session)
    ]
    assert seqs(await acme.messages.context(session, max_tokens=1)) == []


@contract()
async def system_preserved_and_summary_messages_are_always_included(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="system", content="rules", token_count=5)
    for number in range(2, 8):
        await acme.messages.append(
            session,
            role="user",
            content=f"m{number}",
            token_count=10,
            is_preserved=number == 3,
            is_summary=number == 4,
        )
    context = await acme.messages.context(session, max_tokens=45)
    assert seqs(context) == [1, 3, 4, 6, 7]
    assert [message.is_preserved for message in context.messages] == [False, True, False, False, False]
    assert [message.is_summary for message in context.messages] == [False, False, True, False, False]
    assert context.token_count == 45
    assert seqs(await acme.messages.context(session, max_tokens=25)) == [1, 3, 4]
    with raises(LimitExceeded):
        await acme.messages.context(session, max_tokens=24)


@contract()
async def a_result_whose_call_is_left_out_is_left_out_too(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="assistant", content=call("a"), token_count=10)
    await acme.messages.append(session, role="user", content=result("a"), token_count=10)
    await acme.messages.append(session, role="assistant", content="done", token_count=10)
    assert seqs(await acme.messages.context(session, max_tokens=30)) == [1, 2, 3]
    assert seqs(await acme.messages.context(session, max_tokens=20)) == [3]


@contract()
async def a_call_that_never_got_its_result_is_closed(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="user", content="look twice", token_count=10)
    await acme.messages.append(session, role="assistant", content=call("a", "b"), token_count=10)
    await acme.messages.append(session, role="user", content=result("a"), token_count=10)
    await acme.messages.append(session, role="assistant", content=call("c"), token_count=10)
    context = await acme.messages.context(session, max_tokens=1_000)
    assert unanswered(context.messages) == set()
    assert seqs(context) == [1, 2, 3, 4, None]
    joined = context.messages[2].content
    assert [block["tool_use_id"] for block in joined] == ["b", "a"], (
        "the results of one message's calls are in one message"
    )
    made_up = context.messages[4]
    assert (made_up.role, made_up.message_id) == ("user", None)
    assert made_up.content[0]["is_error"] is True
    assert context.token_count == sum(message.token_count for message in context.messages)
    stored_messages = await acme.messages.list(session)
    assert [len(message.content) for message in stored_messages] == [1, 2, 1, 1], "placeholder results are not stored"


@contract()
async def placeholder_results_count_towards_the_budget(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for number in range(5):
        await acme.messages.append(session, role="user", content=f"m{number}", token_count=10)
    await acme.messages.append(session, role="assistant", content=call("a"), token_count=10)
    context = await acme.messages.context(session, max_tokens=60)
    assert unanswered(context.messages) == set()
    assert context.token_count <= 60
    assert seqs(context)[-2:] == [6, None]


@contract()
async def a_preserved_call_far_from_its_result_keeps_both_halves(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="assistant", content=call("a"), token_count=10, is_preserved=True)
    await acme.messages.append(session, role="user", content=result("a"), token_count=10)
    await acme.messages.append(session, role="assistant", content="a", token_count=10)
    await acme.messages.append(session, role="user", content=result("a"), token_count=10, is_preserved=True)
    for number in range(5):
        await acme.messages.append(session, role="user", content=f"m{number}", token_count=10)
    context = await acme.messages.context(session, max_tokens=40)
    assert unanswered(context.messages) == set()
    assert seqs(context) == [1, 4, 8, 9]


async def append_texts(acme: Any, session: str, count: int) -> None:
    """Append messages of ten tokens each."""
    await acme.messages.append_many(
        session, [NewMessage(role="user", content=f"m{number}", token_count=10) for number in range(count)]
    )


@contract()
async def a_preserved_result_keeps_its_call_wherever_it_is(world: World) -> None:
    acme = world.tenant()
    for between in (0, 3, 40, 400):
        session = (await acme.sessions.create()).id
        await append_texts(acme, session, 2)
        await acme.messages.append(session, role="assistant", content=call("a"), token_count=10)
        await append_texts(acme, session, between)
        kept = await acme.messages.append(session, role="user", content=result("a"), token_count=10, is_preserved=True)
        await append_texts(acme, session, 60)
        await acme.messages.append(session, role="assistant", content="done", token_count=10)
        for rewound in (False, True):
            last = kept.seq + (50 if rewound else 61)
            if rewound:
                await acme.branches.rewind(session, to=last)
            context = await acme.messages.context(session, max_tokens=40)
            assert seqs(context) == [3, kept.seq, last - 1, last]
            assert (context.token_count, context.left_out) == (40, last - 4)
            assert context.messages[1].content == result("a")
            assert seqs(await acme.messages.context(session, max_tokens=20)) == [3, kept.seq]
            with raises(LimitExceeded):
                await acme.messages.context(session, max_tokens=19)


@contract()
async def a_preserved_call_keeps_its_result_wherever_it_is(world: World) -> None:
    acme = world.tenant()
    for between in (0, 3, 40, 400):
        session = (await acme.sessions.create()).id
        await acme.messages.append(session, role="assistant", content=call("a"), token_count=10, is_preserved=True)
        await append_texts(acme, session, between)
        result_message = await acme.messages.append(session, role="user", content=result("a"), token_count=10)
        await append_texts(acme, session, 60)
        context = await acme.messages.context(session, max_tokens=40)
        assert seqs(context) == [1, result_message.seq, result_message.seq + 59, result_message.seq + 60]
        assert [message.made_up for message in context.messages] == [(), (), (), ()]
        await acme.messages.delete(session, [result_message.id])
        context = await acme.messages.context(session, max_tokens=100)
        assert seqs(context)[:2] == [1, None], "the result was deleted, so a placeholder is inserted"
        assert unanswered(context.messages) == set()


@contract()
async def a_preserved_message_brings_all_its_connected_tool_messages(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="assistant", content=call("a", "b"), token_count=10)
    await acme.messages.append(session, role="user", content=result("a"), token_count=10, is_preserved=True)
    await append_texts(acme, session, 100)
    await acme.messages.append(session, role="user", content=[*result("b"), *call("c")], token_count=10)
    await acme.messages.append(session, role="user", content=result("c"), token_count=10)
    await append_texts(acme, session, 100)
    context = await acme.messages.context(session, max_tokens=50)
    assert seqs(context) == [1, 2, 103, 104, 204]
    assert unanswered(context.messages) == set()
    assert not any(message.made_up for message in context.messages)


@contract()
async def a_call_is_closed_even_if_its_id_was_answered_before(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for _ in range(2):
        await acme.messages.append(session, role="assistant", content=call("a"), token_count=10)
        await acme.messages.append(session, role="user", content=result("a"), token_count=10)
        await acme.messages.append(session, role="assistant", content=call("a"), token_count=10)
        await acme.messages.append(session, role="user", content="go on", token_count=10)
    context = await acme.messages.context(session, max_tokens=1_000)
    assert seqs(context) == [1, 2, 3, None, 4, 5, 6, 7, None, 8]
    assert [message.made_up for message in context.messages if message.seq is None] == [("a",), ("a",)]


@contract()
async def equal_ids_of_different_turns_are_no_pair(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for turn in range(80):
        await acme.messages.append_many(
            session,
            [
                NewMessage(role="assistant", content=call("a"), token_count=10, is_preserved=turn == 3),
                NewMessage(role="user", content=result("a"), token_count=10, is_preserved=turn == 7),
            ],
        )
    context = await acme.messages.context(session, max_tokens=40)
    assert seqs(context) == [7, 8, 15, 16]
    assert seqs(await acme.messages.context(session, max_tokens=50)) == [7, 8, 15, 16], "160 has the result of 159"
    assert seqs(await acme.messages.context(session, max_tokens=60)) == [7, 8, 15, 16, 159, 160]


@contract()
async def a_context_is_read_from_the_current_branch(world: World) -> None:
    acme, session = await session_of(world, 6)
    await acme.messages.update((await acme.messages.list(session))[4].id, is_preserved=True)
    await acme.branches.rewind(session, to=3)
    await acme.messages.append(session, role="user", content="other", token_count=10)
    context = await acme.messages.context(session, max_tokens=1_000)
    assert seqs(context) == [1, 2, 3, 4]
    assert context.messages[-1].content == [{"type": "text", "text": "other"}]
    await acme.branches.redo(session)
    assert seqs(await acme.messages.context(session, max_tokens=20)) == [5, 6]


@contract()
async def a_long_log_is_read_from_its_end(world: World) -> None:
    acme, session = await session_of(world, 3, tokens=1)
    many = [NewMessage(role="user", content=f"n{number}", token_count=1) for number in range(400)]
    await acme.messages.append_many(session, many)
    context = await acme.messages.context(session, max_tokens=300)
    assert seqs(context) == list(range(104, 404))


@contract()
async def messages_without_a_count_are_counted(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for _ in range(4):
        await acme.messages.append(session, role="user", content="x" * 400, token_count=0)
    context = await acme.messages.context(session, max_tokens=220)
    assert seqs(context) == [3, 4]
    own = await acme.messages.context(session, max_tokens=3, count_tokens=lambda content: 1)
    assert seqs(own) == [2, 3, 4]
    assert own.token_count == 3


@contract()
async def invalid_context_arguments_are_refused(world: World) -> None:
    acme, session = await session_of(world, 1)
    wrong: list[Any] = [0, -1, True, "10", None, 1.5]
    for max_tokens in wrong:
        with raises(InvalidInput):
            await acme.messages.context(session, max_tokens=max_tokens)
    with raises(NotFound):
        await acme.messages.context(uuid_of(7), max_tokens=10)
    empty = (await acme.sessions.create()).id
    assert (await acme.messages.context(empty, max_tokens=10)).messages == []


@contract()
async def system_messages_are_included_at_any_position(world: World) -> None:
    acme, session = await session_of(world, 70)
    rules = await acme.messages.append(session, role="system", content="new rules", token_count=5)
    more = [NewMessage(role="user", content=f"n{number}", token_count=10) for number in range(80)]
    await acme.messages.append_many(session, more)
    context = await acme.messages.context(session, max_tokens=30)
    assert seqs(context) == [rules.seq, 150, 151]
    assert (context.token_count, context.left_out) == (25, 148)


@contract()
async def the_latest_of_several_summaries_is_always_included(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for number in range(1, 9):
        await acme.messages.append(
            session, role="user", content=f"m{number}", token_count=10, is_summary=number in (1, 3, 5)
        )
    assert seqs(await acme.messages.context(session, max_tokens=20)) == [5, 8]
    assert seqs(await acme.messages.context(session, max_tokens=1_000)) == [1, 2, 3, 4, 5, 6, 7, 8]
    await acme.branches.rewind(session, to=4)
    assert seqs(await acme.messages.context(session, max_tokens=20)) == [3, 4]


@contract()
async def omitted_messages_are_counted(world: World) -> None:
    acme, session = await session_of(world, 9)
    for room, left_out in ((90, 0), (1_000, 0), (89, 1), (30, 6), (9, 9)):
        assert (await acme.messages.context(session, max_tokens=room)).left_out == left_out


@contract()
async def a_view_is_read_no_further_than_needed(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for turn in range(4):
        new = [
            NewMessage(
                role="system" if number == 7 and turn == 1 else "user",
                content=f"{turn} {number}",
                token_count=1,
                is_preserved=number == 5,
                is_summary=number == 6,
            )
            for number in range(100)
        ]
        created = await acme.messages.append_many(session, new)
        await acme.branches.rewind(session, to=created[79].seq)
    by_seq = {message.seq: message for message in await acme.messages.list(session)}
    assert len(by_seq) == 320
    always = [seq for seq, message in by_seq.items() if message.is_preserved or message.role == "system" or seq == 247]
    assert len(always) == 6
    for room in (6, 56, 66, 156, 320, 1_000):
        context = await acme.messages.context(session, max_tokens=room)
        newest = [seq for seq in by_seq if seq not in always][-max(0, room - 6) or 320 :] if room > 6 else []
        assert seqs(context) == sorted({*always, *newest})
        assert context.left_out == 320 - len(context.messages)


@contract()
async def placeholder_results_are_marked(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="assistant", content=call("a", "b"), token_count=10)
    await acme.messages.append(session, role="user", content=result("b"), token_count=10)
    await acme.messages.append(session, role="assistant", content=call("c"), token_count=10)
    await acme.messages.append(session, role="user", content="never mind", token_count=10)
    context = await acme.messages.context(session, max_tokens=1_000)
    assert [message.made_up for message in context.messages] == [(), ("a",), (), ("c",), ()]
    assert [message.message_id is None for message in context.messages] == [False, False, False, True, False]
    for message in context.messages:
        errors = [block["tool_use_id"] for block in message.content if block.get("is_error")]
        assert (*errors,) == message.made_up


@contract()
async def results_of_provider_tools_are_not_changed(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    searched = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}},
        {"type": "text", "text": "found"},
    ]
    await acme.messages.append(session, role="assistant", content=searched, token_count=10)
    await acme.messages.append(session, kind="adk.event", content={"type": "tool_use", "id": "x"}, token_count=10)
    context = await acme.messages.context(session, max_tokens=1_000)
    assert [message.content for message in context.messages] == [searched, {"type": "tool_use", "id": "x"}]
    assert context.token_count == 20


@contract()
async def a_message_is_kept_without_its_orphaned_results(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="assistant", content=call("a"), token_count=10)
    both = [*result("a"), {"type": "text", "text": "and go on"}]
    await acme.messages.append(session, role="user", content=both, token_count=10)
    context = await acme.messages.context(session, max_tokens=15)
    assert [message.content for message in context.messages] == [[{"type": "text", "text": "and go on"}]]
    assert context.token_count <= 15
    assert (await acme.messages.list(session))[1].content == both


@contract()
async def the_summary_of_a_buffered_session_is_part_of_its_context(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k")
    for number in range(6):
        buffer.add_message(role="user", content=f"m{number}", token_count=10)
    buffer.set_summary("what came before \u4e16\x00")
    buffer.truncate_history(3)
    await buffer.save()

    def ten(content: Any) -> int:
        return 10

    context = await acme.messages.context(buffer.id, max_tokens=30, count_tokens=ten)
    assert (context.summary, seqs(context), context.token_count) == ("what came before \u4e16\x00", [2, 3], 30)
    with raises(LimitExceeded):
        await acme.messages.context(buffer.id, max_tokens=9, count_tokens=ten)
    buffer.reset()
    await buffer.save()
    assert (await acme.messages.context(buffer.id, max_tokens=30)).summary == ""


@contract()
async def provider_usage_is_not_part_of_token_counts(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k")
    for number in range(3):
        buffer.add_message(role="assistant", content=f"m{number}", token_count=10)
        buffer.accumulate_tokens(input_tokens=100_000, output_tokens=5_000)
    await buffer.save()
    context = await acme.messages.context(buffer.id, max_tokens=30)
    assert (seqs(context), context.token_count) == ([1, 2, 3], 30)
    assert (await acme.sessions.get(buffer.id)).token_count == 30
    assert (buffer.state.input_tokens, buffer.state.output_tokens) == (300_000, 15_000)


@contract(limits=Limits(page_rows=5))
async def required_messages_have_a_limit(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for number in range(5):
        await acme.messages.append(session, role="system", content=f"m{number}", token_count=1)
    assert seqs(await acme.messages.context(session, max_tokens=10)) == [1, 2, 3, 4, 5]
    await acme.messages.append(session, role="user", content="one more", token_count=1, is_preserved=True)
    with raises(LimitExceeded, limit="page_rows", maximum=5):
        await acme.messages.context(session, max_tokens=10)


@contract()
async def a_counter_must_count(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="user", content="not counted yet", token_count=0)
    wrong: list[Any] = [lambda content: -1, lambda content: "7", lambda content: 1.5, lambda content: True]
    for count in wrong:
        with raises(InvalidInput):
            await acme.messages.context(session, max_tokens=10, count_tokens=count)
