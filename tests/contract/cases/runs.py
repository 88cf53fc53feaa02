"""Runs: steps that are whole or absent, the same after a crash, and an end that nobody can undo."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.clock import from_us
from holdfast.errors import Conflict, Fenced, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.messages import NewMessage
from holdfast.stores.execution.runs.ledger import NewToolCall, ToolOutcome
from holdfast.stores.execution.runs.states import Run
from holdfast.stores.execution.runs.step_log import CommittedStep, Usage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS, documents, same
from tests.contract.cases.world import World, raises, raises_kind_of, uuid_of

TALK = (NewMessage(role="user", content="hi", token_count=2), NewMessage(role="assistant", content="ho", token_count=3))


async def claimed(acme: AsyncTenantHandle, session_id: str | None = None, **how: Any) -> Run:
    """A run that somebody holds."""
    if session_id is None:
        session_id = (await acme.sessions.create(agent="helper")).id
    run = await acme.runs.start(session_id, **how)
    held = await acme.leases.claim("worker", run_id=run.id)
    assert held is not None
    return held


async def stepped(acme: AsyncTenantHandle, run: Run, *, state: Any = None, **how: Any) -> CommittedStep:
    """The next step of a run."""
    at = (await acme.runs.get(run.id)).iteration
    return await acme.runs.step(run.id, epoch=run.epoch, iteration=at + 1, state=state, **how)


@contract()
async def a_run_starts_ready_to_be_claimed_and_can_be_started_again(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(agent="helper")
    made = await acme.runs.start(session.id, id=uuid_of("run"), metadata={"n": 1}, max_attempts=3)
    assert (made.id, made.session_id, made.agent, made.status) == (uuid_of("run"), session.id, "helper", "pending")
    assert (made.iteration, made.epoch, made.attempts, made.max_attempts, made.depth) == (0, 0, 0, 3, 0)
    assert (made.holder, made.lease_until, made.pause_until, made.stop_reason, made.error) == (
        "",
        None,
        None,
        None,
        None,
    )
    assert (made.metadata, made.input_tokens, made.output_tokens) == ({"n": 1}, 0, 0)
    assert made.started_at == from_us(world.clock.now_us())
    assert (made.checkpointed_at, made.finished_at, made.parent_run_id) == (None, None, None)
    assert await acme.runs.get(made.id) == made
    world.clock.advance(1)
    assert await acme.runs.start(session.id, id=uuid_of("run").upper()) == made
    assert await acme.runs.start(session.id, id=uuid_of("run"), agent="helper") == made
    other = await acme.sessions.create()
    with raises(Conflict, saying="another run"):
        await acme.runs.start(other.id, id=uuid_of("run"))
    with raises(Conflict):
        await acme.runs.start(session.id, id=uuid_of("run"), agent="somebody else")
    assert (await acme.runs.start(other.id)).agent == ""
    for text in TEXTS:
        assert (await acme.runs.start(other.id, agent=text)).agent == text
    with raises(NotFound):
        await acme.runs.start(uuid_of("nobody"))
    with raises(NotFound):
        await world.tenant("zenith").runs.start(session.id)
    for wrong in (0, -1, True, "3"):
        with raises(InvalidInput):
            await acme.runs.start(session.id, max_attempts=wrong)  # type: ignore[arg-type]


@contract()
async def a_step_is_one_thing_made_of_all_its_parts(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    calls = [
        NewToolCall(id="a", tool_name="t"),
        NewToolCall(id="b", tool_name="t"),
        NewToolCall(id="later", tool_name="t"),
    ]
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=calls)
    world.clock.advance(1)
    done = await acme.runs.step(
        run.id,
        epoch=run.epoch,
        iteration=1,
        state=documents(),
        messages=TALK,
        tool_calls=[ToolOutcome(id="a", result=documents()), ToolOutcome(id="b", error="broke\x00")],
        usage=Usage(input_tokens=7, output_tokens=5),
        last_tool_result=TEXTS[-1],
        snapshot="snap-1",
    )
    step, now = done.step, from_us(world.clock.now_us())
    assert (step.run_id, step.iteration, step.epoch) == (run.id, 1, run.epoch)
    assert same(step.state, documents())
    assert (step.first_seq, step.last_seq) == (1, 2)
    assert (step.input_tokens, step.output_tokens, step.snapshot) == (7, 5, "snap-1")
    assert (step.last_tool_result, step.created_at) == (TEXTS[-1], now)
    assert [*await acme.messages.list(run.session_id)] == done.messages
    assert [message.content[0]["text"] for message in done.messages] == ["hi", "ho"]
    after = await acme.runs.get(run.id)
    assert (after.iteration, after.input_tokens, after.output_tokens, after.checkpointed_at) == (1, 7, 5, now)
    assert (after.status, after.epoch, after.attempts) == ("running", run.epoch, 0)
    a, b, later = await acme.tool_calls.list(run.id)
    assert same(a.result, documents())
    assert (a.status, a.error, a.step, a.finished_at) == ("finished", None, 1, now)
    assert (b.status, b.result, b.error, b.step) == ("failed", None, "broke\x00", 1)
    assert (later.status, later.step, later.finished_at) == ("begun", None, None)
    assert await acme.steps.get(run.id, 1) == step
    loaded = await acme.runs.load(run.id)
    assert (loaded.run, loaded.step, loaded.tool_calls) == (after, step, [later])
    await check_counters(acme, run.session_id)
    more = Usage(input_tokens=2, output_tokens=1)
    plain = await acme.runs.step(run.id, epoch=run.epoch, iteration=2, state=None, usage=more)
    used = await acme.runs.get(run.id)
    assert (used.input_tokens, used.output_tokens) == (9, 6)
    assert (plain.messages, plain.step.first_seq, plain.step.last_seq, plain.step.state) == ([], None, None, None)
    assert [each.iteration for each in await acme.steps.list(run.id)] == [1, 2]


@contract()
async def messages_of_a_step_are_what_appends_would_have_made(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    twin = await acme.sessions.create(agent="helper")
    odd = [
        NewMessage(kind="x.y", content=documents(), metadata={"m": 1}, is_preserved=True),
        NewMessage(role="system", content="s", is_summary=True),
    ]
    for number, messages in enumerate(([*TALK], odd, [TALK[0]])):
        world.clock.advance(61)
        done = await acme.runs.step(run.id, epoch=run.epoch, iteration=number + 1, state=number, messages=messages)
        made = await acme.messages.append_many(twin.id, messages)
        for one, other in zip(done.messages, made, strict=True):
            assert same(replace(one, id=""), replace(other, id="", session_id=one.session_id))
    mine, theirs = await acme.sessions.get(run.session_id), await acme.sessions.get(twin.id)
    assert (mine.message_count, mine.token_count, mine.updated_at) == (5, theirs.token_count, theirs.updated_at)
    assert theirs.message_count == 5
    assert {each.id for each in (await acme.sessions.list(limit=2))} == {mine.id, theirs.id}
    hits = await acme.messages.search("hi")
    assert {hit.message.session_id for hit in hits} == {mine.id, theirs.id}


@contract()
async def the_same_step_again_returns_the_first_result(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    how: dict[str, Any] = {
        "epoch": run.epoch,
        "iteration": 1,
        "state": {"n": 1},
        "messages": [*TALK, NewMessage(role="user", content="mine", id=uuid_of("m"))],
        "tool_calls": [ToolOutcome(id="a", result=1)],
        "usage": Usage(input_tokens=1),
    }
    done = await acme.runs.step(run.id, **how)
    after = await acme.runs.get(run.id)
    world.clock.advance(1)
    assert await acme.runs.step(run.id, **how) == done
    assert await acme.runs.get(run.id) == after
    for change in ({"state": {"n": 2}}, {"messages": TALK}, {"usage": None}, {"snapshot": "s"}, {"tool_calls": ()}):
        with raises(Conflict, saying="another content"):
            await acme.runs.step(run.id, **{**how, **change})
    await stepped(acme, run)
    assert await acme.runs.step(run.id, **how) == done, "even when it is not the last one any more"
    taken = await acme.leases.claim("thief", run_id=run.id)
    assert taken is None
    await acme.leases.release(run.id, epoch=run.epoch)
    assert await acme.leases.claim("next", run_id=run.id) is not None
    assert await acme.runs.step(run.id, **how) == done, "it was done, whoever has the run now"
    with raises(Fenced):
        await acme.runs.step(run.id, **{**how, "state": {"n": 2}})
    assert await acme.messages.count(run.session_id) == 3
    await check_counters(acme, run.session_id)


@contract()
async def a_step_that_is_late_early_or_nobodys_changes_nothing(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    await stepped(acme, run, messages=TALK)
    await acme.messages.append(run.session_id, role="user", content="there", id=uuid_of("m"))
    before = await acme.runs.load(run.id), [*await acme.messages.list(run.session_id)]
    step = partial(acme.runs.step, run.id, epoch=run.epoch, iteration=2, state=2, messages=TALK)
    for iteration in (1, 3, 7):
        with raises(Conflict):
            await step(iteration=iteration)
    with raises(Fenced):
        await step(epoch=run.epoch - 1)
    with raises(Conflict, saying="no claim has given"):
        await step(epoch=run.epoch + 1)
    with raises(Conflict, saying="message"):
        await step(messages=[NewMessage(role="user", content="there", id=uuid_of("m"))])
    with raises(Conflict, saying="not open"):
        await step(tool_calls=[ToolOutcome(id="never intended")])
    with raises(NotFound):
        await acme.runs.step(uuid_of("nobody"), epoch=1, iteration=1, state=None)
    with raises(NotFound):
        await world.tenant("zenith").runs.step(run.id, epoch=run.epoch, iteration=2, state=2)
    wrong: list[dict[str, Any]] = [
        {"iteration": 0},
        {"iteration": "2"},
        {"epoch": "1"},
        {"epoch": True},
        {"state": {1, 2}},
        {"messages": [{"role": "user"}]},
        {"messages": [NewMessage(role="nobody", content="x")]},
        {"messages": [NewMessage(role="user", content="x", id=uuid_of("x"))] * 2},
        {"tool_calls": ["a"]},
        {"tool_calls": [ToolOutcome(id="a"), ToolOutcome(id="a")]},
        {"tool_calls": [ToolOutcome(id="a", status="begun")]},  # type: ignore[arg-type]
        {"usage": {"input_tokens": 1}},
        {"usage": Usage(input_tokens=-1)},
        {"last_tool_result": 7},
        {"snapshot": ""},
        {"stop_reason": ""},
        {"pause_until": "tomorrow"},
        {"stop_reason": "x", "pause_until": from_us(world.clock.now_us())},
    ]
    for each in wrong:
        with raises_kind_of(InvalidInput):
            await step(**each)
    assert (await acme.runs.load(run.id), [*await acme.messages.list(run.session_id)]) == before


@contract(limits=Limits(state_bytes=50, tool_result_bytes=20, batch_rows=2, text_bytes=20, json_depth=3, list_rows=2))
async def what_is_too_large_is_refused(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    step = partial(acme.runs.step, run.id, epoch=run.epoch, iteration=1, state=1)
    over: list[dict[str, Any]] = [
        {"state": "é" * 25},
        {"state": [[[[1]]]]},
        {"tool_calls": [ToolOutcome(id="a", result="x" * 19)]},
        {"tool_calls": [ToolOutcome(id="a", error="x" * 21)]},
        {"last_tool_result": "x" * 21},
        {"messages": [*TALK, TALK[0]]},
    ]
    for each in over:
        with raises(LimitExceeded):
            await step(**each)
    with raises(LimitExceeded):
        await acme.runs.fail(run.id, epoch=run.epoch, error="x" * 21)
    assert (await acme.runs.get(run.id)).iteration == 0
    for _ in range(3):
        await stepped(acme, run)
    with raises(LimitExceeded, saying="page them"):
        await acme.steps.list(run.id)


@contract("reopening")
async def a_run_goes_on_after_a_restart_as_if_nothing_had_happened(world: World) -> None:
    acme = world.tenant()
    run, twin = await claimed(acme), await claimed(acme)
    for each in (run, twin):
        await acme.tool_calls.intend(each.id, epoch=each.epoch, calls=[NewToolCall(id="a", tool_name="t")])
        outcome = [ToolOutcome(id="a", result="done")]
        await stepped(acme, each, state=documents(), messages=TALK, tool_calls=outcome, last_tool_result="done")
        await acme.tool_calls.intend(each.id, epoch=each.epoch, calls=[NewToolCall(id="b", tool_name="t")])
    before = await acme.runs.load(run.id)
    await world.reopen()
    acme = world.tenant()
    loaded = await acme.runs.load(run.id)
    assert loaded.run == before.run
    assert same(loaded.step and loaded.step.state, documents())
    assert (loaded.tool_calls, loaded.step and loaded.step.last_tool_result) == (before.tool_calls, "done")
    other = await acme.runs.load(twin.id)
    assert [call.id for call in loaded.tool_calls] == [call.id for call in other.tool_calls] == ["b"]
    until = from_us(world.clock.now_us()) + timedelta(hours=1)
    await acme.runs.pause(run.id, epoch=run.epoch, until=until)
    await world.reopen()
    assert (await world.tenant().runs.get(run.id)).pause_until == until
    assert await world.tenant().leases.claim("w") is None


@contract("concurrency")
async def of_several_steps_at_once_one_is_the_next(world: World) -> None:
    acme = world.tenant()
    runs = [await claimed(acme) for _ in range(4)]
    shared = await acme.sessions.create()
    runs += [await claimed(acme, shared.id) for _ in range(4)]
    step = partial(acme.runs.step, iteration=1, messages=TALK)
    calls = [partial(step, run.id, epoch=run.epoch, state=attempt) for attempt in range(3) for run in runs]
    done = await world.together(*calls)
    assert Counter(type(each) for each in done) == {CommittedStep: 8, Conflict: 16}, done
    for run in runs:
        assert (await acme.runs.get(run.id)).iteration == len(await acme.steps.list(run.id)) == 1
        await check_counters(acme, run.session_id)
    log = await acme.messages.list(shared.id)
    assert [message.seq for message in log] == [*range(1, 9)]
    steps = sorted([await acme.steps.get(run.id, 1) for run in runs[4:]], key=lambda each: each.first_seq or 0)
    assert [(each.first_seq, each.last_seq) for each in steps] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    same_step = partial(acme.runs.step, runs[0].id, epoch=runs[0].epoch, iteration=2, state="same", messages=TALK)
    twice = await world.together(*[same_step] * 6)
    assert all(each == twice[0] for each in twice), twice
    assert isinstance(twice[0], CommittedStep)


@contract("concurrency")
async def a_cancellation_comes_before_a_step_or_after_it(world: World) -> None:
    acme = world.tenant()
    runs = [await claimed(acme) for _ in range(6)]
    steps = [partial(acme.runs.step, run.id, epoch=run.epoch, iteration=1, state=1, messages=TALK) for run in runs]
    cancels = [partial(acme.runs.cancel, run.id) for run in runs]
    starts = [partial(acme.runs.start, run.session_id, parent=run.id) for run in runs]
    await world.together(*(call for three in zip(steps, cancels, starts, strict=True) for call in three))
    for run in runs:
        ended = await acme.runs.get(run.id)
        assert ended.status == "cancelled"
        assert await acme.messages.count(run.session_id) == 2 * ended.iteration
        assert all(child.status == "cancelled" for child in await acme.runs.list(parent=run.id))


@contract("joining")
async def a_run_started_and_driven_in_the_callers_transaction_lives_and_dies_with_it(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await world.caller.commit()
    await world.caller.begin()
    await world.caller.execute("INSERT INTO callers_notes VALUES ('undone')")
    undone = await claimed(acme, session.id, id=uuid_of("run"))
    await acme.tool_calls.intend(undone.id, epoch=undone.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    await stepped(acme, undone, messages=TALK, tool_calls=[ToolOutcome(id="a", result=1)])
    await world.caller.rollback()
    outside = await world.outside()
    assert await outside.runs.list() == []
    assert await outside.leases.claim("w") is None
    await world.caller.begin()
    run = await claimed(acme, session.id, id=uuid_of("run"))
    done = await stepped(acme, run, messages=TALK)
    with raises(Conflict):
        await acme.runs.step(run.id, epoch=run.epoch, iteration=7, state=7)
    with raises(Fenced):
        await acme.runs.step(run.id, epoch=0, iteration=2, state=2)
    second = await stepped(acme, run, state=2)
    await world.caller.commit()
    outside = await world.outside()
    assert [*await outside.steps.list(run.id)] == [done.step, second.step]
    assert [*await outside.messages.list(session.id)] == done.messages
    assert (await outside.runs.step(run.id, epoch=run.epoch, iteration=3, state=3)).step.iteration == 3
