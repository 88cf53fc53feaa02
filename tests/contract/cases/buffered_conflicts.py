"""Buffered sessions: several writers, and the buffers that a handle keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.errors import Conflict, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.buffer.buffered import AsyncBufferedSession
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.buffered import check_stored, saved_buffer, texts_of
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, everything, raises, uuid_of


async def check_conflict(world: World, buffer: AsyncBufferedSession, *reasons: str) -> None:
    """Check that repeated saves raise Conflict, for one of these reasons, and change neither the database nor the buffer."""
    acme = world.tenant()
    before = (await everything(acme), buffer.history(), buffer.state, buffer.metadata, buffer.unsaved())
    for _ in range(2):
        with raises(Conflict) as caught:
            await buffer.save()
        assert isinstance(caught.error, Conflict)
        assert caught.error.reason in reasons
        assert (
            await everything(acme), buffer.history(), buffer.state, buffer.metadata, buffer.unsaved()
        ) == before  # fmt: skip
    assert buffer.has_unsaved


async def check_conflict_by_state(world: World, buffer: AsyncBufferedSession) -> None:
    """The same for a buffer without unsaved changes."""
    before = (await everything(world.tenant()), buffer.history(), buffer.state)
    with raises(Conflict, reason="changed"):
        await buffer.save()
    assert (await everything(world.tenant()), buffer.history(), buffer.state) == before


Writer = Callable[[AsyncTenantHandle, AsyncBufferedSession], Awaitable[object]]


async def _other_buffer(acme: AsyncTenantHandle, buffer: AsyncBufferedSession) -> None:
    other = await acme.sessions.buffered("k")
    other.accumulate_tokens(input_tokens=1)
    await other.save()


WRITERS: tuple[Writer, ...] = (
    lambda acme, buffer: acme.messages.append(buffer.id, role="user", content="theirs"),
    lambda acme, buffer: acme.messages.delete(buffer.id, [buffer.history()[1].id]),
    lambda acme, buffer: acme.messages.update(buffer.history()[1].id, token_count=9),
    lambda acme, buffer: acme.sessions.update(buffer.id, metadata={"theirs": 1}),
    lambda acme, buffer: acme.sessions.upsert("k", agent="theirs"),
    _other_buffer,
    lambda acme, buffer: acme.branches.rewind(buffer.id, to=1),
)


@contract()
async def a_change_by_any_other_writer_is_a_conflict(world: World) -> None:
    """Any method of any writer is noticed, even within one tick of the clock."""
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    for number, write in enumerate(WRITERS):
        buffer.add_message(role="user", content=f"mine {number}")
        buffer.set_label(f"mine {number}")
        await write(world.tenant(), buffer)
        await check_conflict(world, buffer, "changed")
        mine = buffer.unsaved()
        await buffer.reload()
        await check_stored(world, buffer)
        for message in mine:
            buffer.add_message(role=message.role, content=message.content, id=message.id)
        await buffer.save()
        await check_stored(world, buffer)
        assert texts_of(buffer)[-1] == f"mine {number}"


@contract()
async def changes_elsewhere_are_no_conflict(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    await acme.sessions.buffered("k")
    await acme.branches.fork(buffer.id, at=2)
    await acme.sessions.create(key="k", user="another user")
    buffer.add_message(role="user", content="5")
    await buffer.save()
    await check_stored(world, buffer)
    before = await everything(acme)
    await acme.messages.append(buffer.id, role="user", content="theirs")
    await buffer.save()
    assert len(await acme.messages.list(buffer.id)) == 7, "the buffer has no changes, so it saves nothing"
    assert before != await everything(acme)


@contract()
async def the_second_of_two_buffers_to_save_has_a_conflict(world: World) -> None:
    one, two = await saved_buffer(world.tenant()), await world.tenant().sessions.buffered("k")
    one.add_message(role="user", content="one")
    two.add_message(role="user", content="two")
    await one.save()
    await check_conflict(world, two, "changed")
    one.add_message(role="user", content="more")
    await one.save()
    await check_stored(world, one)


@contract()
async def the_second_of_two_new_sessions_under_a_key_has_a_conflict(world: World) -> None:
    one, two = await world.tenant().sessions.buffered("k"), await world.tenant().sessions.buffered("k")
    assert one.id != two.id
    two.add_message(role="user", content="two")
    await one.save()
    await check_conflict(world, two, "key_taken")
    await two.reload()
    assert (two.id, two.history()) == (one.id, [])
    two.add_message(role="user", content="two")
    await two.save()
    await check_stored(world, two)


@contract()
async def a_deletion_is_a_conflict_and_deleted_messages_do_not_come_back(world: World) -> None:
    for number, remove in enumerate(("delete", "purge")):
        acme, key = world.tenant(), f"k{number}"
        buffer = await saved_buffer(acme, key)
        buffer.add_message(role="user", content="mine")
        await getattr(world.tenant().sessions, remove)(buffer.id)
        await check_conflict(world, buffer, "deleted", "deleted_or_rolled_back")
        mine, deleted_id = buffer.unsaved(), buffer.id
        await buffer.reload()
        assert (buffer.history(), buffer.has_unsaved) == ([], False)
        assert buffer.id != deleted_id
        for message in mine:
            buffer.add_message(role=message.role, content=message.content, id=message.id)
        await buffer.save()
        await check_stored(world, buffer)
        assert texts_of(buffer) == ["mine"]


@contract()
async def deleting_a_session_drops_its_buffer(world: World) -> None:
    for number, remove in enumerate(("delete", "purge")):
        acme, key = world.tenant(), f"k{number}"
        buffer = await saved_buffer(acme, key)
        buffer.add_message(role="user", content="unsaved")
        await getattr(acme.sessions, remove)(buffer.id.upper())
        assert await acme.sessions.list() == []
        fresh = await acme.sessions.buffered(key)
        assert fresh != buffer
        assert fresh.history() == []


@contract()
async def lists_contain_only_saved_sessions(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    buffer.add_message(role="user", content="unsaved")
    buffer.update_metadata({"unsaved": True})
    unsaved = await acme.sessions.buffered("never saved")
    unsaved.add_message(role="user", content="unsaved")
    (listed,) = await acme.sessions.list()
    assert (listed.id, listed.message_count, listed.metadata) == (buffer.id, 5, {})


@contract()
async def a_used_message_id_is_a_conflict_and_nothing_is_saved(world: World) -> None:
    acme = world.tenant()
    taken = (await saved_buffer(acme, "other")).history()[0].id
    buffer = await saved_buffer(acme)
    buffer.add_message(role="user", content="fine")
    buffer.add_message(role="user", content="taken", id=taken)
    buffer.set_label("l")
    await check_conflict(world, buffer, "id_taken")
    buffer.set_history(buffer.history()[:-1])
    await buffer.save()
    await check_stored(world, buffer)
    assert texts_of(buffer)[-1] == "fine"


@contract()
async def discard_drops_unsaved_changes(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    buffer.add_message(role="user", content="unsaved")
    buffer.truncate_history(1)
    buffer.reset()
    buffer.set_label("l")
    buffer.discard()
    assert (texts_of(buffer), buffer.state.label, buffer.has_unsaved) == (["0", "1", "2", "3", "4"], "", False)
    again = await acme.sessions.buffered("k")
    assert again != buffer
    assert texts_of(again) == texts_of(buffer)
    with raises(Conflict, reason="released"):
        buffer.add_message(role="user", content="to the wrong one")
    await check_stored(world, buffer)


@contract(limits=Limits(buffered_sessions=3))
async def a_handle_keeps_a_limited_number_of_buffers_and_never_drops_unsaved_changes(world: World) -> None:
    acme = world.tenant()
    kept = [await acme.sessions.buffered(f"k{number}") for number in range(3)]
    assert await acme.sessions.buffered("k0") == kept[0], "k0 was used again, so k1 is the least recently used"
    new = await acme.sessions.buffered("k3")
    assert await acme.sessions.buffered("k0") == kept[0]
    assert await acme.sessions.buffered("k2") == kept[2]
    assert await acme.sessions.buffered("k3") == new
    for buffer in (kept[0], kept[2], new):
        buffer.add_message(role="user", content="unsaved")
    with raises(LimitExceeded, limit="buffered_sessions", maximum=3):
        await acme.sessions.buffered("k4")
    with raises(LimitExceeded):
        kept[1].add_message(role="user", content="it was released, and the cache is full of unsaved buffers")
    assert kept[1].history() == []
    await kept[2].save()
    kept[1].add_message(role="user", content="now there is room")
    assert await acme.sessions.buffered("k1") == kept[1]
    for buffer in (kept[0], new, kept[1]):
        assert await acme.sessions.buffered(buffer.key) == buffer
        await buffer.save()
    assert await acme.sessions.buffered("k2") != kept[2]
    for buffer in (*kept, new):
        await check_stored(world, buffer)


@contract("concurrency")
async def one_of_many_concurrent_saves_succeeds(world: World) -> None:
    created = await saved_buffer(world.tenant())
    buffers = [await world.tenant().sessions.buffered("k") for _ in range(8)]
    for number, buffer in enumerate(buffers):
        buffer.add_message(role="user", content=str(number), id=uuid_of(number))
        buffer.accumulate_tokens(input_tokens=1)
    outcomes = await world.together(*(buffer.save for buffer in buffers))
    failed = [outcome for outcome in outcomes if outcome is not None]
    assert len(failed) == 7, outcomes
    assert all(type(outcome) is Conflict for outcome in failed), failed
    (winner,) = [buffer for buffer, outcome in zip(buffers, outcomes, strict=True) if outcome is None]
    await check_stored(world, winner)
    assert (len(winner.history()), winner.state.input_tokens) == (6, 1)
    assert texts_of(created) == ["0", "1", "2", "3", "4"]


@contract("concurrency")
async def a_save_beside_durable_appends_is_complete_or_a_conflict(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    for number in range(5):
        buffer.add_message(role="user", content=f"mine {number}")

    async def append() -> None:
        await world.tenant().messages.append(buffer.id, role="user", content="theirs")

    outcomes = await world.together(buffer.save, append)
    assert outcomes[1] is None
    texts = [message.content[0]["text"] for message in await acme.messages.list(buffer.id)]
    mine = [f"mine {number}" for number in range(5)]
    if outcomes[0] is None:
        assert texts == ["0", "1", "2", "3", "4", *mine, "theirs"]
    else:
        assert type(outcomes[0]) is Conflict
        assert texts == ["0", "1", "2", "3", "4", "theirs"]


@contract("reopening")
async def saved_changes_outlive_the_handle_and_unsaved_ones_do_not(world: World) -> None:
    buffer = await saved_buffer(world.tenant())
    buffer.set_summary("s")
    buffer.truncate_history(2)
    await buffer.save()
    saved = (buffer.id, buffer.history(), buffer.state)
    buffer.add_message(role="user", content="lost")
    buffer.set_label("lost")
    await world.reopen()
    again = await world.tenant().sessions.buffered("k")
    assert (again.id, again.history(), again.state) == saved


@contract("joining")
async def a_save_commits_and_rolls_back_with_the_callers_transaction(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme)
    await world.caller.commit()
    await world.caller.begin()
    buffer.truncate_history(2)
    buffer.add_message(role="user", content="undone")
    await buffer.save()
    await check_stored(world, buffer)
    await world.caller.rollback()
    await world.caller.begin()
    assert len(await acme.messages.list(buffer.id)) == 5
    await buffer.save()  # the save that was rolled back is repeated
    await check_stored(world, buffer)
    buffer.add_message(role="user", content="more")
    await buffer.save()
    assert texts_of(buffer) == ["3", "4", "undone", "more"]
    await check_stored(world, buffer)
    await world.caller.rollback()
    await world.caller.begin()
    await acme.messages.append(buffer.id, role="user", content="theirs")
    await check_conflict_by_state(world, buffer)
    await buffer.reload()
    assert texts_of(buffer) == ["0", "1", "2", "3", "4", "theirs"]
    buffer.set_history([*buffer.history(), NewMessage(role="user", content="5")])
    await buffer.save()
    await check_stored(world, buffer)


@contract("joining")
async def a_session_whose_creation_was_rolled_back_can_be_saved_again(world: World) -> None:
    acme = world.tenant()
    buffer = await acme.sessions.buffered("k")
    buffer.add_message(role="user", content="hello")
    await buffer.save()
    buffer.add_message(role="user", content="again")
    await buffer.save()
    await world.caller.rollback()
    await world.caller.begin()
    with raises(Conflict, reason="deleted_or_rolled_back"):
        await buffer.save()
    await buffer.reload(keep_unsaved=True)
    await buffer.save()
    assert texts_of(buffer) == ["hello", "again"]
    await check_stored(world, buffer)
    await world.caller.commit()
    await world.caller.begin()
    before = await acme.sessions.get(buffer.id)
    await buffer.save()
    assert await acme.sessions.get(buffer.id) == before, "a second save writes nothing"
    await acme.sessions.purge(buffer.id)
    await world.caller.commit()
    await world.caller.begin()


@contract()
async def unsaved_messages_can_be_kept_after_those_of_another_writer(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme, count=2)
    await acme.messages.append(buffer.id, role="user", content="theirs")
    added = uuid_of(7)
    buffer.add_message(role="assistant", content="mine", id=added, is_preserved=True, metadata={"a": 1}, token_count=77)
    buffer.add_message(kind="note", content={"any": "JSON"})
    mine = buffer.unsaved()
    await check_conflict(world, buffer, "changed")
    await buffer.reload(keep_unsaved=True)
    await buffer.save()
    await check_stored(world, buffer)
    kept = buffer.history()[-2:]
    assert [message.content for message in buffer.history()[:3]] == [
        [{"type": "text", "text": text}] for text in ("0", "1", "theirs")
    ]
    assert [
        (message.id, message.kind, message.content, message.metadata, message.token_count, message.is_preserved)
        for message in kept
    ] == [
        (message.id, message.kind, message.content, message.metadata, message.token_count, message.is_preserved)
        for message in mine
    ]


@contract()
async def a_copy_of_a_stored_message_is_not_unsaved(world: World) -> None:
    acme = world.tenant()
    buffer = await saved_buffer(acme, count=3)
    buffer.set_history([NewMessage(role="user", content="first"), *buffer.history()])
    assert [message.content[0]["text"] for message in buffer.unsaved()] == ["first"]
    await acme.messages.append(buffer.id, role="user", content="theirs")
    await check_conflict(world, buffer, "changed")
    await buffer.reload(keep_unsaved=True)
    assert texts_of(buffer) == ["0", "1", "2", "theirs", "first"]
    await buffer.save()
    await check_stored(world, buffer)
