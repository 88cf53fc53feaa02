"""Deleted messages can be restored, unchanged and at their old position."""

from __future__ import annotations

from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.stores.conversation.new_entries import NewMessage
from tests.contract.cases.compactions import LONG, POLICY, session_with, shown_messages
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


@contract()
async def a_restored_message_has_its_position_and_its_feedback(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, "one", "two \x00 \ud800", "three")
    await acme.messages.update(created[1].id, metadata={"a": [1.0, "\U0010f801"]}, is_preserved=True)
    opinion = await acme.feedback.create(
        created[1].id, is_positive=False, feedback_text="no", metadata={"b": 1}, user="ada"
    )
    before, count = await shown_messages(acme, session), await acme.sessions.get(session.id)
    world.clock.advance(5)
    assert await acme.messages.delete(session.id, [created[1].id, uuid_of("missing")]) == 1
    assert [message.id for message in await shown_messages(acme, session)] == [created[0].id, created[2].id]
    assert await acme.feedback.list() == []
    with raises(NotFound):
        await acme.messages.get(created[1].id)
    (deleted,) = await acme.messages.deleted(session.id)
    assert deleted.message == before[1]
    assert deleted.deleted_at == from_us(world.clock.now_us())
    assert await acme.messages.restore(session.id, [created[1].id, created[0].id]) == 1
    assert await shown_messages(acme, session) == before
    assert await acme.feedback.list() == [opinion]
    after = await acme.sessions.get(session.id)
    assert (after.message_count, after.token_count) == (count.message_count, count.token_count)
    assert await acme.messages.deleted(session.id) == []
    assert await acme.messages.restore(session.id, [created[1].id]) == 0


@contract()
async def a_restored_message_is_found_by_search(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, "needle", "hay")
    assert len(await acme.messages.search("needle")) == 1
    await acme.messages.delete(session.id, [created[0].id])
    assert await acme.messages.search("needle") == []
    await acme.messages.restore(session.id, [created[0].id])
    assert [hit.message.id for hit in await acme.messages.search("needle")] == [created[0].id]


@contract()
async def a_purged_message_cannot_be_restored(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, "one", "two", "three")
    await acme.messages.delete(session.id, [created[0].id])
    assert await acme.messages.delete(session.id, [created[0].id, created[1].id], purge=True) == 2
    assert await acme.messages.deleted(session.id) == []
    assert await acme.messages.restore(session.id, [created[0].id, created[1].id]) == 0
    assert await shown_messages(acme, session) == [created[2]]
    with raises(InvalidInput, field="purge"):
        await acme.messages.delete(session.id, [], purge="yes")  # type: ignore[arg-type]


@contract()
async def a_message_appended_again_keeps_its_id(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, "one", "two")
    await acme.messages.delete(session.id, [message.id for message in created])
    await acme.messages.append(session.id, role="user", content="again", id=created[0].id)
    with raises(Conflict, reason="message_id_taken"):
        await acme.messages.restore(session.id, [message.id for message in created])
    assert len(await acme.messages.deleted(session.id)) == 2
    await acme.messages.delete(session.id, [created[0].id])
    assert await acme.messages.restore(session.id, [message.id for message in created]) == 2
    contents = [message.content[0]["text"] for message in await shown_messages(acme, session)]
    assert contents == ["two", "again"], "the last message deleted under an id is restored"


@contract()
async def deleted_messages_are_listed_in_pages_per_session(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, *"abcde")
    other, theirs = await session_with(acme, "x")
    await acme.messages.delete(other.id, [theirs[0].id])
    await acme.messages.delete(session.id, [message.id for message in created])
    result, cursor = [], None
    while True:
        page = await acme.messages.deleted(session.id, limit=2, cursor=cursor)
        result += [item.message for item in page]
        cursor = page.next
        if cursor is None:
            break
    assert result == sorted(created, key=lambda message: message.id)
    assert await acme.messages.restore(session.id, [theirs[0].id]) == 0
    for method in (
        acme.messages.deleted(uuid_of("missing")),
        acme.messages.restore(uuid_of("missing"), [created[0].id]),
    ):
        with raises(NotFound):
            await method
    await acme.sessions.purge(session.id)
    assert await acme.messages.restore(other.id, [theirs[0].id]) == 1


@contract()
async def a_compacted_message_is_restored_into_its_archive(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, LONG, LONG, LONG, "x", "y", token_count=100)
    before = await shown_messages(acme, session)
    event = await acme.compactions.compact(session.id, POLICY, summary="s")
    removed = [item.message.id for item in await acme.compactions.archived(event_id=event.id)]
    assert await acme.messages.delete(session.id, removed[:1]) == 1
    assert await acme.messages.restore(session.id, removed[:1]) == 1
    assert (await acme.compactions.get(event.id)).messages_removed == len(removed)
    await acme.compactions.rollback(event.id)
    assert await shown_messages(acme, session) == before
    assert created[0].id in removed


@contract()
async def a_message_deleted_before_the_rollback_of_its_compaction_is_restored_to_the_log(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, LONG, LONG, LONG, "x", "y", token_count=100)
    before = await shown_messages(acme, session)
    event = await acme.compactions.compact(session.id, POLICY, summary="s")
    removed = [item.message.id for item in await acme.compactions.archived(event_id=event.id)]
    await acme.messages.delete(session.id, removed[-1:])
    await acme.compactions.rollback(event.id)
    assert removed[-1] not in {message.id for message in await shown_messages(acme, session)}
    assert await acme.messages.restore(session.id, removed[-1:]) == 1
    assert await shown_messages(acme, session) == before


@contract()
async def a_shared_message_is_restored_on_all_of_its_branches(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, "one", "two", "three")
    fork = await acme.branches.fork(session.id, at=2)
    await acme.messages.delete(session.id, [created[1].id, created[2].id])
    await acme.branches.switch(session.id, fork.number)
    assert await shown_messages(acme, session) == created[:1]
    assert await acme.messages.restore(session.id, [created[1].id, created[2].id]) == 2
    assert await shown_messages(acme, session) == created[:2]
    await acme.messages.append_many(session.id, [NewMessage(role="user", content="more")])
    await acme.branches.switch(session.id, 0)
    assert await shown_messages(acme, session) == created
