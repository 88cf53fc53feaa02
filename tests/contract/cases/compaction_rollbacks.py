"""Rollbacks of compactions: everything is restored byte for byte, and later messages stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.clock import from_us
from holdfast.errors import Conflict, NotFound
from holdfast.stores.conversation.compaction.policy import CompactionPolicy
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.compactions import HYBRID, LONG, POLICY, call, result, session_with, shown_messages
from tests.contract.cases.suite import contract
from tests.contract.cases.values import NUMBERS, TEXTS, documents, same
from tests.contract.cases.world import World, raises, uuid_of

ALL = replace(POLICY, preserve_last=0)
PRUNING = replace(HYBRID, preserve_last=0, target_tokens=999)


def identical(one: Sequence[Struct], other: Sequence[Struct]) -> bool:
    """Return whether rows are equal in every value and type."""
    return same([asdict(message) for message in one], [asdict(message) for message in other])


async def check_restored(acme: AsyncTenantHandle, session: Session, before: list[Message], *later: Message) -> None:
    """Check that a session shows its earlier messages and the later ones, with the counters from before."""
    now = await acme.sessions.get(session.id)
    assert identical(await shown_messages(acme, session), [*before, *later])
    assert (now.message_count, now.token_count) == (
        len(before) + len(later),
        sum(message.token_count for message in [*before, *later]),
    )


@contract()
async def a_rollback_restores_everything_and_keeps_later_messages(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    new = [
        NewMessage(role="system", content="be kind"),
        NewMessage(role="user", content=LONG, metadata={"n": 1}, token_count=77),
        NewMessage(kind="adk.event", content=None),
        NewMessage(kind="adk.event", role="assistant", content={"a": [1, 1.0, True]}, token_count=3),
        NewMessage(role="assistant", content=call("a"), is_summary=True),
        NewMessage(role="user", content=result("a")),
        NewMessage(role="user", content="last"),
    ]
    created = await acme.messages.append_many(session.id, new)
    world.clock.advance(60)
    await acme.messages.update(created[1].id, metadata={"n": 2})
    before = await shown_messages(acme, session)
    world.clock.advance(60)
    event = await acme.compactions.compact(session.id, ALL, summary="s")
    assert [message.seq for message in await shown_messages(acme, session)] == [1, 7]
    later = await acme.messages.append(session.id, role="assistant", content="later", token_count=4)
    world.clock.advance(60)
    undone = await acme.compactions.rollback(event.id)
    assert undone == replace(
        event, rolled_back_at=from_us(world.clock.now_us()), updated_at=from_us(world.clock.now_us())
    )
    await check_restored(acme, session, before, later)
    now = await acme.sessions.get(session.id)
    assert (now.compaction_count, now.updated_at) == (0, undone.rolled_back_at)
    assert await acme.compactions.get(event.id) == undone
    assert await acme.compactions.archived(session_id=session.id) == []
    assert (await acme.messages.append(session.id, role="user", content="goes on")).seq == 9


@contract()
async def a_rollback_restores_pruned_tool_outputs(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, call("a"), result("a"), call("b"), result("b"), "x", token_count=50)
    plain, _ = await session_with(acme, call("a"), result("a"), "x")
    for pruned_session in (session, plain):
        before = await shown_messages(acme, pruned_session)
        world.clock.advance(1)
        event = await acme.compactions.compact(pruned_session.id, PRUNING)
        assert (event.messages_removed, event.messages_rewritten > 0) == (0, True)
        assert await shown_messages(acme, pruned_session) != before
        await acme.compactions.rollback(event.id)
        await check_restored(acme, pruned_session, before)
    event = await acme.compactions.compact(session.id, PRUNING)
    await acme.messages.update(messages[1].id, is_preserved=True, metadata={"changed": "since"})
    await acme.messages.delete(session.id, [messages[3].id])
    await acme.compactions.rollback(event.id)
    await check_restored(acme, session, [messages[0], messages[1], messages[2], messages[4]])


@contract()
async def the_newest_compaction_must_be_rolled_back_first(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, *[LONG] * 8, token_count=20)
    states, events = [await shown_messages(acme, session)], []
    for number in range(3):
        events.append(await acme.compactions.compact(session.id, POLICY, summary=f"summary {number}"))
        for _ in range(2):
            await acme.messages.append(session.id, role="user", content=LONG, token_count=20)
        states.append(await shown_messages(acme, session))
    assert [event.number for event in events] == [1, 2, 3]
    assert [event.id for event in await acme.compactions.history(session.id)] == [
        event.id for event in reversed(events)
    ]
    assert (await acme.sessions.get(session.id)).compaction_count == 3
    for older in events[:2]:
        with raises(Conflict, saying=events[2].id, reason="newer_compaction"):
            await acme.compactions.rollback(older.id)
    assert await shown_messages(acme, session) == states[3]
    appended: list[Message] = []
    for number in (2, 1, 0):
        appended = states[number + 1][-2:] + appended
        await acme.compactions.rollback(events[number].id)
        await check_restored(acme, session, states[number], *appended)
        assert (await acme.sessions.get(session.id)).compaction_count == number
        with raises(Conflict, saying=events[number].id, reason="rolled_back"):
            await acme.compactions.rollback(events[number].id)
    before = await shown_messages(acme, session)
    again = await acme.compactions.compact(session.id, POLICY, summary="once more")
    assert (again.number, again.messages_removed) == (4, 12)
    await acme.compactions.rollback(again.id)
    await check_restored(acme, session, before)


@contract()
async def every_value_survives_the_archive(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    values: list[Any] = [*TEXTS, *NUMBERS, None, True, [], {}, [[], {}], documents()]
    new = [NewMessage(kind="x.y", content=value, metadata={"v": value}) for value in values]
    new += [NewMessage(role="user", content=text, metadata={text: text}) for text in TEXTS]
    blocks: list[Any] = [{"type": "tool_result", "tool_use_id": "t", "content": [LONG, *values], "\x00": "\ud800"}]
    new.append(NewMessage(role="user", content=blocks))
    created = await acme.messages.append_many(session.id, new)
    for policy in (ALL, PRUNING):
        event = await acme.compactions.compact(session.id, replace(policy, summary_tokens=9_999), summary="\x00 \ud800")
        kept = await acme.compactions.archived(event_id=event.id, limit=1_000)
        assert identical([message.message for message in kept], created[-event.messages_removed or -1 :])
        assert {message.is_rewritten for message in kept} == {event.messages_rewritten > 0}
        if event.messages_removed:
            assert (await acme.compactions.get(event.id)).summary_content == "\x00 \ud800"
        await acme.compactions.rollback(event.id)
        await check_restored(acme, session, created)


@contract()
async def a_rollback_restores_the_feedback_on_a_message(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, call("a"), result("a"), "x", "y")
    for number in (0, 2, 4):
        await acme.feedback.create(
            messages[number].id,
            is_positive=False,
            feedback_text=f"'\x00 \ud800 {number}",
            user="ada",
            metadata={"n": [1.0]},
        )
    await acme.feedback.create(messages[0].id, is_positive=True)
    feedback = await acme.feedback.list(session_id=session.id)
    assert len(feedback) == 4
    event = await acme.compactions.compact(session.id, POLICY, summary="s")
    assert [entry.message_id for entry in await acme.feedback.list(session_id=session.id)] == [messages[4].id]
    again = next(entry for entry in feedback if entry.message_id == messages[0].id)
    await acme.feedback.create(messages[3].id, is_positive=False, id=again.id)
    with raises(Conflict, reason="feedback_id_taken"):
        await acme.compactions.rollback(event.id)
    await acme.feedback.delete(again.id)
    await acme.feedback.create(str(event.summary_message_id), is_positive=False)
    await acme.compactions.rollback(event.id)
    assert identical(await acme.feedback.list(session_id=session.id), feedback)
    pruned = await acme.compactions.compact(session.id, PRUNING)
    assert identical(await acme.feedback.list(session_id=session.id), feedback)
    await acme.compactions.rollback(pruned.id)
    assert identical(await acme.feedback.list(session_id=session.id), feedback)


@contract()
async def originals_can_be_read_and_searched_page_by_page(world: World) -> None:
    acme = world.tenant()
    texts = ["Der GRÖSSTE Wald", "100% of_it", "plain", "100 percent of it", "straße", "x", "y"]
    session, appended = await session_with(acme, *[f"{text} {LONG}" for text in texts])
    first = await acme.compactions.compact(session.id, replace(POLICY, preserve_last=4), summary="one")
    summary = (await shown_messages(acme, session))[0]
    world.clock.advance(5)
    second = await acme.compactions.compact(session.id, POLICY, summary="two")
    archived = await acme.compactions.archived(session_id=session.id)
    assert [(original.event_id, original.message) for original in archived] == [
        *((first.id, message) for message in appended[:3]),
        *((second.id, message) for message in [summary, *appended[3:5]]),
    ]
    assert [original.archived_at for original in archived] == [first.created_at] * 3 + [second.created_at] * 3
    assert archived.next is None
    assert await acme.compactions.archived(event_id=second.id) == archived[3:]
    pages = [await acme.compactions.archived(session_id=session.id, limit=4)]
    pages.append(await acme.compactions.archived(session_id=session.id, limit=4, cursor=pages[0].next))
    assert [*pages[0], *pages[1]] == archived
    assert pages[1].next is None
    matches = {
        "größte": [appended[0]],
        "GRÖSSTE WALD": [appended[0]],
        "100%": [appended[1]],
        "of_it": [appended[1]],
        "100": [appended[1], appended[3]],
        "STRASSE": [appended[4]],
        "tool_use": [],
        "text": [],
        "one": [summary],
    }
    for text, messages in matches.items():
        hits = await acme.compactions.search_archive(session.id, text)
        assert [original.message for original in hits] == messages, text
    page = await acme.compactions.search_archive(session.id, "100", limit=1)
    rest = await acme.compactions.search_archive(session.id, "100", limit=1, cursor=page.next)
    assert ([original.message for original in page], [original.message for original in rest]) == (
        [appended[1]],
        [appended[3]],
    )
    assert rest.next is None
    history = await acme.compactions.history(session.id, limit=1)
    assert (history, await acme.compactions.history(session.id, limit=1, cursor=history.next)) == ([second], [first])


@contract()
async def a_deleted_session_hides_its_compactions(world: World) -> None:
    acme, stranger = world.tenant(), world.tenant("stranger")
    session, _ = await session_with(acme, *[LONG] * 6)
    event = await acme.compactions.compact(session.id, POLICY, summary="s")
    hidden: list[Any] = [
        lambda of: of.compactions.get(event.id),
        lambda of: of.compactions.history(session.id),
        lambda of: of.compactions.archived(event_id=event.id),
        lambda of: of.compactions.archived(session_id=session.id),
        lambda of: of.compactions.search_archive(session.id, "long"),
        lambda of: of.compactions.rollback(event.id),
        lambda of: of.compactions.plan(session.id),
        lambda of: of.compactions.compact(session.id, ALL, summary="s"),
        lambda of: of.compactions.attach(session_id=session.id),
        lambda of: of.compactions.attached(session.id),
    ]
    for ask in hidden:
        with raises(NotFound):
            await ask(stranger)
    await acme.sessions.delete(session.id)
    for ask in hidden:
        with raises(NotFound):
            await ask(acme)
    await acme.sessions.restore(session.id)
    assert await acme.compactions.get(event.id) == event
    assert len(await acme.compactions.archived(session_id=session.id)) == 4
    await acme.sessions.purge(session.id)
    with raises(NotFound):
        await acme.compactions.get(event.id)


@contract()
async def a_message_that_was_appended_again_is_not_overwritten(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, LONG, LONG, "x", "y")
    first = await acme.messages.append(session.id, role="user", content="by its id", id=uuid_of("again"))
    for _ in range(3):
        await acme.messages.append(session.id, role="user", content="more")
    before = await shown_messages(acme, session)
    event = await acme.compactions.compact(session.id, POLICY, summary="s")
    other = await acme.sessions.create()
    again = await acme.messages.append(other.id, role="user", content="by its id", id=first.id)
    with raises(Conflict, reason="message_id_taken"):
        await acme.compactions.rollback(event.id)
    assert (await acme.sessions.get(session.id)).compaction_count == 1
    await acme.messages.delete(other.id, [again.id])
    await acme.compactions.rollback(event.id)
    await check_restored(acme, session, before)


@contract()
async def a_compaction_does_not_change_other_branches(world: World) -> None:
    acme = world.tenant()
    contents: list[Any] = [LONG, call("a"), result("a"), LONG, LONG, "x", "y"]
    session, _ = await session_with(acme, *contents, token_count=40)
    fork = await acme.branches.fork(session.id, at=6)
    before = await shown_messages(acme, session)
    for policy in (POLICY, PRUNING, replace(HYBRID, target_tokens=1)):
        event = await acme.compactions.compact(session.id, policy, summary="s")
        compacted = await shown_messages(acme, session)
        assert sum(message.token_count for message in compacted) < sum(message.token_count for message in before)
        later = await acme.messages.append(session.id, role="user", content="on the first branch")
        await acme.branches.switch(session.id, fork.number)
        assert await shown_messages(acme, session) == before[:6]
        with raises(Conflict, saying=event.id, reason="other_branch"):
            await acme.compactions.rollback(event.id)
        mine = await acme.compactions.compact(session.id, POLICY, summary="on the fork")
        assert [message.is_summary for message in await shown_messages(acme, session)] == [True, False, False]
        await acme.branches.switch(session.id, 0)
        assert await shown_messages(acme, session) == [*compacted, later]
        await acme.compactions.rollback(event.id)
        await check_restored(acme, session, before, later)
        await acme.messages.delete(session.id, [later.id])
        await acme.branches.switch(session.id, fork.number)
        await acme.compactions.rollback(mine.id)
        await check_restored(acme, session, before[:6])
        await acme.branches.switch(session.id, 0)
    assert (await acme.sessions.get(session.id)).compaction_count == 0


@contract()
async def a_fork_of_a_compacted_session_is_not_changed_by_a_rollback(world: World) -> None:
    acme = world.tenant()
    policies: list[CompactionPolicy] = [POLICY, replace(PRUNING, preserve_last=2)]
    for policy in policies:
        session, messages = await session_with(acme, LONG, call("a"), result("a"), LONG, "x", "y", token_count=40)
        await acme.feedback.create(messages[0].id, is_positive=True)
        feedback = [*await acme.feedback.list(session_id=session.id)]
        before = await shown_messages(acme, session)
        event = await acme.compactions.compact(session.id, policy, summary="s")
        compacted = await shown_messages(acme, session)
        fork = await acme.branches.fork(session.id)
        nested = await acme.compactions.compact(session.id, ALL, summary="!")
        await acme.compactions.rollback(nested.id)
        await check_restored(acme, session, compacted)
        await acme.compactions.rollback(event.id)
        back = await shown_messages(acme, session)
        if event.messages_rewritten:  # the fork has entries with the same ids
            back = [replace(message, id=was.id) for message, was in zip(back, before, strict=True)]
        assert identical(back, before)
        assert [*await acme.feedback.list(session_id=session.id)] == feedback
        await acme.branches.switch(session.id, fork.number)
        await check_restored(acme, session, compacted)
        await acme.branches.switch(session.id, 0)
        again = await acme.compactions.compact(session.id, POLICY, summary="again")
        await acme.compactions.rollback(again.id)
        assert [message.seq for message in await shown_messages(acme, session)] == [message.seq for message in before]


@contract()
async def no_branch_starts_between_removed_messages_and_their_summary(world: World) -> None:
    """The summary of messages before a kept message comes after it, so a branch in between would have neither."""
    acme = world.tenant()
    session, messages = await session_with(acme, *[LONG] * 10)
    for kept in (messages[0], messages[4]):
        await acme.messages.update(kept.id, is_preserved=True)
    before = await shown_messages(acme, session)
    event = await acme.compactions.compact(session.id, POLICY, summary="2 to 4 and 6 to 8")
    assert [message.seq for message in await shown_messages(acme, session)] == [1, 5, 8, 9, 10]
    await acme.branches.switch(session.id, (await acme.branches.fork(session.id, at=9)).number)
    for number in (1, 0):
        await acme.branches.switch(session.id, number)
        with raises(Conflict, saying=event.id, reason="compacted"):
            await acme.branches.fork(session.id, at=5)
        with raises(Conflict, saying=event.id, reason="compacted"):
            await acme.branches.rewind(session.id, to=5)
    for at, expected in ((1, [1]), (8, [1, 5, 8]), (0, [])):
        await acme.branches.rewind(session.id, to=at)
        assert [message.seq for message in await shown_messages(acme, session)] == expected
        await acme.branches.redo(session.id)
    second = await acme.compactions.compact(session.id, ALL, summary="all of it")
    assert [message.seq for message in await shown_messages(acme, session)] == [1, 5, 10]
    with raises(Conflict, saying=second.id, reason="compacted"):
        await acme.branches.rewind(session.id, to=5)
    await acme.compactions.rollback(second.id)
    await acme.compactions.rollback(event.id)
    await check_restored(acme, session, before)
    await acme.branches.rewind(session.id, to=5)
    await check_restored(acme, session, before[:5])


@contract()
async def purged_messages_leave_the_archive(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(
        acme, call("a"), result("a", output="SECRET " * 300), LONG, "SECRET", "x", "y"
    )
    pruned = await acme.compactions.compact(session.id, replace(PRUNING, preserve_last=2), summary="s")
    assert pruned.messages_rewritten == 1
    removed = await acme.compactions.compact(session.id, POLICY, summary="s")
    assert removed.messages_removed == 4
    before = await acme.sessions.get(session.id)
    assert await acme.messages.delete(session.id, [messages[1].id, messages[3].id, uuid_of("unknown")]) == 2
    assert await acme.messages.delete(session.id, [messages[1].id, messages[3].id]) == 0
    assert await world.tenant("zenith").sessions.list() == []
    after = await acme.sessions.get(session.id)
    assert (after.message_count, after.token_count) == (before.message_count, before.token_count)
    assert await acme.compactions.search_archive(session.id, "SECRET") == []
    left = await acme.compactions.archived(session_id=session.id)
    assert {message.message.id for message in left} == {messages[0].id, messages[2].id}
    await acme.compactions.rollback(removed.id)
    await acme.compactions.rollback(pruned.id)
    await check_restored(acme, session, [messages[0], messages[2], messages[4], messages[5]])
    assert await acme.messages.search("secret", session_id=session.id) == []


@contract()
async def a_rollback_removes_the_summary_of_deleted_messages(world: World) -> None:
    """The summary has the position of the last message that it replaces, which is not restored."""
    acme = world.tenant()
    for fork_first, deleted in ((False, 1), (True, 1), (False, 3), (True, 3)):
        session, messages = await session_with(acme, LONG, LONG, LONG, "x", "y")
        forks = [await acme.branches.fork(session.id)] if fork_first else []
        event = await acme.compactions.compact(session.id, POLICY, summary="s")
        forks += [] if forks else [await acme.branches.fork(session.id)]
        compacted = await shown_messages(acme, session)
        deleted_ids = {message.id for message in messages[3 - deleted : 3]}
        assert await acme.messages.delete(session.id, [*deleted_ids]) == deleted
        await acme.compactions.rollback(event.id)
        await check_restored(acme, session, [message for message in messages if message.id not in deleted_ids])
        await acme.branches.switch(session.id, forks[0].number)
        seen = messages if fork_first else compacted
        await check_restored(acme, session, [message for message in seen if message.id not in deleted_ids])
