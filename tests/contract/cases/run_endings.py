"""Runs: pauses, ends, child runs, lists, and deleted sessions."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import Conflict, Fenced, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.execution.runs.ledger import NewToolCall, ToolOutcome
from tests.contract.cases.runs import TALK, claim_run, commit_step
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, flat, raises, uuid_of


@contract()
async def a_paused_run_can_be_claimed_from_its_time_on(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    until = from_us(world.clock.now_us()) + timedelta(seconds=100)
    paused = await acme.runs.pause(run.id, epoch=run.epoch, until=until)
    assert (paused.status, paused.pause_until, paused.holder, paused.lease_until) == ("paused", until, "", None)
    assert await acme.runs.pause(run.id, epoch=run.epoch, until=until) == paused, "a pause can be repeated"
    with raises(Conflict, saying="paused", reason="status"):
        await acme.runs.pause(run.id, epoch=run.epoch, until=until + timedelta(seconds=1))
    with raises(Conflict, saying=run.id, reason="status"):
        await commit_step(acme, run)
    assert await acme.leases.claim("early") is None
    world.clock.advance(99.999999)
    assert await acme.leases.claim("early") is None
    world.clock.advance(-50)
    assert await acme.leases.claim("the clock went back", run_id=run.id) is None
    world.clock.advance(50.000001)
    claimed = await acme.leases.claim("in time")
    assert claimed is not None
    assert (claimed.id, claimed.epoch, claimed.pause_until, claimed.status) == (run.id, run.epoch + 1, None, "running")
    waiting = await acme.runs.pause(run.id, epoch=claimed.epoch)
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
    run = await claim_run(acme)
    until = from_us(world.clock.now_us()) + timedelta(seconds=10)
    arguments: dict[str, Any] = {"epoch": run.epoch, "iteration": 1, "state": 1, "messages": TALK, "pause_until": until}
    committed = await acme.runs.step(run.id, **arguments)
    paused = await acme.runs.get(run.id)
    assert (paused.status, paused.pause_until, paused.iteration) == ("paused", until, 1)
    assert await acme.runs.step(run.id, **arguments) == committed
    with raises(Conflict):
        await acme.runs.step(run.id, **{**arguments, "pause_until": None})
    world.clock.advance(10)
    claimed = await acme.leases.claim("w")
    assert claimed is not None
    await acme.tool_calls.intend(run.id, epoch=claimed.epoch, calls=[NewToolCall(id="open", tool_name="t")])
    last: dict[str, Any] = {"epoch": claimed.epoch, "iteration": 2, "state": 2, "stop_reason": "end_turn"}
    with raises(Conflict, reason="open_calls"):
        await acme.runs.step(run.id, **last)
    assert (await acme.runs.get(run.id)).iteration == 1, "the step was rolled back, too"
    last["tool_calls"] = [ToolOutcome(id="open", result=1)]
    committed = await acme.runs.step(run.id, **last)
    ended = await acme.runs.get(run.id)
    assert (ended.status, ended.stop_reason, ended.iteration) == ("completed", "end_turn", 2)
    assert ended.finished_at == from_us(world.clock.now_us())
    assert await acme.runs.step(run.id, **last) == committed
    assert await acme.leases.claim("w") is None


@contract()
async def an_ended_run_cannot_be_changed(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    finished, failed, cancelled = [await claim_run(acme, session.id) for _ in range(3)]
    ended = await acme.runs.finish(finished.id, epoch=finished.epoch, stop_reason="end_turn")
    assert (ended.status, ended.stop_reason, ended.error, ended.holder) == ("completed", "end_turn", None, "")
    assert await acme.runs.finish(finished.id, epoch=finished.epoch, stop_reason="end_turn") == ended
    broken = await acme.runs.fail(failed.id, epoch=failed.epoch, error="no \x00 luck")
    assert (broken.status, broken.stop_reason, broken.error) == ("failed", "error", "no \x00 luck")
    assert await acme.runs.fail(failed.id, epoch=failed.epoch, error="no \x00 luck") == broken
    cancelled_run = await acme.runs.cancel(cancelled.id, reason="not wanted")
    assert (cancelled_run.status, cancelled_run.stop_reason, cancelled_run.error) == (
        "cancelled",
        "cancelled",
        "not wanted",
    )
    assert cancelled_run.epoch == cancelled.epoch + 1
    assert await acme.runs.cancel(cancelled.id) == cancelled_run
    for run, kind in ((finished, Conflict), (failed, Conflict), (cancelled, Fenced)):
        for call in (
            partial(commit_step, acme, run),
            partial(acme.runs.finish, run.id, epoch=run.epoch, stop_reason="again"),
            partial(acme.runs.fail, run.id, epoch=run.epoch, error="again"),
            partial(acme.runs.pause, run.id, epoch=run.epoch),
            partial(acme.leases.renew, run.id, epoch=run.epoch),
            partial(acme.leases.release, run.id, epoch=run.epoch),
            partial(acme.tool_calls.intend, run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")]),
        ):
            with raises(kind):
                await call()
        assert await acme.leases.claim("w", run_id=run.id) is None
    for run in (finished, failed):
        with raises(Conflict, saying=run.id, reason="status"):
            await acme.runs.cancel(run.id)
    for run in (finished, cancelled):
        with raises(Conflict, saying=run.id, reason="status"):
            await acme.runs.resume(run.id)
    world.clock.advance(10**6)
    assert await acme.leases.claim("w") is None
    resumed = await acme.runs.resume(failed.id)
    assert (resumed.status, resumed.error, resumed.stop_reason, resumed.finished_at) == ("pending", None, None, None)
    assert await acme.leases.claim("w") is not None


@contract()
async def child_runs_are_limited_in_depth_and_cancelled_with_their_parent(world: World) -> None:
    acme = world.tenant()
    top = await claim_run(acme)
    await acme.tool_calls.intend(top.id, epoch=top.epoch, calls=[NewToolCall(id="agent", tool_name="call_agent")])
    session = await acme.sessions.create()
    start_child = partial(acme.runs.start, session.id, parent=top.id, parent_call="agent", parent_epoch=top.epoch)
    child = await start_child()
    assert (child.parent_run_id, child.parent_call_id, child.depth) == (top.id, "agent", 1)
    assert await start_child() == child, "a call starts one run, however often it is tried"
    assert await start_child(id=uuid_of("another")) == child
    with raises(Conflict):
        await start_child(agent="another agent")
    with raises(Fenced):
        await start_child(parent_epoch=top.epoch - 1)
    with raises(NotFound, noun="call", key="never intended"):
        await start_child(parent_call="never intended")
    with raises(NotFound, noun="run", key=uuid_of("missing")):
        await start_child(parent=uuid_of("missing"))
    with raises(InvalidInput):
        await acme.runs.start(session.id, parent_call="agent")
    deepest = child
    while deepest.depth < world.limits.run_depth:
        deepest = await acme.runs.start(session.id, parent=deepest.id)
    with raises(LimitExceeded, limit="run_depth"):
        await acme.runs.start(session.id, parent=deepest.id)
    sibling = await claim_run(acme, session.id, parent=top.id)
    assert {run.id for run in await acme.runs.list(parent=top.id)} == {child.id, sibling.id}
    completed = await claim_run(acme, session.id, parent=top.id)
    await acme.runs.finish(completed.id, epoch=completed.epoch, stop_reason="end_turn")
    grandchild = await acme.runs.start(session.id, parent=child.id)
    await acme.runs.cancel(top.id)
    for run in (child, sibling, grandchild, deepest):
        assert (await acme.runs.get(run.id)).status == "cancelled"
    assert (await acme.runs.get(completed.id)).status == "completed"
    with raises(Fenced):
        await commit_step(acme, sibling)
    with raises(Conflict, saying=top.id, reason="status"):
        await acme.runs.start(session.id, parent=top.id)
    assert (await acme.tool_calls.get(top.id, "agent")).status == "cancelled"


@contract()
async def runs_are_listed_newest_first_and_filtered(world: World) -> None:
    acme = world.tenant()
    sessions = [await acme.sessions.create(agent=name) for name in ("a", "b")]
    runs = []
    for number in range(6):
        world.clock.advance(0 if number == 3 else 1)
        runs.append(await acme.runs.start(sessions[number % 2].id, metadata={"n": number}))
    await world.tenant("zenith").runs.start((await world.tenant("zenith").sessions.create()).id)
    order = sorted(runs, key=lambda run: (run.started_at, run.id), reverse=True)
    assert await acme.runs.list() == order
    assert await acme.runs.list(session=sessions[1].id) == [run for run in order if run.agent == "b"]
    assert await acme.runs.list(agent="a") == [run for run in order if run.agent == "a"]
    assert await acme.runs.list(metadata={"n": 4}) == [runs[4]]
    claimed = await acme.leases.claim("w", run_id=runs[2].id)
    assert await acme.runs.list(status="running") == [claimed]
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
    run = await claim_run(acme)
    steps = [(await commit_step(acme, run, state=number)).step for number in range(5)]
    for newest_first in (False, True):
        pages = [await acme.steps.list(run.id, limit=2, newest_first=newest_first)]
        while pages[-1].next is not None:
            pages.append(await acme.steps.list(run.id, limit=2, newest_first=newest_first, cursor=pages[-1].next))
        assert flat(pages) == (steps[::-1] if newest_first else steps)
    assert await acme.steps.get(run.id, 3) == steps[2]
    for missing in (
        partial(acme.steps.get, run.id, 6),
        partial(acme.steps.get, uuid_of("missing"), 1),
        partial(acme.steps.list, uuid_of("missing")),
    ):
        with raises(NotFound):
            await missing()
    with raises(InvalidInput):
        await acme.steps.get(run.id, "1")  # type: ignore[arg-type]


@contract()
async def a_deleted_session_hides_its_runs_and_a_purged_one_removes_them(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    await commit_step(acme, run)
    pending = await acme.runs.start(run.session_id)
    await acme.sessions.delete(run.session_id)
    assert await acme.runs.list() == []
    hidden = (
        partial(acme.runs.get, run.id),
        partial(acme.runs.load, run.id),
        partial(acme.runs.step, run.id, epoch=run.epoch, iteration=2, state=2),
        partial(acme.runs.cancel, run.id),
        partial(acme.runs.start, run.session_id),
        partial(acme.leases.renew, run.id, epoch=run.epoch),
        partial(acme.leases.claim, "w", run_id=pending.id),
        partial(acme.tool_calls.pending, run.id),
        partial(acme.tool_calls.list, run.id),
        partial(acme.tool_calls.get, run.id, "a"),
        partial(acme.tool_calls.intend, run.id, epoch=run.epoch, calls=[NewToolCall(id="b", tool_name="t")]),
        partial(acme.steps.list, run.id),
    )
    for call in hidden:
        with raises(NotFound):
            await call()
    assert await acme.leases.claim("w") is None
    await acme.sessions.restore(run.session_id)
    assert (await commit_step(acme, run, messages=TALK)).step.iteration == 2
    world.clock.advance(61)
    claimed = await acme.leases.claim("w")
    assert claimed is not None
    assert claimed.id == pending.id
    await acme.sessions.purge(run.session_id)
    assert await acme.runs.list() == []
    world.clock.advance(10**6)
    assert await acme.leases.claim("w") is None
