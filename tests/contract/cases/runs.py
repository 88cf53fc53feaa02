"""Runs: steps that are complete or absent, also after a crash, and repeatable calls."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.clock import from_us
from holdfast.errors import Conflict, Fenced, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.execution.runs.ledger import NewToolCall, ToolOutcome
from holdfast.stores.execution.runs.states import Run
from holdfast.stores.execution.runs.step_log import CommittedStep, Usage
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.messages import check_counters
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS, documents, same
from tests.contract.cases.world import World, raises, raises_kind_of, uuid_of

TALK = (NewMessage(role="user", content="hi", token_count=2), NewMessage(role="assistant", content="ho", token_count=3))


async def claim_run(acme: AsyncTenantHandle, session_id: str | None = None, **how: Any) -> Run:
    """Start a run and claim it."""
    if session_id is None:
        session_id = (await acme.sessions.create(agent="helper")).id
    run = await acme.runs.start(session_id, **how)
    claimed = await acme.leases.claim("worker", run_id=run.id)
    assert claimed is not None
    return claimed


async def commit_step(acme: AsyncTenantHandle, run: Run, *, state: Any = None, **how: Any) -> CommittedStep:
    """Commit the next step of a run."""
    iteration = (await acme.runs.get(run.id)).iteration + 1
    return await acme.runs.step(run.id, epoch=run.epoch, iteration=iteration, state=state, **how)


@contract()
async def a_started_run_can_be_claimed_and_starting_it_can_be_repeated(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(agent="helper")
    run = await acme.runs.start(session.id, id=uuid_of("run"), metadata={"n": 1}, max_attempts=3)
    assert (run.id, run.session_id, run.agent, run.status) == (uuid_of("run"), session.id, "helper", "pending")
    assert (run.iteration, run.epoch, run.attempts, run.max_attempts, run.depth) == (0, 0, 0, 3, 0)
    assert (run.holder, run.lease_until, run.pause_until, run.stop_reason, run.error) == (
        "",
        None,
        None,
        None,
        None,
    )
    assert (run.metadata, run.input_tokens, run.output_tokens) == ({"n": 1}, 0, 0)
    assert run.started_at == from_us(world.clock.now_us())
    assert (run.checkpointed_at, run.finished_at, run.parent_run_id) == (None, None, None)
    assert await acme.runs.get(run.id) == run
    world.clock.advance(1)
    assert await acme.runs.start(session.id, id=uuid_of("run").upper()) == run
    assert await acme.runs.start(session.id, id=uuid_of("run"), agent="helper") == run
    other = await acme.sessions.create()
    with raises(Conflict, saying=uuid_of("run"), reason="id_taken"):
        await acme.runs.start(other.id, id=uuid_of("run"))
    with raises(Conflict):
        await acme.runs.start(session.id, id=uuid_of("run"), agent="another agent")
    assert (await acme.runs.start(other.id)).agent == ""
    for text in TEXTS:
        assert (await acme.runs.start(other.id, agent=text)).agent == text
    with raises(NotFound, noun="session", key=uuid_of("missing")):
        await acme.runs.start(uuid_of("missing"))
    with raises(NotFound):
        await world.tenant("zenith").runs.start(session.id)
    for wrong in (0, -1, True, "3"):
        with raises(InvalidInput):
            await acme.runs.start(session.id, max_attempts=wrong)  # type: ignore[arg-type]


@contract()
async def a_step_commits_all_its_parts_together(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    calls = [
        NewToolCall(id="a", tool_name="t"),
        NewToolCall(id="b", tool_name="t"),
        NewToolCall(id="later", tool_name="t"),
    ]
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=calls)
    world.clock.advance(1)
    committed = await acme.runs.step(
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
    step, now = committed.step, from_us(world.clock.now_us())
    assert (step.run_id, step.iteration, step.epoch) == (run.id, 1, run.epoch)
    assert same(step.state, documents())
    assert (step.first_seq, step.last_seq) == (1, 2)
    assert (step.input_tokens, step.output_tokens, step.snapshot) == (7, 5, "snap-1")
    assert (step.last_tool_result, step.created_at) == (TEXTS[-1], now)
    assert [*await acme.messages.list(run.session_id)] == committed.messages
    assert [message.content[0]["text"] for message in committed.messages] == ["hi", "ho"]
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
    second = await acme.runs.step(run.id, epoch=run.epoch, iteration=2, state=None, usage=more)
    totals = await acme.runs.get(run.id)
    assert (totals.input_tokens, totals.output_tokens) == (9, 6)
    assert (second.messages, second.step.first_seq, second.step.last_seq, second.step.state) == ([], None, None, None)
    assert [step.iteration for step in await acme.steps.list(run.id)] == [1, 2]


@contract()
async def messages_of_a_step_equal_appended_messages(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    twin = await acme.sessions.create(agent="helper")
    odd = [
        NewMessage(kind="x.y", content=documents(), metadata={"m": 1}, is_preserved=True),
        NewMessage(role="system", content="s", is_summary=True),
    ]
    for number, messages in enumerate(([*TALK], odd, [TALK[0]])):
        world.clock.advance(61)
        committed = await acme.runs.step(run.id, epoch=run.epoch, iteration=number + 1, state=number, messages=messages)
        appended = await acme.messages.append_many(twin.id, messages)
        for message, expected in zip(committed.messages, appended, strict=True):
            assert same(replace(message, id=""), replace(expected, id="", session_id=message.session_id))
    mine, theirs = await acme.sessions.get(run.session_id), await acme.sessions.get(twin.id)
    assert (mine.message_count, mine.token_count, mine.updated_at) == (5, theirs.token_count, theirs.updated_at)
    assert theirs.message_count == 5
    assert {session.id for session in (await acme.sessions.list(limit=2))} == {mine.id, theirs.id}
    hits = await acme.messages.search("hi")
    assert {hit.message.session_id for hit in hits} == {mine.id, theirs.id}


@contract()
async def a_repeated_step_returns_the_first_result(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    arguments: dict[str, Any] = {
        "epoch": run.epoch,
        "iteration": 1,
        "state": {"n": 1},
        "messages": [*TALK, NewMessage(role="user", content="mine", id=uuid_of("m"))],
        "tool_calls": [ToolOutcome(id="a", result=1)],
        "usage": Usage(input_tokens=1),
    }
    committed = await acme.runs.step(run.id, **arguments)
    after = await acme.runs.get(run.id)
    world.clock.advance(1)
    assert await acme.runs.step(run.id, **arguments) == committed
    assert await acme.runs.get(run.id) == after
    for change in ({"state": {"n": 2}}, {"messages": TALK}, {"usage": None}, {"snapshot": "s"}, {"tool_calls": ()}):
        with raises(Conflict, saying=run.id, reason="other_content"):
            await acme.runs.step(run.id, **{**arguments, **change})
    await commit_step(acme, run)
    assert await acme.runs.step(run.id, **arguments) == committed, "even after later steps"
    stolen = await acme.leases.claim("thief", run_id=run.id)
    assert stolen is None
    await acme.leases.release(run.id, epoch=run.epoch)
    assert await acme.leases.claim("next", run_id=run.id) is not None
    assert await acme.runs.step(run.id, **arguments) == committed, "even if another holder has the run now"
    with raises(Fenced):
        await acme.runs.step(run.id, **{**arguments, "state": {"n": 2}})
    assert await acme.messages.count(run.session_id) == 3
    await check_counters(acme, run.session_id)


@contract()
async def a_refused_step_changes_nothing(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    await commit_step(acme, run, messages=TALK)
    await acme.messages.append(run.session_id, role="user", content="there", id=uuid_of("m"))
    before = await acme.runs.load(run.id), [*await acme.messages.list(run.session_id)]
    step = partial(acme.runs.step, run.id, epoch=run.epoch, iteration=2, state=2, messages=TALK)
    for iteration in (1, 3, 7):
        with raises(Conflict):
            await step(iteration=iteration)
    with raises(Fenced):
        await step(epoch=run.epoch - 1)
    with raises(Conflict, saying=str(run.epoch + 1), reason="unknown_epoch"):
        await step(epoch=run.epoch + 1)
    with raises(Conflict, reason="message_id_taken"):
        await step(messages=[NewMessage(role="user", content="there", id=uuid_of("m"))])
    with raises(Conflict, reason="call_not_open"):
        await step(tool_calls=[ToolOutcome(id="never intended")])
    with raises(NotFound, noun="run", key=uuid_of("missing")):
        await acme.runs.step(uuid_of("missing"), epoch=1, iteration=1, state=None)
    with raises(NotFound, noun="run", key=run.id):
        await world.tenant("zenith").runs.step(run.id, epoch=run.epoch, iteration=2, state=2)
    wrong: list[dict[str, Any]] = [
        {"iteration": 0},
        {"iteration": "2"},
        {"epoch": "1"},
        {"epoch": True},
        {"state": {1, 2}},
        {"messages": [{"role": "user"}]},
        {"messages": [NewMessage(role="unknown", content="x")]},
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
    for arguments in wrong:
        with raises_kind_of(InvalidInput):
            await step(**arguments)
    assert (await acme.runs.load(run.id), [*await acme.messages.list(run.session_id)]) == before


@contract(limits=Limits(state_bytes=50, tool_result_bytes=20, batch_rows=2, text_bytes=20, json_depth=3, list_rows=2))
async def steps_over_a_limit_are_refused(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
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
    for arguments in over:
        with raises(LimitExceeded):
            await step(**arguments)
    with raises(LimitExceeded):
        await acme.runs.fail(run.id, epoch=run.epoch, error="x" * 21)
    assert (await acme.runs.get(run.id)).iteration == 0
    for _ in range(3):
        await commit_step(acme, run)
    with raises(LimitExceeded, limit="list_rows"):
        await acme.steps.list(run.id)


@contract("reopening")
async def a_run_continues_after_a_restart(world: World) -> None:
    acme = world.tenant()
    run, twin = await claim_run(acme), await claim_run(acme)
    for driven in (run, twin):
        await acme.tool_calls.intend(driven.id, epoch=driven.epoch, calls=[NewToolCall(id="a", tool_name="t")])
        outcome = [ToolOutcome(id="a", result="done")]
        await commit_step(acme, driven, state=documents(), messages=TALK, tool_calls=outcome, last_tool_result="done")
        await acme.tool_calls.intend(driven.id, epoch=driven.epoch, calls=[NewToolCall(id="b", tool_name="t")])
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
async def of_concurrent_steps_exactly_one_is_the_next(world: World) -> None:
    acme = world.tenant()
    runs = [await claim_run(acme) for _ in range(4)]
    shared = await acme.sessions.create()
    runs += [await claim_run(acme, shared.id) for _ in range(4)]
    step = partial(acme.runs.step, iteration=1, messages=TALK)
    calls = [partial(step, run.id, epoch=run.epoch, state=attempt) for attempt in range(3) for run in runs]
    results = await world.together(*calls)
    assert Counter(type(result) for result in results) == {CommittedStep: 8, Conflict: 16}, results
    for run in runs:
        assert (await acme.runs.get(run.id)).iteration == len(await acme.steps.list(run.id)) == 1
        await check_counters(acme, run.session_id)
    log = await acme.messages.list(shared.id)
    assert [message.seq for message in log] == [*range(1, 9)]
    steps = sorted([await acme.steps.get(run.id, 1) for run in runs[4:]], key=lambda item: item.first_seq or 0)
    assert [(item.first_seq, item.last_seq) for item in steps] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    same_step = partial(acme.runs.step, runs[0].id, epoch=runs[0].epoch, iteration=2, state="same", messages=TALK)
    twice = await world.together(*[same_step] * 6)
    assert all(result == twice[0] for result in twice), twice
    assert isinstance(twice[0], CommittedStep)


@contract("concurrency")
async def a_cancellation_happens_before_or_after_a_concurrent_step(world: World) -> None:
    acme = world.tenant()
    runs = [await claim_run(acme) for _ in range(6)]
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
async def a_run_in_a_joined_transaction_is_rolled_back_or_committed_with_it(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    await world.caller.commit()
    await world.caller.begin()
    await world.caller.execute("INSERT INTO callers_notes VALUES ('undone')")
    undone = await claim_run(acme, session.id, id=uuid_of("run"))
    await acme.tool_calls.intend(undone.id, epoch=undone.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    await commit_step(acme, undone, messages=TALK, tool_calls=[ToolOutcome(id="a", result=1)])
    await world.caller.rollback()
    outside = await world.outside()
    assert await outside.runs.list() == []
    assert await outside.leases.claim("w") is None
    await world.caller.begin()
    run = await claim_run(acme, session.id, id=uuid_of("run"))
    first = await commit_step(acme, run, messages=TALK)
    with raises(Conflict):
        await acme.runs.step(run.id, epoch=run.epoch, iteration=7, state=7)
    with raises(Fenced):
        await acme.runs.step(run.id, epoch=0, iteration=2, state=2)
    second = await commit_step(acme, run, state=2)
    await world.caller.commit()
    outside = await world.outside()
    assert [*await outside.steps.list(run.id)] == [first.step, second.step]
    assert [*await outside.messages.list(session.id)] == first.messages
    assert (await outside.runs.step(run.id, epoch=run.epoch, iteration=3, state=3)).step.iteration == 3
