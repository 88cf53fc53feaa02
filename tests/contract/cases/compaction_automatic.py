"""Compactions with a summarize function: outside of transactions, beside concurrent writers, and automatic ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.errors import Conflict, InvalidInput, NotFound, NothingToCompact
from holdfast.stores.conversation.compaction.policy import CompactionPolicy
from holdfast.stores.conversation.compaction.strategies import PRUNED
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.tokens import estimate
from holdfast.sync_runner import step
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.compactions import LONG, POLICY, Greedy, call, result, session_with, shown_messages, tokens
from tests.contract.cases.messages import check_counters
from tests.contract.cases.runs import claim_run, commit_step
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises

SMALL = replace(POLICY, window_tokens=1_000, trigger=0.5, preserve_last=2)
"""Due at 500 tokens."""


def summarizer(world: World, think: Callable[[Sequence[Message]], Coroutine[Any, Any, str]]) -> Any:
    """Return a coroutine function on asynchronous legs, and a plain function on others."""
    return (lambda messages: step(think(messages))) if world.blocking else think


@contract("concurrency")
async def no_lock_is_held_while_the_summariser_runs(world: World) -> None:
    """While the summariser runs, the session can be read and written, and appended messages follow the summary."""
    acme = world.tenant()
    session, appended = await session_with(acme, LONG, LONG, "x", "y", token_count=50)
    other, _ = await session_with(acme, "elsewhere")
    received: list[Sequence[Message]] = []
    later: list[Message] = []

    async def think(messages: Sequence[Message]) -> str:
        received.append(messages)
        later.append(await acme.messages.append(session.id, role="user", content="meanwhile"))
        await acme.messages.update(appended[3].id, metadata={"changed": "meanwhile"})
        await acme.sessions.update(session.id, metadata={"changed": "meanwhile"})
        await acme.messages.append(other.id, role="user", content="elsewhere too")
        assert len(await acme.messages.list(session.id)) == 5
        world.clock.advance(2)
        return "a thought"

    event = await acme.compactions.compact(session.id, POLICY, summarize=summarizer(world, think))
    assert received == [appended[:2]]
    after = await shown_messages(acme, session)
    assert [message.content for message in after] == [
        [{"type": "text", "text": text}] for text in ("a thought", "x", "y", "meanwhile")
    ]
    assert after[-1] == later[0]
    assert (event.original_tokens, event.compacted_tokens) == (tokens([*appended, *later]), tokens(after))
    assert event.duration_ms == 2_000


@contract("concurrency")
async def an_invalid_summary_or_a_concurrent_change_fails_the_compaction(world: World) -> None:
    acme = world.tenant()
    session, appended = await session_with(acme, LONG, LONG, "x", "y")

    async def changes_a_covered_message(messages: Sequence[Message]) -> str:
        await acme.messages.update(messages[0].id, content="something else")
        return "of the old"

    async def compacts(messages: Sequence[Message]) -> str:
        await acme.compactions.compact(session.id, POLICY, summary="quicker")
        return "slower"

    async def fails(messages: Sequence[Message]) -> str:
        raise OSError("no model")

    def saying(answer: Any) -> Any:
        async def says(messages: Sequence[Message]) -> Any:
            return answer

        return summarizer(world, says)

    with raises(OSError, saying="no model"):
        await acme.compactions.compact(session.id, POLICY, summarize=summarizer(world, fails))
    for answer in ("", "  ", None, 7, b"bytes"):
        with raises(InvalidInput, field="summary"):
            await acme.compactions.compact(session.id, POLICY, summarize=saying(answer))
    with raises(NothingToCompact):
        await acme.compactions.compact(session.id, POLICY, summarize=saying(LONG * 4))
    assert await shown_messages(acme, session) == appended
    with raises(Conflict):
        await acme.compactions.compact(session.id, POLICY, summarize=summarizer(world, changes_a_covered_message))
    assert (await acme.sessions.get(session.id)).compaction_count == 0
    with raises(Conflict):
        await acme.compactions.compact(session.id, POLICY, summarize=summarizer(world, compacts))
    assert [event.summary_content for event in await acme.compactions.history(session.id)] == ["quicker"]


@contract("concurrency")
async def asynchronous_summarisers_need_an_event_loop_and_plain_ones_always_work(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, LONG, LONG, "x", "y")

    async def think(messages: Sequence[Message]) -> str:
        return "thought"

    if world.blocking:
        with raises(InvalidInput, field="summarize"):
            await acme.compactions.compact(session.id, POLICY, summarize=think)
        with raises(InvalidInput, field="summarize"):
            await acme.compactions.compact(session.id, POLICY, summarize=lambda messages: think([*messages]))
        with raises(InvalidInput, field="summarize"):
            await acme.compactions.attach(POLICY, session_id=session.id, summarize=think)
        assert await acme.compactions.history(session.id) == []
    event = await acme.compactions.compact(session.id, POLICY, summarize=lambda messages: f"{len(messages)} messages")
    assert event.summary_content == "2 messages"


@contract("joining")
async def no_summariser_is_called_in_the_callers_transaction(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, LONG, LONG, "x", "y", token_count=300)
    called: list[Any] = []

    def summarize(messages: Sequence[Message]) -> str:
        called.append(messages)
        return "s"

    with raises(InvalidInput, field="summarize"):
        await acme.compactions.compact(session.id, POLICY, summarize=summarize)
    await acme.compactions.attach(SMALL, session_id=session.id, summarize=summarize)
    await acme.messages.append(session.id, role="user", content="due", token_count=300)
    assert called == []
    assert len(await shown_messages(acme, session)) == 5
    plan = await acme.compactions.plan(session.id, POLICY)
    await acme.compactions.compact(session.id, plan=plan, summary="by hand")
    assert [message.is_summary for message in await shown_messages(acme, session)] == [True, False, False]
    await world.caller.rollback()
    await world.caller.begin()
    with raises(NotFound):
        await acme.sessions.get(session.id)


@contract("concurrency")
async def one_of_several_concurrent_compactions_succeeds(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, *[LONG] * 8, token_count=20)
    before = await shown_messages(acme, session)
    outcomes = await world.together(
        *[
            lambda number=number: acme.compactions.compact(session.id, POLICY, summary=f"by {number}")
            for number in range(4)
        ],
        *[lambda: acme.messages.append(session.id, role="user", content="beside", token_count=1) for _ in range(4)],
    )
    events = [outcome for outcome in outcomes[:4] if not isinstance(outcome, Exception)]
    refused = {type(outcome) for outcome in outcomes[:4] if isinstance(outcome, Exception)}
    assert refused <= {Conflict, NothingToCompact}, outcomes
    history = await acme.compactions.history(session.id)
    assert sorted(event.number for event in history) == list(range(1, len(events) + 1))
    after = await shown_messages(acme, session)
    assert (await acme.sessions.get(session.id)).compaction_count == len(events) >= 1
    appended = [outcome for outcome in outcomes[4:] if isinstance(outcome, Message)]
    assert len(appended) == 4
    for event in history:
        await acme.compactions.rollback(event.id)
    back = await shown_messages(acme, session)
    assert (back[:8], {message.id for message in back[8:]}) == (before, {message.id for message in appended})
    assert after != back


async def _grow(acme: AsyncTenantHandle, session_id: str, count: int = 6) -> list[Message]:
    return [await acme.messages.append(session_id, role="user", content=LONG, token_count=100) for _ in range(count)]


@contract("concurrency")
async def a_session_with_a_policy_is_compacted_automatically(world: World) -> None:
    acme = world.tenant()
    session, other = await acme.sessions.create(), await acme.sessions.create()
    assert await acme.compactions.attached(session.id) is None
    received_counts: list[int] = []

    async def think(messages: Sequence[Message]) -> str:
        received_counts.append(len(messages))
        return "so far"

    await acme.compactions.attach(SMALL, session_id=session.id, summarize=summarizer(world, think))
    assert await acme.compactions.attached(session.id) == SMALL
    created, theirs = await _grow(acme, session.id), await _grow(acme, other.id)
    assert (received_counts, await shown_messages(acme, other)) == ([3], theirs)
    after = await shown_messages(acme, session)
    assert [message.is_summary for message in after] == [True, False, False, False]
    assert after[1:] == created[3:]
    (event,) = await acme.compactions.history(session.id)
    assert (event.strategy, event.number) == ("summarization", 1)
    await acme.messages.append_many(
        session.id, [NewMessage(role="user", content=LONG, token_count=100) for _ in range(3)]
    )
    assert (received_counts, len(await shown_messages(acme, session))) == ([3, 5], 3)
    await acme.compactions.detach(session_id=session.id)
    await _grow(acme, session.id)
    assert (len(received_counts), await acme.compactions.attached(session.id)) == (2, None)
    with raises(NotFound, noun="compaction policy", key=session.id):
        await acme.compactions.detach(session_id=session.id)


@contract("concurrency")
async def the_sessions_of_an_agent_are_compacted_automatically(world: World) -> None:
    acme = world.tenant()
    early = await acme.sessions.create(agent="writer")
    reader = await acme.sessions.create(agent="reader")
    function = lambda messages: "so far"  # noqa: E731
    await acme.compactions.attach(SMALL, agent="writer", summarize=function)
    late = await acme.sessions.create(agent="writer")
    upserted = await acme.sessions.upsert("k", agent="writer")
    moved = await acme.sessions.create(agent="reader")
    await acme.sessions.update(moved.id, agent="writer")
    restored = await acme.sessions.create(agent="writer")
    await acme.sessions.delete(restored.id)
    await acme.sessions.restore(restored.id)
    for session in (early, late, upserted, moved, restored):
        assert await acme.compactions.attached(session.id) == SMALL
        await _grow(acme, session.id)
        assert (await acme.sessions.get(session.id)).compaction_count == 1, session
    await _grow(acme, reader.id)
    assert (await acme.sessions.get(reader.id)).compaction_count == 0
    own = replace(SMALL, trigger=1.0)
    await acme.compactions.attach(own, session_id=late.id, summarize=function)
    assert await acme.compactions.attached(late.id) == own
    await _grow(acme, late.id, 2)
    assert (await acme.sessions.get(late.id)).compaction_count == 1
    await acme.compactions.detach(session_id=late.id)
    await _grow(acme, late.id, 1)
    assert (await acme.sessions.get(late.id)).compaction_count == 2
    await acme.compactions.detach(agent="writer")
    await _grow(acme, early.id)
    assert (await acme.sessions.get(early.id)).compaction_count == 1
    for wrong in ({}, {"session_id": early.id, "agent": "writer"}, {"agent": ""}):
        with raises(InvalidInput):
            await acme.compactions.attach(SMALL, **wrong)  # type: ignore[arg-type]
    with raises(InvalidInput, field="strategy"):
        await acme.compactions.attach(replace(SMALL, strategy="unheard of"), agent="writer")


@contract("concurrency")
async def a_session_keeps_its_own_policy_when_it_gets_another_agent(world: World) -> None:
    acme = world.tenant()
    function = lambda messages: "so far"  # noqa: E731
    own = replace(SMALL, trigger=1.0)
    await acme.compactions.attach(SMALL, agent="writer", summarize=function)
    for key in ("with a policy of its own", "without"):
        session = await acme.sessions.upsert(key, agent="reader")
        if key != "without":
            await acme.compactions.attach(own, session_id=session.id, summarize=function)
        assert (await acme.sessions.upsert(key, agent="writer")).id == session.id
        await _grow(acme, session.id, 6)
        assert (await acme.sessions.get(session.id)).compaction_count == (key == "without"), key
    kept = await acme.sessions.upsert("with a policy of its own")
    await _grow(acme, kept.id, 4)
    assert (await acme.sessions.get(kept.id)).compaction_count == 1
    left = await acme.sessions.upsert("without", agent="reader")
    await _grow(acme, left.id, 6)
    assert (await acme.sessions.get(left.id)).compaction_count == 1


@contract("concurrency")
async def a_failed_automatic_compaction_does_not_fail_the_append(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    tried: list[int] = []

    async def fails(messages: Sequence[Message]) -> str:
        tried.append(len(messages))
        raise OSError("no model")

    await acme.compactions.attach(SMALL, session_id=session.id, summarize=summarizer(world, fails))
    created = await _grow(acme, session.id, 7)
    assert (tried, await shown_messages(acme, session)) == ([3, 4, 5], created)
    small = replace(SMALL, window_tokens=10_000, target_tokens=9_000)
    await acme.compactions.attach(small, session_id=session.id, summarize=summarizer(world, fails))
    tried.clear()
    await _grow(acme, session.id, 50)
    assert len(tried) == 2, "after a failure the session must grow before the next attempt"
    await acme.compactions.attach(SMALL, session_id=session.id)
    await _grow(acme, session.id, 1)
    assert (await acme.sessions.get(session.id)).compaction_count == 0, "without a function nothing is summarised"


@contract("concurrency")
async def a_strategy_without_a_summary_needs_no_summariser(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    hybrid = CompactionPolicy(
        window_tokens=1_000, target_tokens=500, preserve_last=0, protected_tokens=0, prune_tokens=1
    )
    await acme.compactions.attach(hybrid, session_id=session.id)
    await acme.messages.append(session.id, role="assistant", content=call("a"))
    output = await acme.messages.append(session.id, role="user", content=result("a", output=LONG * 8))
    assert output.token_count > 850, "a message without a count was counted"
    after = await shown_messages(acme, session)
    assert after[1].content == result("a", output=PRUNED)
    assert (await acme.sessions.get(session.id)).compaction_count == 1
    other = await acme.sessions.create()
    first = await acme.messages.append(other.id, role="user", content="first", token_count=10)
    rolling = Greedy(remove=[first.id], summarize=False)
    await acme.compactions.attach(hybrid, session_id=other.id, strategy=rolling)
    await acme.messages.append(other.id, role="user", content="second", token_count=900)
    assert [message.seq for message in await shown_messages(acme, other)] == [2]


@contract("concurrency")
async def a_rolled_back_compaction_is_not_repeated_immediately(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await acme.compactions.attach(SMALL, session_id=session.id, summarize=lambda messages: "so far")
    await _grow(acme, session.id, 5)
    (event,) = await acme.compactions.history(session.id)
    await acme.compactions.rollback(event.id)
    await acme.messages.append(session.id, role="user", content="a little more", token_count=10)
    assert (await acme.sessions.get(session.id)).compaction_count == 0
    await _grow(acme, session.id, 1)
    assert (await acme.sessions.get(session.id)).compaction_count == 1


@contract("concurrency")
async def a_session_that_became_smaller_is_due_at_its_policys_threshold(world: World) -> None:
    """However far a failed or rolled-back compaction was postponed, and whatever made the session smaller."""
    acme = world.tenant()
    fails = [True]

    async def think(messages: Sequence[Message]) -> str:
        if fails[0]:
            raise OSError("no model")
        return "so far"

    async def rewind(session_id: str, created: Sequence[Message]) -> None:
        await acme.branches.rewind(session_id, to=1)

    async def switch(session_id: str, created: Sequence[Message]) -> None:
        fork = await acme.branches.fork(session_id, at=1)
        await acme.branches.switch(session_id, fork.number)

    async def delete(session_id: str, created: Sequence[Message]) -> None:
        await acme.messages.delete(session_id, [message.id for message in created[1:]])

    async def update(session_id: str, created: Sequence[Message]) -> None:
        for message in created[1:]:
            await acme.messages.update(message.id, token_count=1)

    async def truncate(session_id: str, created: Sequence[Message]) -> None:
        buffer = await acme.sessions.buffered((await acme.sessions.get(session_id)).key)
        buffer.truncate_history(1)
        await buffer.save()

    await acme.compactions.attach(SMALL, agent="writer", summarize=summarizer(world, think))
    for shrink in (rewind, switch, delete, update, truncate):
        fails[0] = True
        session = await acme.sessions.create(key=shrink.__name__, agent="writer")
        created = await _grow(acme, session.id, 15)
        assert (await acme.sessions.get(session.id)).compaction_count == 0
        await shrink(session.id, created)
        fails[0] = False
        await _grow(acme, session.id, 3)
        assert (await acme.sessions.get(session.id)).compaction_count == 0, shrink
        await _grow(acme, session.id, 1)
        assert (await acme.sessions.get(session.id)).compaction_count == 1, shrink


@contract("concurrency")
async def a_session_that_is_still_too_large_is_not_compacted_at_every_change(world: World) -> None:
    acme = world.tenant()
    tried: list[int] = []

    async def fails(messages: Sequence[Message]) -> str:
        tried.append(len(messages))
        raise OSError("no model")

    large = replace(SMALL, window_tokens=10_000, target_tokens=9_000)  # due at 5,000 tokens
    session = await acme.sessions.create()
    await acme.compactions.attach(large, session_id=session.id, summarize=summarizer(world, fails))
    created = await _grow(acme, session.id, 55)
    assert len(tried) == 2
    await acme.messages.update(created[0].id, metadata={"changed": True})
    await acme.messages.update(created[1].id, token_count=101)
    await acme.messages.append(session.id, role="user", content="more", token_count=1)
    await acme.messages.delete(session.id, [created[1].id])
    await _grow(acme, session.id, 3)
    assert len(tried) == 2
    await _grow(acme, session.id, 1)
    assert len(tried) == 3


@contract("concurrency")
async def messages_appended_before_the_policy_count(world: World) -> None:
    """Attaching a policy makes a session due by its existing messages, and changes none of them."""
    acme = world.tenant()
    session, _ = await session_with(acme, *["short"] * 450)
    counted = await acme.messages.append(session.id, role="user", content="given", token_count=0)
    before = await shown_messages(acme, session)
    await acme.compactions.attach(SMALL, session_id=session.id, summarize=lambda messages: "so far")
    assert await shown_messages(acme, session) == before
    assert before[-1] == counted
    await acme.messages.append(session.id, role="user", content="x")
    assert (await acme.sessions.get(session.id)).compaction_count == 1
    await check_counters(acme, session.id)


@contract()
async def the_messages_of_a_step_are_counted_with_and_without_a_policy(world: World) -> None:
    acme = world.tenant()
    run, other = await claim_run(acme), await claim_run(acme)
    new = [NewMessage(role="user", content=LONG * 4), NewMessage(role="user", content="x", token_count=3)]
    (plain,) = (await commit_step(acme, other, messages=[NewMessage(role="user", content=LONG)])).messages
    assert plain.token_count == estimate(plain.content)
    await acme.compactions.attach(SMALL, session_id=run.session_id, summarize=lambda messages: "so far")
    step = await commit_step(acme, run, messages=new)
    assert [message.token_count for message in step.messages] == [estimate(step.messages[0].content), 3]
    assert step.compaction_due
    await check_counters(acme, run.session_id)
    await acme.compactions.detach(session_id=run.session_id)
    again = await acme.runs.step(run.id, epoch=run.epoch, iteration=1, state=None, messages=new)
    assert again.messages == step.messages, "the same step with and without a policy"


@contract()
async def an_updated_content_is_counted_like_an_append(world: World) -> None:
    acme = world.tenant()
    session, (plain, with_count) = await session_with(acme, "x", "y")
    await acme.messages.update(with_count.id, token_count=9)
    for message in (plain, with_count):
        changed = await acme.messages.update(message.id, content=LONG * 2)
        assert changed.token_count == estimate(changed.content)
    await shown_messages(acme, session)
    assert (await acme.messages.update(with_count.id, content="y", token_count=0)).token_count == 0
    assert (await acme.messages.update(with_count.id, content="y", token_count=9)).token_count == 9
    assert (await acme.messages.update(with_count.id, metadata={"a": 1}, is_preserved=True)).token_count == 9
    await shown_messages(acme, session)
    assert (await acme.messages.context(session.id, max_tokens=100)).token_count <= 100


@contract()
async def a_buffer_reports_when_its_session_is_due(world: World) -> None:
    """By the policy of its session or its current agent, for messages with and without a count."""
    acme = world.tenant()
    await acme.compactions.attach(SMALL, agent="writer", summarize=lambda messages: "so far")
    created = await acme.sessions.buffered("made", agent="writer")
    moved = await acme.sessions.buffered("moved", agent="reader")
    await moved.save()
    moved.set_agent_info(agent="writer")
    reader = await acme.sessions.buffered("reader", agent="reader")
    for buffer in (created, moved, reader):
        buffer.add_message(role="user", content="short", token_count=499)
        await buffer.save()
        assert not buffer.compaction_due, buffer
        buffer.add_message(role="user", content=LONG)
        await buffer.save()
        assert await acme.messages.list(buffer.id) == buffer.history()
    assert [buffer.compaction_due for buffer in (created, moved, reader)] == [True, True, False]
    assert created.history()[-1].token_count > 1
    await acme.compactions.attach(SMALL, session_id=reader.id, summarize=lambda messages: "so far")
    reader.set_label("read")
    await reader.save()
    assert reader.compaction_due
    reader.set_agent_info(agent="painter")  # its own policy is kept
    await reader.save()
    assert reader.compaction_due
    moved.set_agent_info(agent="reader")  # an agent's policy changes with the agent
    await moved.save()
    assert not moved.compaction_due
    await created.reload()
    assert not created.compaction_due, "compaction_due is reset"
