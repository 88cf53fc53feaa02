"""Runs: steps that are whole or absent, the same after a crash, and an end that nobody can undo."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from ...clock import from_us
from ...errors import Conflict, Fenced, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from ...handles import AsyncTenantHandle
from ...limits import Limits
from ...stores.conversation.messages import NewMessage
from ...stores.execution.ledger import NewToolCall, ToolOutcome
from ...stores.execution.run_states import Run
from ...stores.execution.step_log import CommittedStep, Usage
from .messages import recounted
from .suite import contract
from .values import TEXTS, documents, same
from .world import World, flat, raises, raises_kind_of, uuid_of

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
    assert made.checkpointed_at is made.finished_at is made.parent_run_id is None
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
    await recounted(acme, run.session_id)
    plain = await acme.runs.step(run.id, epoch=run.epoch, iteration=2, state=None)
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
    assert (mine.message_count, mine.token_count, mine.updated_at) == (5, 7, theirs.updated_at)
    assert (theirs.message_count, theirs.token_count) == (5, 7)
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
    await recounted(acme, run.session_id)


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


@contract()
async def a_pause_is_kept_until_its_time_and_ends_then(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    until = from_us(world.clock.now_us()) + timedelta(seconds=100)
    paused = await acme.runs.pause(run.id, epoch=run.epoch, until=until)
    assert (paused.status, paused.pause_until, paused.holder, paused.lease_until) == ("paused", until, "", None)
    assert await acme.runs.pause(run.id, epoch=run.epoch, until=until) == paused, "the same again"
    with raises(Conflict, saying="paused"):
        await acme.runs.pause(run.id, epoch=run.epoch, until=until + timedelta(seconds=1))
    with raises(Conflict, saying="claim it"):
        await stepped(acme, run)
    assert await acme.leases.claim("early") is None
    world.clock.advance(99.999999)
    assert await acme.leases.claim("early") is None
    world.clock.advance(-50)
    assert await acme.leases.claim("the clock went back", run_id=run.id) is None
    world.clock.advance(50.000001)
    back = await acme.leases.claim("in time")
    assert back is not None
    assert (back.id, back.epoch, back.pause_until, back.status) == (run.id, run.epoch + 1, None, "running")
    waiting = await acme.runs.pause(run.id, epoch=back.epoch)
    assert (waiting.status, waiting.pause_until) == ("waiting", None)
    world.clock.advance(10**6)
    assert await acme.leases.claim("never") is None
    assert await acme.leases.claim("never", run_id=run.id) is None
    assert (await acme.runs.resume(run.id)).status == "pending"
    assert (await acme.runs.resume(run.id)).status == "pending"
    assert await acme.leases.claim("resumed") is not None
    assert (await acme.runs.resume(run.id)).holder == "resumed"


@contract()
async def a_step_can_end_or_pause_its_run_in_the_same_commit(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    until = from_us(world.clock.now_us()) + timedelta(seconds=10)
    how: dict[str, Any] = {"epoch": run.epoch, "iteration": 1, "state": 1, "messages": TALK, "pause_until": until}
    done = await acme.runs.step(run.id, **how)
    paused = await acme.runs.get(run.id)
    assert (paused.status, paused.pause_until, paused.iteration) == ("paused", until, 1)
    assert await acme.runs.step(run.id, **how) == done
    with raises(Conflict):
        await acme.runs.step(run.id, **{**how, "pause_until": None})
    world.clock.advance(10)
    back = await acme.leases.claim("w")
    assert back is not None
    await acme.tool_calls.intend(run.id, epoch=back.epoch, calls=[NewToolCall(id="open", tool_name="t")])
    last: dict[str, Any] = {"epoch": back.epoch, "iteration": 2, "state": 2, "stop_reason": "end_turn"}
    with raises(Conflict, saying="open tool calls"):
        await acme.runs.step(run.id, **last)
    assert (await acme.runs.get(run.id)).iteration == 1, "the step went with it"
    last["tool_calls"] = [ToolOutcome(id="open", result=1)]
    done = await acme.runs.step(run.id, **last)
    ended = await acme.runs.get(run.id)
    assert (ended.status, ended.stop_reason, ended.iteration) == ("completed", "end_turn", 2)
    assert ended.finished_at == from_us(world.clock.now_us())
    assert await acme.runs.step(run.id, **last) == done
    assert await acme.leases.claim("w") is None


@contract()
async def an_end_is_an_end(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    finished, failed, cancelled = [await claimed(acme, session.id) for _ in range(3)]
    ended = await acme.runs.finish(finished.id, epoch=finished.epoch, stop_reason="end_turn")
    assert (ended.status, ended.stop_reason, ended.error, ended.holder) == ("completed", "end_turn", None, "")
    assert await acme.runs.finish(finished.id, epoch=finished.epoch, stop_reason="end_turn") == ended
    broken = await acme.runs.fail(failed.id, epoch=failed.epoch, error="no \x00 luck")
    assert (broken.status, broken.stop_reason, broken.error) == ("failed", "error", "no \x00 luck")
    assert await acme.runs.fail(failed.id, epoch=failed.epoch, error="no \x00 luck") == broken
    gone = await acme.runs.cancel(cancelled.id, reason="not wanted")
    assert (gone.status, gone.stop_reason, gone.error) == ("cancelled", "cancelled", "not wanted")
    assert gone.epoch == cancelled.epoch + 1
    assert await acme.runs.cancel(cancelled.id) == gone
    for run, kind in ((finished, Conflict), (failed, Conflict), (cancelled, Fenced)):
        for call in (
            stepped(acme, run),
            acme.runs.finish(run.id, epoch=run.epoch, stop_reason="again"),
            acme.runs.fail(run.id, epoch=run.epoch, error="again"),
            acme.runs.pause(run.id, epoch=run.epoch),
            acme.leases.renew(run.id, epoch=run.epoch),
            acme.leases.release(run.id, epoch=run.epoch),
            acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")]),
        ):
            with raises(kind):
                await call
        assert await acme.leases.claim("w", run_id=run.id) is None
    for run in (finished, failed):
        with raises(Conflict, saying="cancelled"):
            await acme.runs.cancel(run.id)
    for run in (finished, cancelled):
        with raises(Conflict, saying="resumed"):
            await acme.runs.resume(run.id)
    world.clock.advance(10**6)
    assert await acme.leases.claim("w") is None
    again = await acme.runs.resume(failed.id)
    assert (again.status, again.error, again.stop_reason, again.finished_at) == ("pending", None, None, None)
    assert await acme.leases.claim("w") is not None


@contract()
async def runs_below_a_run_are_known_bounded_and_cancelled_with_it(world: World) -> None:
    acme = world.tenant()
    top = await claimed(acme)
    await acme.tool_calls.intend(top.id, epoch=top.epoch, calls=[NewToolCall(id="agent", tool_name="call_agent")])
    session = await acme.sessions.create()
    below = partial(acme.runs.start, session.id, parent=top.id, parent_call="agent", parent_epoch=top.epoch)
    child = await below()
    assert (child.parent_run_id, child.parent_call_id, child.depth) == (top.id, "agent", 1)
    assert await below() == child, "a call starts one run, however often it is tried"
    assert await below(id=uuid_of("another")) == child
    with raises(Conflict):
        await below(agent="somebody else")
    with raises(Fenced):
        await below(parent_epoch=top.epoch - 1)
    with raises(NotFound, saying="intend"):
        await below(parent_call="never intended")
    with raises(NotFound):
        await below(parent=uuid_of("nobody"))
    with raises(InvalidInput):
        await acme.runs.start(session.id, parent_call="agent")
    deepest = child
    while deepest.depth < world.limits.run_depth:
        deepest = await acme.runs.start(session.id, parent=deepest.id)
    with raises(LimitExceeded, saying="run_depth"):
        await acme.runs.start(session.id, parent=deepest.id)
    sibling = await claimed(acme, session.id, parent=top.id)
    assert {run.id for run in await acme.runs.list(parent=top.id)} == {child.id, sibling.id}
    done = await claimed(acme, session.id, parent=top.id)
    await acme.runs.finish(done.id, epoch=done.epoch, stop_reason="end_turn")
    grandchild = await acme.runs.start(session.id, parent=child.id)
    await acme.runs.cancel(top.id)
    for run in (child, sibling, grandchild, deepest):
        assert (await acme.runs.get(run.id)).status == "cancelled"
    assert (await acme.runs.get(done.id)).status == "completed"
    with raises(Fenced):
        await stepped(acme, sibling)
    with raises(Conflict, saying="below"):
        await acme.runs.start(session.id, parent=top.id)
    assert (await acme.tool_calls.get(top.id, "agent")).status == "cancelled"


@contract()
async def runs_are_listed_newest_first_and_filtered(world: World) -> None:
    acme = world.tenant()
    sessions = [await acme.sessions.create(agent=name) for name in ("a", "b")]
    made = []
    for number in range(6):
        world.clock.advance(0 if number == 3 else 1)
        made.append(await acme.runs.start(sessions[number % 2].id, metadata={"n": number}))
    await world.tenant("zenith").runs.start((await world.tenant("zenith").sessions.create()).id)
    order = sorted(made, key=lambda run: (run.started_at, run.id), reverse=True)
    assert await acme.runs.list() == order
    assert await acme.runs.list(session=sessions[1].id) == [run for run in order if run.agent == "b"]
    assert await acme.runs.list(agent="a") == [run for run in order if run.agent == "a"]
    assert await acme.runs.list(metadata={"n": 4}) == [made[4]]
    held = await acme.leases.claim("w", run_id=made[2].id)
    assert await acme.runs.list(status="running") == [held]
    assert len(await acme.runs.list(status="pending")) == 5
    for how in ({}, {"session": sessions[0].id}, {"status": "pending"}):
        pages = [await acme.runs.list(limit=2, **how)]  # type: ignore[arg-type]
        while pages[-1].next is not None:
            pages.append(await acme.runs.list(limit=2, cursor=pages[-1].next, **how))  # type: ignore[arg-type]
        assert flat(pages) == await acme.runs.list(**how)  # type: ignore[arg-type]
    with raises(InvalidFilter):
        await acme.runs.list(cursor="garbage")
    with raises(InvalidFilter):
        await acme.runs.list(session="not an id")


@contract()
async def steps_are_listed_from_either_end_in_pages(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    made = [(await stepped(acme, run, state=number)).step for number in range(5)]
    for newest_first in (False, True):
        pages = [await acme.steps.list(run.id, limit=2, newest_first=newest_first)]
        while pages[-1].next is not None:
            pages.append(await acme.steps.list(run.id, limit=2, newest_first=newest_first, cursor=pages[-1].next))
        assert flat(pages) == (made[::-1] if newest_first else made)
    assert await acme.steps.get(run.id, 3) == made[2]
    for missing in (
        acme.steps.get(run.id, 6),
        acme.steps.get(uuid_of("nobody"), 1),
        acme.steps.list(uuid_of("nobody")),
    ):
        with raises(NotFound):
            await missing
    with raises(InvalidInput):
        await acme.steps.get(run.id, "1")  # type: ignore[arg-type]


@contract()
async def a_deleted_session_hides_its_runs_and_a_purged_one_takes_them_with_it(world: World) -> None:
    acme = world.tenant()
    run = await claimed(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    await stepped(acme, run)
    pending = await acme.runs.start(run.session_id)
    await acme.sessions.delete(run.session_id)
    assert await acme.runs.list() == []
    hidden = (
        acme.runs.get(run.id),
        acme.runs.load(run.id),
        acme.runs.step(run.id, epoch=run.epoch, iteration=2, state=2),
        acme.runs.cancel(run.id),
        acme.runs.start(run.session_id),
        acme.leases.renew(run.id, epoch=run.epoch),
        acme.leases.claim("w", run_id=pending.id),
        acme.tool_calls.pending(run.id),
        acme.tool_calls.list(run.id),
        acme.tool_calls.get(run.id, "a"),
        acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="b", tool_name="t")]),
        acme.steps.list(run.id),
    )
    for call in hidden:
        with raises(NotFound):
            await call
    assert await acme.leases.claim("w") is None
    await acme.sessions.restore(run.session_id)
    assert (await stepped(acme, run, messages=TALK)).step.iteration == 2
    world.clock.advance(61)
    back = await acme.leases.claim("w")
    assert back is not None
    assert back.id == pending.id
    await acme.sessions.purge(run.session_id)
    assert await acme.runs.list() == []
    world.clock.advance(10**6)
    assert await acme.leases.claim("w") is None


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
        await recounted(acme, run.session_id)
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
