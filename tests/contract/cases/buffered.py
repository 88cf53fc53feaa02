"""Buffered sessions: changes in memory, and saves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidInput, InvalidText, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.buffer.buffered import AsyncBufferedSession
from holdfast.stores.conversation.keys import DirectKey
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, everything, raises, raises_kind_of, uuid_of


def texts_of(buffer: AsyncBufferedSession) -> list[str]:
    """Return the texts of a buffer's history."""
    return [message.content[0]["text"] for message in buffer.history()]


def flush_is_due(buffer: AsyncBufferedSession) -> bool:
    """Read the property again each time."""
    return buffer.needs_memory_flush


async def saved_buffer(acme: AsyncTenantHandle, key: str = "k", count: int = 5) -> AsyncBufferedSession:
    """Return a saved buffer with the messages 0, 1, 2 ..."""
    buffer = await acme.sessions.buffered(key)
    for number in range(count):
        buffer.add_message(role="user", content=str(number), token_count=number)
    await buffer.save()
    return buffer


async def check_stored(world: World, buffer: AsyncBufferedSession) -> None:
    """Check that the stored session equals the buffer, for this handle and for others."""
    acme = world.tenant()
    assert not buffer.has_unsaved
    assert buffer.unsaved() == []
    assert await acme.messages.list(buffer.id) == buffer.history()
    session = await acme.sessions.get(buffer.id)
    assert (session.key, session.user, session.agent, session.metadata) == (
        buffer.key,
        buffer.user,
        buffer.agent,
        buffer.metadata,
    )
    other = await acme.sessions.buffered(buffer.key, user=buffer.user or None)
    assert (other.id, other.state, other.history()) == (buffer.id, buffer.state, buffer.history())
    await check_counters(acme, buffer.id)


