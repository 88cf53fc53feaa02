"""Recorded compactions, computed by the caller, are stored and rolled back like any other."""

from __future__ import annotations

from typing import Any

from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.stores.conversation.tokens import estimate
from tests.contract.cases.compactions import LONG, POLICY, session_with, shown_messages
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


@contract()
async def a_recorded_compaction_stores_its_numbers_and_the_originals(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, "one", "two", "three", "four")
    opinion = await acme.feedback.create(messages[1].id, is_positive=True, user="ada")
    before = await shown_messages(acme, session)
    event = await acme.compactions.record(
        session.id,
        strategy="my own",
        removed=[messages[2].id, messages[1].id],
        summary="two and three",
        preserved_message_ids=[messages[0].id],
        original_tokens=500,
        compacted_tokens=50,
        model="m",
        duration_ms=7,
    )
    assert (event.strategy, event.original_tokens, event.compacted_tokens) == ("my own", 500, 50)
    assert (event.messages_removed, event.model_used, event.duration_ms) == (2, "m", 7)
    assert event.preserved_message_ids == [messages[0].id]
    assert [event] == await acme.compactions.history(session.id)
    after = await shown_messages(acme, session)
    assert [message.content[0]["text"] for message in after] == ["one", "two and three", "four"]
    assert (after[1].id, after[1].is_summary, after[1].seq) == (event.summary_message_id, True, 3)
    originals = [original.message for original in await acme.compactions.archived(event_id=event.id)]
    assert originals == messages[1:3]
    assert (await acme.sessions.get(session.id)).compaction_count == 1
    await acme.messages.append(session.id, role="user", content="later")
    await acme.compactions.rollback(event.id)
    assert (await shown_messages(acme, session))[:4] == before
    assert await acme.feedback.list() == [opinion]


@contract()
async def token_counts_of_a_record_default_to_those_of_the_session(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, "x", token_count=30)
    event = await acme.compactions.record(
        session.id, strategy="own", removed=[messages[0].id, messages[1].id], summary="s"
    )
    summary = [{"type": "text", "text": "s"}]
    assert (event.original_tokens, event.compacted_tokens) == (90, 30 + estimate(summary))
    assert (await acme.sessions.get(session.id)).token_count == event.compacted_tokens


@contract()
async def messages_can_be_archived_after_the_event(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, "one", "two", "three", "four")
    before = await shown_messages(acme, session)
    event = await acme.compactions.record(session.id, strategy="own", summary="s", compacted_tokens=3)
    assert await shown_messages(acme, session) == before, "nothing was removed yet"
    assert await acme.compactions.archive(event.id, []) == event
    first = await acme.compactions.archive(event.id, [messages[0].id, messages[1].id])
    second = await acme.compactions.archive(event.id, [messages[3].id])
    assert (first.messages_removed, second.messages_removed, second.compacted_tokens) == (2, 3, 3)
    assert [message.is_summary for message in await shown_messages(acme, session)] == [True, False]
    for ids in ([messages[0].id], [messages[2].id, uuid_of("unknown")]):
        with raises(NotFound, noun="message"):
            await acme.compactions.archive(event.id, ids)
    await acme.compactions.rollback(event.id)
    assert await shown_messages(acme, session) == before
    with raises(Conflict, reason="rolled_back"):
        await acme.compactions.archive(event.id, [messages[0].id])


@contract()
async def a_recorded_compaction_does_not_change_other_branches(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, "one", "two", "three")
    fork = await acme.branches.fork(session.id, at=3)
    event = await acme.compactions.record(
        session.id, strategy="own", removed=[messages[0].id, messages[1].id], summary="s"
    )
    assert [message.content[0]["text"] for message in await shown_messages(acme, session)] == ["s", "three"]
    await acme.branches.switch(session.id, fork.number)
    assert await shown_messages(acme, session) == messages
    await acme.branches.switch(session.id, 0)
    more = await acme.compactions.archive(event.id, [messages[2].id])
    assert more.messages_removed == 3
    assert [message.content[0]["text"] for message in await shown_messages(acme, session)] == ["s"]
    await acme.compactions.rollback(event.id)
    assert await shown_messages(acme, session) == messages


@contract()
async def recorded_and_other_compactions_are_rolled_back_newest_first(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, LONG, "x", "y", token_count=100)
    before = await shown_messages(acme, session)
    own = await acme.compactions.record(session.id, strategy="own", removed=[messages[0].id], summary="s")
    between = await shown_messages(acme, session)
    event = await acme.compactions.compact(session.id, POLICY, summary="t")
    with raises(Conflict, saying=event.id, reason="newer_compaction"):
        await acme.compactions.rollback(own.id)
    with raises(Conflict, saying=event.id, reason="newer_compaction"):
        await acme.compactions.archive(own.id, [messages[4].id])
    await acme.compactions.rollback(event.id)
    assert await shown_messages(acme, session) == between
    await acme.compactions.rollback(own.id)
    assert await shown_messages(acme, session) == before


@contract()
async def a_record_can_be_repeated_and_invalid_records_are_refused(world: World) -> None:
    acme, id = world.tenant(), uuid_of("event")
    session, messages = await session_with(acme, "one", "two")
    other, _ = await session_with(acme, "x")
    first = await acme.compactions.record(session.id, strategy="own", removed=[messages[0].id], id=id)
    assert await acme.compactions.record(session.id, strategy="own", removed=[messages[0].id], id=id) == first
    with raises(Conflict, saying=id, reason="id_taken"):
        await acme.compactions.record(other.id, strategy="own", id=id)
    wrong: list[dict[str, Any]] = [
        {"strategy": ""},
        {"strategy": "own", "summary": " "},
        {"strategy": "own", "duration_ms": -1},
        {"strategy": "own", "original_tokens": True},
        {"strategy": "own", "removed": messages[1].id},
    ]
    before = await shown_messages(acme, session)
    for arguments in wrong:
        with raises(InvalidInput):
            await acme.compactions.record(session.id, **arguments)
    with raises(NotFound, noun="message", key=messages[0].id):
        await acme.compactions.record(session.id, strategy="own", removed=[messages[0].id])
    assert await shown_messages(acme, session) == before
    assert len(await acme.compactions.history(session.id)) == 1
