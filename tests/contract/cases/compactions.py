"""Compactions: their effect, protected messages, and when they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidInput, InvalidText, LimitExceeded, NotFound, NothingToCompact
from holdfast.stores.conversation.compaction.events import CompactionEvent
from holdfast.stores.conversation.compaction.policy import CompactionPolicy
from holdfast.stores.conversation.compaction.strategies import PRUNED, CompactionChanges, CompactionHistory
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from holdfast.stores.conversation.tokens import estimate
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

POLICY = CompactionPolicy(
    strategy="summarization", window_tokens=1_000, target_tokens=100, preserve_last=2, protected_tokens=0
)
"""Protects only the last two messages."""
HYBRID = replace(POLICY, strategy="hybrid", prune_tokens=1)
LONG = "a long story " * 40


def call(*ids: str) -> list[dict[str, Any]]:
    """The content of a message that calls tools."""
    return [{"type": "tool_use", "id": id, "name": "look", "input": {"at": id}} for id in ids]


def result(*ids: str, output: Any = LONG) -> list[dict[str, Any]]:
    """The content of a message with the results of calls."""
    return [{"type": "tool_result", "tool_use_id": id, "content": output} for id in ids]


def tokens(messages: Sequence[Message]) -> int:
    """Count tokens independently of the stores."""
    return sum(message.token_count if message.token_count else estimate(message.content) for message in messages)


async def session_with(acme: AsyncTenantHandle, *contents: Any, **more: Any) -> tuple[Session, list[Message]]:
    """Create a session with messages, alternating between user and assistant."""
    session = await acme.sessions.create()
    new = [
        NewMessage(role=("user", "assistant")[number % 2], content=content, **more)
        for number, content in enumerate(contents)
    ]
    return session, await acme.messages.append_many(session.id, new)


async def shown_messages(acme: AsyncTenantHandle, session: Session) -> list[Message]:
    """Return the messages of a session, and check its counters against them."""
    await check_counters(acme, session.id)
    return [*await acme.messages.list(session.id)]


@contract()
async def a_plan_describes_the_compaction_and_changes_nothing(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, "short", "last", token_count=0)
    await acme.messages.update(messages[1].id, is_preserved=True, token_count=400)
    before, unchanged = await acme.sessions.get(session.id), await shown_messages(acme, session)
    world.clock.advance(1)
    plan = await acme.compactions.plan(session.id, POLICY)
    assert (plan.session_id, plan.strategy, plan.policy) == (session.id, "summarization", POLICY)
    assert (plan.removed, plan.rewritten, plan.needs_summary) == ([messages[0].id], [], True)
    assert [message.content for message in plan.to_summarize] == [messages[0].content]
    why = {protected.message_id: protected.why for protected in plan.protected}
    assert why == {messages[1].id: "preserved", messages[2].id: "last", messages[3].id: "last"}
    assert [protected.seq for protected in plan.protected] == [2, 3, 4]
    assert plan.tokens_before == tokens(unchanged) == tokens(unchanged[1:]) + plan.covered_tokens
    assert (plan.tokens_after, plan.estimated) == (tokens(unchanged[1:]), 3)
    assert (plan.shrinks, plan.is_due, plan.last_seq) == (True, False, 4)
    due = replace(POLICY, target_tokens=1, window_tokens=plan.tokens_before, trigger=1)
    assert (await acme.compactions.plan(session.id, due)).is_due
    not_due = replace(due, window_tokens=plan.tokens_before + 1)
    assert not (await acme.compactions.plan(session.id, not_due)).is_due
    default = await acme.compactions.plan(session.id)
    assert (default.policy, default.shrinks, default.removed) == (CompactionPolicy(), False, [])
    assert await shown_messages(acme, session) == unchanged
    assert await acme.sessions.get(session.id) == before
    assert await acme.compactions.history(session.id) == []
    with raises(NotFound):
        await acme.compactions.plan(uuid_of("unknown"), POLICY)


@contract()
async def one_summary_replaces_the_removed_messages(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, LONG, LONG, LONG, "second to last", "last", token_count=30)
    await acme.messages.update(messages[1].id, is_preserved=True)
    before = await shown_messages(acme, session)
    world.clock.advance(90)
    event = await acme.compactions.compact(session.id, POLICY, summary="the summary so far", model="tiny")
    after = await shown_messages(acme, session)
    summary = after[1]
    assert after == [before[1], summary, *before[5:]]
    assert (summary.seq, summary.role, summary.kind, summary.is_summary) == (5, "user", "message", True)
    assert summary.content == [{"type": "text", "text": "the summary so far"}]
    assert summary.token_count == estimate(summary.content)
    assert (summary.is_preserved, summary.metadata) == (False, {})
    _check_event(event, before, after)
    assert (event.summary_message_id, event.summary_content) == (summary.id, "the summary so far")
    assert (event.number, event.branch, event.strategy, event.model_used) == (1, 0, "summarization", "tiny")
    assert (event.messages_removed, event.messages_rewritten) == (4, 0)
    assert event.preserved_message_ids == [messages[1].id, messages[5].id, messages[6].id]
    assert (event.duration_ms, event.created_at, event.rolled_back_at) == (0, from_us(world.clock.now_us()), None)
    now = await acme.sessions.get(session.id)
    assert (now.compaction_count, now.updated_at) == (1, event.created_at)
    assert await acme.compactions.get(event.id) == event
    assert await acme.compactions.history(session.id) == [event]
    for removed in (messages[0], messages[2], messages[3], messages[4]):
        with raises(NotFound):
            await acme.messages.get(removed.id)
    later = await acme.messages.append(session.id, role="user", content="later")
    assert (await shown_messages(acme, session))[-1] == later
    assert later.seq == 8


def _check_event(event: CompactionEvent, before: Sequence[Message], after: Sequence[Message]) -> None:
    assert (event.original_tokens, event.compacted_tokens) == (tokens(before), tokens(after))
    assert event.compacted_tokens < event.original_tokens


@contract()
async def tool_outputs_are_removed_first_and_that_may_be_enough(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(
        acme,
        "look",
        call("a", "b"),
        [*result("a"), {"type": "text", "text": "and"}, *result("b", output="ok")],
        "so",
        "x",
    )
    extra = await acme.messages.append(
        session.id, role="user", content=result("a", output=[{"type": "text", "text": LONG}]), token_count=500
    )
    policy = replace(HYBRID, preserve_last=0, target_tokens=200)
    before = await shown_messages(acme, session)
    world.clock.advance(1)
    plan = await acme.compactions.plan(session.id, policy)
    assert (plan.removed, plan.needs_summary, plan.to_summarize) == ([], False, [])
    event = await acme.compactions.compact(session.id, policy)
    after = await shown_messages(acme, session)
    pruned = [*result("a", output=PRUNED), {"type": "text", "text": "and"}, *result("b", output="ok")]
    now = from_us(world.clock.now_us())
    assert after[2] == replace(messages[2], content=pruned, updated_at=now, token_count=estimate(pruned))
    changed = result("a", output=PRUNED)
    assert after[5] == replace(extra, content=changed, updated_at=now, token_count=estimate(changed))
    assert [after[n] for n in (0, 1, 3, 4)] == [before[n] for n in (0, 1, 3, 4)]
    _check_event(event, before, after)
    assert (event.messages_removed, event.messages_rewritten, event.summary_content) == (0, 2, None)
    assert (event.summary_message_id, event.strategy) == (None, "hybrid")
    assert (await acme.sessions.get(session.id)).compaction_count == 1
    with raises(InvalidInput, field="summary"):
        await acme.compactions.compact(session.id, policy)  # nothing is left to prune, so this one needs a summary


@contract()
async def if_pruning_is_not_enough_the_summariser_gets_the_messages_without_tool_outputs(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, call("a"), result("a"), LONG, "second to last", "last")
    policy = replace(HYBRID, target_tokens=50)
    plan = await acme.compactions.plan(session.id, policy)
    assert plan.removed == [message.id for message in messages[:4]]
    assert plan.to_summarize == [
        messages[0],
        messages[1],
        replace(messages[2], content=result("a", output=PRUNED)),
        messages[3],
    ]
    event = await acme.compactions.compact(session.id, plan=plan, summary="all of it")
    after = await shown_messages(acme, session)
    assert [message.id for message in after[1:]] == [messages[4].id, messages[5].id]
    assert (event.messages_removed, event.messages_rewritten) == (4, 0)
    _check_event(event, messages, after)
    kept = await acme.compactions.archived(event_id=event.id)
    assert [message.message for message in kept] == messages[:4], "the archive has the outputs"
    for kind in ({"keep_tool_outputs": True}, {"prune_tokens": 10_000}):
        session, messages = await session_with(acme, LONG, call("a"), result("a"), LONG, "second to last", "last")
        plan = await acme.compactions.plan(session.id, replace(policy, **kind))
        assert plan.to_summarize == messages[:4], kind


@contract()
async def protected_messages_are_never_changed(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    new = [
        NewMessage(role="system", content=LONG),
        NewMessage(role="user", content=LONG, is_preserved=True),
        NewMessage(role="user", content=LONG),
        NewMessage(kind="adk.event", role="system", content={"system": LONG}),
        NewMessage(kind="adk.event", content={"plain": LONG}),
        NewMessage(role="assistant", content="a summary from before " + LONG, is_summary=True),
        NewMessage(role="user", content=LONG, token_count=10),
        NewMessage(role="assistant", content=LONG, token_count=10),
        NewMessage(role="user", content="last", token_count=5),
    ]
    created = await acme.messages.append_many(session.id, new)
    policy = replace(POLICY, preserve_last=1, protected_tokens=15)
    plan = await acme.compactions.plan(session.id, policy)
    why = {protected.seq: protected.why for protected in plan.protected}
    assert why == {1: "system", 2: "preserved", 4: "system", 8: "recent", 9: "last"}
    await acme.compactions.compact(session.id, policy, summary="s")
    after = await shown_messages(acme, session)
    assert [message for message in after if not message.is_summary] == [created[n] for n in (0, 1, 3, 7, 8)]
    assert [message.seq for message in after] == [1, 2, 4, 7, 8, 9]
    nothing = replace(policy, preserve_last=0, protected_tokens=0)
    assert {protected.why for protected in (await acme.compactions.plan(session.id, nothing)).protected} == {
        "system",
        "preserved",
    }


@contract()
async def a_tool_call_is_never_separated_from_its_result(world: World) -> None:
    acme = world.tenant()
    contents: list[Any] = [
        LONG,
        call("a", "b"),
        result("a"),
        LONG,
        result("b"),
        call("c"),
        LONG,
        call("open"),
        LONG,
        result("c"),
        "last",
    ]
    session, messages = await session_with(acme, *contents)
    plan = await acme.compactions.plan(session.id, replace(POLICY, preserve_last=2))
    why = {protected.seq: protected.why for protected in plan.protected}
    assert why == {6: "pair", 8: "unanswered", 10: "last", 11: "last"}
    assert plan.removed == [messages[n].id for n in (0, 1, 2, 3, 4, 6, 8)]
    plan = await acme.compactions.plan(session.id, replace(POLICY, preserve_last=7))
    assert {protected.seq: protected.why for protected in plan.protected if protected.seq < 5} == {2: "pair", 3: "pair"}
    assert plan.removed == [messages[0].id, messages[3].id]
    await acme.compactions.compact(session.id, plan=plan, summary="s")
    assert [message.seq for message in await shown_messages(acme, session)] == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


@contract()
async def ids_of_tool_calls_may_repeat(world: World) -> None:
    acme = world.tenant()
    turns = [content for _ in range(4) for content in (call("a"), result("a"))]
    session, _ = await session_with(acme, *turns, call("a"), "go on", *turns[:2])
    plan = await acme.compactions.plan(session.id, replace(POLICY, preserve_last=1))
    assert {protected.seq: protected.why for protected in plan.protected} == {9: "unanswered", 11: "pair", 12: "last"}
    await acme.messages.append_many(session.id, [NewMessage(role="user", content=content) for content in turns[:2]])
    await acme.compactions.compact(session.id, plan=plan, summary="s")
    assert [message.seq for message in await shown_messages(acme, session)] == [9, 10, 11, 12, 13, 14], (
        "a result of a later turn is not a late result"
    )
    plan = await acme.compactions.plan(session.id, replace(POLICY, preserve_last=0))
    await acme.messages.append_many(session.id, [NewMessage(role="user", content=result("a")) for _ in range(2)])
    with raises(Conflict, saying=session.id, reason="plan_outdated"):
        await acme.compactions.compact(session.id, plan=plan, summary="s")


@contract()
async def a_compaction_that_would_not_shrink_the_session_is_refused(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, "a", "b", "c", "d", token_count=3)
    before = await acme.sessions.get(session.id)
    world.clock.advance(1)
    with raises(NothingToCompact, reason="summary_too_large"):
        await acme.compactions.compact(session.id, POLICY, summary="a summary that is longer than the removed messages")
    with raises(NothingToCompact, saying="4 ", reason="protected"):
        await acme.compactions.compact(session.id, summary="s")
    for summary in ("", " \n\t"):
        with raises(InvalidInput, field="summary"):
            await acme.compactions.compact(session.id, POLICY, summary=summary)
    with raises(InvalidInput, field="summary"):
        await acme.compactions.compact(session.id, POLICY, summary=7)  # type: ignore[arg-type]
    with raises(LimitExceeded, limit="summary_tokens", maximum=5):
        await acme.compactions.compact(session.id, replace(POLICY, summary_tokens=5), summary="five tokens it is")
    with raises(NothingToCompact):
        await acme.compactions.compact((await acme.sessions.create()).id, POLICY, summary="of nothing")
    assert await shown_messages(acme, session) == messages
    assert await acme.sessions.get(session.id) == before
    assert await acme.compactions.history(session.id) == []
    summaries, _ = await session_with(acme, LONG, LONG, "x", "y", is_summary=True)
    with raises(NothingToCompact):
        await acme.compactions.compact(summaries.id, POLICY, summary="a summary of summaries alone")


@contract()
async def invalid_arguments_change_nothing(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, "x", "y")
    other, _ = await session_with(acme, LONG, LONG, "x", "y")
    plan, bad = await acme.compactions.plan(session.id, POLICY), acme.compactions
    wrong: list[dict[str, Any]] = [
        {"policy": POLICY},
        {"policy": replace(POLICY, strategy="unheard of"), "summary": "s"},
        {"policy": {"trigger": 0.5}, "summary": "s"},
        {"plan": plan, "policy": POLICY, "summary": "s"},
        {"plan": "a plan", "summary": "s"},
        {"policy": POLICY, "summary": "s", "summarize": len},
        {"policy": POLICY, "summarize": "s"},
        {"policy": POLICY, "summary": "s", "strategy": "hybrid"},
        {"policy": POLICY, "summary": "s", "model": ""},
        {"policy": POLICY, "summary": "s", "id": "not an id"},
    ]
    for arguments in wrong:
        with raises(InvalidInput):
            await bad.compact(session.id, **arguments)
    with raises(InvalidInput, field="plan"):
        await bad.compact(other.id, plan=plan, summary="s")
    with raises(NotFound):
        await bad.compact(uuid_of("unknown"), POLICY, summary="s")
    with raises(NotFound):
        await bad.rollback(uuid_of("unknown"))
    assert await shown_messages(acme, session) == messages


@contract()
async def messages_appended_after_the_plan_stay_after_the_summary(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, LONG, "x", "y")
    plan = await acme.compactions.plan(session.id, POLICY)
    later = [await acme.messages.append(session.id, role="user", content=LONG) for _ in range(3)]
    changed = await acme.messages.update(messages[4].id, content="protected, so not covered", token_count=9)
    before = await shown_messages(acme, session)
    event = await acme.compactions.compact(session.id, plan=plan, summary="of three")
    after = await shown_messages(acme, session)
    assert after[1:] == [messages[3], changed, *later]
    assert (after[0].seq, after[0].is_summary, event.messages_removed) == (3, True, 3)
    _check_event(event, before, after)


@contract()
async def a_plan_is_executed_exactly_as_made_or_not_at_all(world: World) -> None:
    acme = world.tenant()

    async def update(session: Session, created: list[Message]) -> None:
        await acme.messages.update(created[1].id, content=[{"type": "text", "text": LONG}, {"type": "n", "n": 1.0}])

    async def flag(session: Session, created: list[Message]) -> None:
        await acme.messages.update(created[0].id, is_preserved=True)

    async def delete(session: Session, created: list[Message]) -> None:
        await acme.messages.delete(session.id, [created[1].id])

    async def answer(session: Session, created: list[Message]) -> None:
        await acme.messages.append(session.id, role="user", content=result("a", output="once more"))

    async def compact(session: Session, created: list[Message]) -> None:
        await acme.compactions.compact(session.id, POLICY, summary="first")

    async def compact_and_roll_back(session: Session, created: list[Message]) -> None:
        await acme.compactions.rollback((await acme.compactions.compact(session.id, POLICY, summary="first")).id)

    async def fork_and_switch(session: Session, created: list[Message]) -> None:
        branch = await acme.branches.fork(session.id)
        await acme.branches.switch(session.id, branch.number)

    for meanwhile in (update, flag, delete, answer, compact, compact_and_roll_back, fork_and_switch):
        session, messages = await session_with(
            acme, LONG, [{"type": "text", "text": LONG}, {"type": "n", "n": 1}], call("a"), result("a"), "x", "y"
        )
        plan = await acme.compactions.plan(session.id, POLICY)
        await meanwhile(session, messages)
        messages_before, history = await shown_messages(acme, session), await acme.compactions.history(session.id)
        with raises(Conflict, reason="plan_outdated"):
            await acme.compactions.compact(session.id, plan=plan, summary="s")
        assert await shown_messages(acme, session) == messages_before, meanwhile.__name__
        assert await acme.compactions.history(session.id) == history


@contract()
async def a_compaction_can_be_repeated_under_its_id(world: World) -> None:
    acme = world.tenant()
    session, _ = await session_with(acme, *[LONG] * 6)
    first = await acme.compactions.compact(session.id, POLICY, summary="s", id=uuid_of("event"))
    assert first.id == uuid_of("event")
    assert await acme.compactions.compact(session.id, POLICY, summary="s", id=uuid_of("event")) == first
    assert await acme.compactions.history(session.id) == [first]
    other, messages = await session_with(acme, *[LONG] * 6)
    with raises(Conflict, saying=uuid_of("event"), reason="id_taken"):
        await acme.compactions.compact(other.id, POLICY, summary="s", id=uuid_of("event"))
    assert await shown_messages(acme, other) == messages


class Greedy:
    """Returns the given changes."""

    name = "greedy"

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.seen: list[CompactionHistory] = []

    def choose(self, history: CompactionHistory, policy: CompactionPolicy) -> CompactionChanges:
        self.seen.append(history)
        return CompactionChanges(**self.changes)


@contract()
async def a_custom_strategy_cannot_change_protected_messages(world: World) -> None:
    acme = world.tenant()
    contents: list[Any] = [LONG, call("a"), result("a"), LONG, LONG, "x", "y"]
    session, messages = await session_with(acme, *contents)
    kept = await acme.messages.append(session.id, role="user", content=result("z"), is_preserved=True)
    bad: list[dict[str, Any]] = [
        {"remove": [messages[6].id]},
        {"remove": [messages[1].id]},
        {"remove": [messages[2].id]},
        {"remove": [uuid_of("unknown")]},
        {"rewrite": {kept.id: result("z", output="")}},
        {"rewrite": {messages[2].id: []}},
        {"rewrite": {messages[2].id: result("other")}},
        {"rewrite": {uuid_of("unknown"): []}},
        {"rewrite": [messages[0].id]},
        {"remove": messages[0].id},
        {"remove": iter([messages[0].id])},
    ]
    for changes in bad:
        with raises(InvalidInput) as refused:
            await acme.compactions.compact(session.id, POLICY, strategy=Greedy(**changes), summary="s")
        assert getattr(refused.error, "field", "") in ("strategy", "remove", "rewrite"), changes
    with raises(NothingToCompact):
        await acme.compactions.compact(session.id, POLICY, strategy=Greedy(), summary="s")
    with raises(NothingToCompact):
        longer = {messages[0].id: [{"type": "text", "text": LONG + LONG}]}
        await acme.compactions.compact(session.id, POLICY, strategy=Greedy(rewrite=longer), summary="s")
    assert (await shown_messages(acme, session))[:-1] == messages
    shorter = [{"type": "text", "text": "shorter"}]
    good = Greedy(remove=[messages[4].id], rewrite={messages[0].id: shorter}, summarize=False)
    event = await acme.compactions.compact(session.id, POLICY, strategy=good)
    assert (event.strategy, event.summary_message_id) == ("greedy", None)
    assert (event.messages_removed, event.messages_rewritten) == (1, 1)
    after = await shown_messages(acme, session)
    assert [message.id for message in after] == [*(messages[n].id for n in (0, 1, 2, 3, 5, 6)), kept.id]
    assert after[0].content == shorter
    assert [message.id for message in good.seen[0].messages] == [*(message.id for message in messages), kept.id]
    with raises(InvalidInput, field="strategy"):
        await acme.compactions.plan(session.id, POLICY, strategy=_Silent())  # type: ignore[arg-type]


@contract()
async def contents_from_a_strategy_are_checked_like_an_append(world: World) -> None:
    acme = world.tenant()
    session, messages = await session_with(acme, LONG, LONG, LONG, LONG, "x", "y", token_count=200)
    foreign = await acme.messages.append(session.id, kind="other.item", content={"a": LONG}, token_count=0)
    await acme.messages.append_many(session.id, [NewMessage(role="user", content="z")] * 2)
    before = await shown_messages(acme, session)
    bad = [None, 7, {"type": "text", "text": "one block"}, ["no block"], [{"no": "type"}], {1, 2}, b"bytes"]
    for content in bad:
        with raises(InvalidInput, saying=messages[0].id, field="rewrite"):
            await acme.compactions.plan(session.id, POLICY, strategy=Greedy(rewrite={messages[0].id: content}))
    with raises(InvalidText, saying=foreign.id, field="rewrite"):
        await acme.compactions.plan(session.id, POLICY, strategy=Greedy(rewrite={foreign.id: {1, 2}}))
    with raises(LimitExceeded, saying=messages[0].id, field="rewrite", limit="content_bytes"):
        large = Greedy(rewrite={messages[0].id: "x" * world.limits.content_bytes})
        await acme.compactions.plan(session.id, POLICY, strategy=large)
    blocks = [{"type": "text", "text": "shorter"}]
    rewrite = {messages[0].id: "short", messages[1].id: blocks, messages[2].id: tuple(blocks), foreign.id: "as it is"}
    plan = await acme.compactions.plan(session.id, POLICY, strategy=Greedy(rewrite=rewrite, remove=[messages[3].id]))
    contents = [[{"type": "text", "text": "short"}], blocks, blocks, "as it is"]
    assert [(rewritten.content, rewritten.tokens) for rewritten in plan.rewritten] == [
        (content, estimate(content)) for content in contents
    ]
    with raises(InvalidInput, field="content"):
        forged = replace(plan, rewritten=[replace(plan.rewritten[0], content=None), *plan.rewritten[1:]])
        await acme.compactions.compact(session.id, plan=forged, summary="s")
    assert await shown_messages(acme, session) == before
    event = await acme.compactions.compact(session.id, plan=plan, summary="s")
    after = await shown_messages(acme, session)
    assert [message.content for message in after if message.id in rewrite] == contents
    assert [message.token_count for message in after if message.id in rewrite] == [*map(estimate, contents[:3]), 0]
    _check_event(event, before, after)
    assert (await acme.messages.context(session.id, max_tokens=1_000)).messages
    strategy = Greedy(rewrite={messages[0].id: "a"}, remove=[messages[0].id])
    assert (await acme.compactions.plan(session.id, POLICY, strategy=strategy)).to_summarize[0].content == [
        {"type": "text", "text": "a"}
    ]


class _Silent:
    name = "silent"

    def choose(self, history: CompactionHistory, policy: CompactionPolicy) -> None:
        return None