@contract()
async def a_buffer_writes_nothing_before_its_save(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k", user="ada", agent="helper")
    before = await everything(acme)
    assert (buffer.key, buffer.user, buffer.agent, buffer.history(), buffer.has_unsaved) == (
        "k",
        "ada",
        "helper",
        [],
        False,
    )
    buffer.add_message(role="user", content="hi")
    buffer.set_summary("s")
    buffer.accumulate_tokens(input_tokens=1)
    assert buffer.has_unsaved
    assert await everything(acme) == before == []
    assert await acme.sessions.find("k") is None
    await buffer.save()
    await check_stored(world, buffer)
    assert (await acme.sessions.get(buffer.id)).created_at == from_us(world.clock.now_us())


@contract()
async def a_save_creates_a_session_without_messages(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("empty")
    await buffer.save()
    await check_stored(world, buffer)
    assert [session.id for session in await acme.sessions.list()] == [buffer.id]


@contract()
async def messages_are_stored_as_they_were_added(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered(DirectKey(agent="helper", channel="telegram", peer="7"))
    for number, text in enumerate(TEXTS):
        world.clock.advance(number)
        buffer.add_message(role="user", content=text, metadata={text: text}, token_count=number)
    world.clock.advance(60)
    id = buffer.add_message(
        role="assistant",
        content=[{"type": "tool_use", "id": "t", "name": "ls", "input": {"n": 1.5}}],
        is_preserved=True,
        is_summary=True,
        id=uuid_of("mine"),
    )
    buffer.add_message(kind="adk.event", content={"any": [1, None, True]})
    assert id == uuid_of("mine")
    history = buffer.history()
    assert [message.seq for message in history] == [*range(1, len(TEXTS) + 3)]
    assert {message.session_id for message in history} == {buffer.id}
    assert [message.content[0]["text"] for message in history[:-2]] == [*TEXTS]
    assert history[-2].created_at - history[-3].created_at == timedelta(seconds=60)
    await buffer.save()
    assert buffer.history() == history
    await check_stored(world, buffer)


@contract()
async def an_existing_session_is_loaded(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k", user="ada", agent="helper", metadata={"a": 1})
    messages = [await acme.messages.append(created.id, role="user", content=str(n), token_count=n) for n in range(3)]
    await acme.sessions.create(key="k", user="bob")
    buffer = await acme.sessions.buffered("k", user="ada")
    assert (buffer.id, buffer.agent, buffer.metadata, buffer.history()) == (created.id, "helper", {"a": 1}, messages)
    assert not buffer.has_unsaved
    buffer.add_message(role="assistant", content="3", token_count=3)
    assert [message.seq for message in buffer.history()] == [1, 2, 3, 4]
    assert [message.seq for message in buffer.unsaved()] == [4]
    await buffer.save()
    await check_stored(world, buffer)
    assert (await acme.messages.list(created.id))[:3] == messages
    assert (await acme.messages.append(created.id, role="user", content="after")).seq == 5


@contract()
async def a_buffer_can_follow_a_deleted_last_message(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(key="k")
    created = [await acme.messages.append(session.id, role="user", content=str(n)) for n in range(3)]
    await acme.messages.delete(session.id, [created[2].id])
    buffer = await acme.sessions.buffered("k")
    buffer.add_message(role="user", content="next")
    assert [message.seq for message in buffer.history()] == [1, 2, 4]
    await buffer.save()
    await check_stored(world, buffer)
    await acme.messages.delete(session.id, [message.id for message in buffer.history()])
    await buffer.reload()
    buffer.add_message(role="user", content="alone")
    assert [message.seq for message in buffer.history()] == [5]
    await buffer.save()
    await check_stored(world, buffer)


@contract()
async def the_same_key_returns_the_same_live_buffer(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k", user="ada")
    buffer.add_message(role="user", content="hi")
    again = await acme.sessions.buffered("k", user="ada")
    assert again == buffer
    assert texts_of(again) == ["hi"]
    assert await acme.sessions.buffered("k") != buffer
    assert await acme.sessions.buffered("other", user="ada") != buffer
    assert await world.tenant("zenith").sessions.buffered("k", user="ada") != buffer
    await again.save()
    assert not buffer.has_unsaved


@contract()
async def each_tenant_has_its_own_buffers(world: World) -> None:
    mine, theirs = await saved_buffer(world.tenant()), await world.tenant("zenith").sessions.buffered("k")
    assert (theirs.history(), theirs.has_unsaved) == ([], False)
    assert theirs.id != mine.id
    theirs.add_message(role="user", content="theirs", id=mine.history()[0].id)
    theirs.set_summary("theirs")
    await theirs.save()
    await check_stored(world, mine)
    assert [message.seq for message in await world.tenant("zenith").messages.list(theirs.id)] == [1]


@contract()
async def the_state_beside_the_messages_is_saved(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k", agent="first")
    for text in (*TEXTS, ""):
        buffer.set_summary(text)
        buffer.set_label(text)
        buffer.set_spawn_info(spawned_by=text, depth=3)
        buffer.update_metadata({text: text})
        await buffer.save()
        await check_stored(world, buffer)
    buffer.set_agent_info(agent="helper", model="m", provider="p", channel="c")
    buffer.set_agent_info(agent="", model=None, provider="", channel="d")
    await buffer.save()
    await check_stored(world, buffer)
    state = buffer.state
    assert (buffer.agent, state.model, state.provider, state.channel, state.spawn_depth) == ("helper", "m", "p", "d", 3)


@contract()
async def metadata_is_merged(world: World) -> None:
    acme = world.tenant()
    await acme.sessions.create(key="k", metadata={"a": 1, "b": {"deep": [1]}})
    buffer = await acme.sessions.buffered("k")
    buffer.update_metadata({"b": 2, "c": "x"})
    buffer.update_metadata({})
    buffer.metadata["d"] = "a copy"
    assert buffer.metadata == {"a": 1, "b": 2, "c": "x"}
    await buffer.save()
    await check_stored(world, buffer)


@contract()
async def provider_usage_is_counted_separately_and_once(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k")
    for call in range(1, 4):
        buffer.add_message(role="assistant", content="answer", token_count=5)
        buffer.accumulate_tokens(input_tokens=1_000 * call, output_tokens=10)
        await buffer.save()
        await buffer.save()
    assert (buffer.state.input_tokens, buffer.state.output_tokens) == (6_000, 30)
    assert (await acme.sessions.get(buffer.id)).token_count == 15
    assert sum(message.token_count for message in await acme.messages.list(buffer.id)) == 15
    buffer.accumulate_tokens(output_tokens=1)
    await buffer.save()
    assert (await acme.sessions.get(buffer.id)).token_count == 15
    await check_stored(world, buffer)
    again = await world.tenant().sessions.buffered("k")
    assert (again.state.input_tokens, again.state.output_tokens) == (6_000, 31)


@contract()
async def a_memory_flush_is_due_after_each_compaction(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k")
    assert flush_is_due(buffer) is False
    buffer.set_memory_flush_done()
    assert (flush_is_due(buffer), buffer.compaction_count) == (False, 0)
    for count in (1, 2):
        buffer.increment_compaction()
        assert flush_is_due(buffer) is True
        await buffer.save()
        assert flush_is_due(await world.tenant().sessions.buffered("k")) is True
        world.clock.advance(1)
        buffer.set_memory_flush_done()
        assert flush_is_due(buffer) is False
        assert (buffer.state.memory_flush_at, buffer.compaction_count) == (from_us(world.clock.now_us()), count)
        await buffer.save()
        await check_stored(world, buffer)
    assert (await acme.sessions.get(buffer.id)).compaction_count == 0, "counts only events of compactions"


@contract()
async def a_truncation_keeps_the_last_messages_and_deletes_nothing(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    whole = buffer.history()
    buffer.truncate_history(2)
    assert (texts_of(buffer), [message.seq for message in buffer.history()]) == (["3", "4"], [4, 5])
    buffer.add_message(role="user", content="5")
    history = buffer.history()
    assert await acme.messages.list(buffer.id) == whole
    await buffer.save()
    assert buffer.history() == history
    assert [message.id for message in history[:2]] == [message.id for message in whole[3:]]
    await check_stored(world, buffer)
    await acme.branches.redo(buffer.id)
    assert await acme.messages.list(buffer.id) == whole
    await check_counters(acme, buffer.id)


@contract()
async def repeated_truncations_keep_the_last_messages(world: World) -> None:
    buffer = await saved_buffer(world.tenant())
    for number in range(5, 12):
        buffer.add_message(role="user", content=str(number))
        buffer.truncate_history(3)
        await buffer.save()
        await check_stored(world, buffer)
    assert texts_of(buffer) == ["9", "10", "11"]
    assert [message.seq for message in buffer.history()] == [10, 11, 12]
    for keep in (7, 3):
        buffer.truncate_history(keep)
        assert not buffer.has_unsaved
    for none in (0, -1):
        buffer.truncate_history(none)
        assert buffer.history() == []
    await buffer.save()
    await check_stored(world, buffer)


@contract()
async def unsaved_messages_that_are_truncated_are_never_stored(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k")
    for number in range(5):
        buffer.add_message(role="user", content=str(number))
    buffer.truncate_history(1)
    assert [message.seq for message in buffer.history()] == [1]
    await buffer.save()
    await check_stored(world, buffer)
    assert texts_of(buffer) == ["4"]
    assert len(await acme.branches.list(buffer.id)) <= 1


@contract()
async def a_history_can_be_replaced(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    whole = buffer.history()
    summary = NewMessage(role="user", content="so far", is_summary=True, is_preserved=True)
    replacements: tuple[tuple[list[Message | NewMessage], list[str], int], ...] = (
        ([summary, *whole[-2:]], ["so far", "3", "4"], 0),
        ([*whole[:2], summary], ["0", "1", "so far"], 2),
        ([whole[0], whole[2], whole[4]], ["0", "2", "4"], 3),
        ([whole[0], whole[2], summary, whole[4]], ["0", "2", "so far", "4"], 2),
        ([*reversed(whole)], ["4", "3", "2", "1", "0"], 1),
        ([whole[1], whole[1]], ["1", "1"], 1),
        ([whole[0], replace(whole[1], content=[{"type": "text", "text": "edited"}])], ["0", "edited"], 1),
        ([*whole], ["0", "1", "2", "3", "4"], 5),
        ([], [], 0),
    )
    for replacement, texts, kept in replacements:
        buffer.set_history(replacement)
        assert texts_of(buffer) == texts
        ids = [message.id for message in buffer.history()]
        assert len({*ids}) == len(ids)
        assert [id in {message.id for message in whole} for id in ids] == [place < kept for place in range(len(ids))]
        history = buffer.history()
        await buffer.save()
        assert buffer.history() == history
        await check_stored(world, buffer)
        await acme.branches.switch(buffer.id, 0)
        await buffer.reload()
        assert buffer.history() == whole


@contract()
async def truncated_messages_can_be_restored_before_the_save(world: World) -> None:
    buffer = await saved_buffer(world.tenant())
    whole = buffer.history()
    buffer.truncate_history(1)
    buffer.set_history(whole)
    assert (buffer.history(), buffer.has_unsaved) == (whole, False)
    buffer.set_history([NewMessage(role="user", content="0", token_count=0, id=whole[0].id), *whole[1:]])
    assert (buffer.history(), buffer.has_unsaved) == (whole, False)


@contract()
async def a_reset_clears_messages_and_summary_only(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    buffer.set_summary("s")
    buffer.set_label("l")
    buffer.update_metadata({"a": 1})
    buffer.accumulate_tokens(input_tokens=3, output_tokens=4)
    buffer.increment_compaction()
    await buffer.save()
    before = buffer.state
    buffer.reset()
    assert (buffer.history(), buffer.state, buffer.metadata) == ([], replace(before, summary=""), {"a": 1})
    await buffer.save()
    await check_stored(world, buffer)
    buffer.add_message(role="user", content="again")
    await buffer.save()
    assert [message.seq for message in await acme.messages.list(buffer.id)] == [1]
    await check_stored(world, buffer)


@contract()
async def an_invalid_argument_changes_nothing_in_a_buffer(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme, count=1)
    wrong: list[Any] = [
        lambda: buffer.add_message(role="tool", content="x"),
        lambda: buffer.add_message(role="user", content=7),
        lambda: buffer.add_message(role="user", content="x", token_count=-1),
        lambda: buffer.add_message(role="user", content="x", id="42"),
        lambda: buffer.set_summary(None),  # type: ignore[arg-type]
        lambda: buffer.set_label(7),  # type: ignore[arg-type]
        lambda: buffer.set_agent_info(model=7),  # type: ignore[arg-type]
        lambda: buffer.set_spawn_info(spawned_by="x", depth=-1),
        lambda: buffer.update_metadata(["x"]),  # type: ignore[arg-type]
        lambda: buffer.update_metadata({"x": object()}),
        lambda: buffer.accumulate_tokens(input_tokens=-1),
        lambda: buffer.accumulate_tokens(output_tokens=True),
        lambda: buffer.accumulate_tokens(output_tokens=2**63),
        lambda: buffer.truncate_history("1"),  # type: ignore[arg-type]
        lambda: buffer.set_history(["x"]),  # type: ignore[list-item]
        lambda: buffer.set_history([NewMessage(role="user", content=7)]),
        lambda: buffer.set_history([NewMessage(role="user", content="x", id=uuid_of(1))] * 2),
    ]
    for call in wrong:
        with raises_kind_of(InvalidInput):
            call()
        assert not buffer.has_unsaved
    with raises(InvalidText):
        buffer.add_message(role="user", content="x", metadata={"x": float("nan")})
    for key, user in (("", None), (7, None), ("k", ""), ("k", 7)):
        with raises(InvalidInput):
            await acme.sessions.buffered(key, user=user)  # type: ignore[arg-type]
    await check_stored(world, buffer)


@contract(limits=Limits(buffered_messages=3, name_bytes=10, content_bytes=50, metadata_bytes=20))
async def limits_apply_before_the_save(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme, count=3)
    for call in (
        lambda: buffer.add_message(role="user", content="one too many"),
        lambda: buffer.set_history([*buffer.history(), NewMessage(role="user", content="3")]),
        lambda: buffer.set_label("x" * 11),
        lambda: buffer.set_summary("x" * 51),
        lambda: buffer.set_agent_info(provider="\U0001f600" * 3),
        lambda: buffer.update_metadata({"x": "x" * 20}),
    ):
        with raises(LimitExceeded):
            call()
    await check_stored(world, buffer)
    await acme.messages.append(buffer.id, role="user", content="3")
    with raises(LimitExceeded, limit="buffered_messages", maximum=3):
        await buffer.reload()
    with raises(LimitExceeded):
        await world.tenant().sessions.buffered("k")


@contract()
async def adding_with_an_id_can_be_repeated(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme, count=2)
    first = buffer.history()[0]
    assert buffer.add_message(role="user", content="0", id=first.id) == first.id
    assert not buffer.has_unsaved
    for _ in range(2):
        buffer.add_message(role="user", content="new", metadata={"a": 1}, id=uuid_of("new"))
    assert texts_of(buffer) == ["0", "1", "new"]
    for other in (first.id, uuid_of("new")):
        with raises(Conflict):
            buffer.add_message(role="user", content="other", id=other)
        with raises(Conflict):
            buffer.set_history([NewMessage(role="user", content="other", id=other)])
    await buffer.save()
    await check_stored(world, buffer)
