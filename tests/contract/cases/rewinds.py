"""Rewinds: a run and its conversation are taken back together, and a redo restores them exactly."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.clock import from_us
from holdfast.errors import Conflict
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.execution.runs.ledger import NewToolCall, ToolOutcome
from holdfast.stores.execution.runs.states import Run
from holdfast.stores.execution.runs.step_log import Usage
from holdfast.stores.workspace.rewind_rows import Rewind
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.runs import claim_run, commit_step
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS, documents
from tests.contract.cases.world import World, raises, uuid_of


async def worked(acme: AsyncTenantHandle, world: World, steps: int = 3) -> Run:
    """A run of some steps, each with a tool call and two messages, in a session that began with a question."""
    session = await acme.sessions.create(agent="helper")
    await acme.messages.append(session.id, role="user", content="do it", token_count=1)
    run = await claim_run(acme, session.id)
    for number in range(1, steps + 1):
        await one_step(acme, world, run, f"{number}")
    return run


async def one_step(acme: AsyncTenantHandle, world: World, run: Run, what: str) -> None:
    """Commit the next step, with a call that it finishes."""
    world.clock.advance(1)
    call = f"call {what}"
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id=call, tool_name="write")])
    talk = [NewMessage(role="assistant", content=f"step {what}"), NewMessage(role="user", content=f"done {what}")]
    await commit_step(
        acme,
        run,
        state={"at": what, "all": documents()},
        messages=[replace(message, token_count=2) for message in talk],
        tool_calls=[ToolOutcome(id=call, result={"wrote": what})],
        usage=Usage(input_tokens=10, output_tokens=1),
        last_tool_result=what,
        snapshot=f"snapshot {what}",
    )


async def all_of(acme: AsyncTenantHandle, run: Run) -> list[Any]:
    """Return everything that a rewind changes, except the epoch, which only rises."""
    now = await acme.runs.get(run.id)
    session = await acme.sessions.get(run.session_id)
    return [
        replace(now, epoch=0),
        [*await acme.steps.list(run.id)],
        await acme.tool_calls.list(run.id),
        [*await acme.messages.list(run.session_id)],
        (session.message_count, session.token_count),
    ]


async def said(acme: AsyncTenantHandle, run: Run) -> list[str]:
    """The texts of the messages that a run's session shows."""
    return [message.content[0]["text"] for message in await acme.messages.list(run.session_id)]


async def gone_back(acme: AsyncTenantHandle, run: Run, to_step: int, **how: Any) -> Rewind:
    """Begin and finish a rewind."""
    rewind = await acme.rewinds.begin(run.id, to_step=to_step, **how)
    return await acme.rewinds.finish(rewind.id)


async def come_back(acme: AsyncTenantHandle, run: Run, **how: Any) -> Rewind:
    """Begin and finish a redo."""
    rewind = await acme.rewinds.redo(run.id, **how)
    return await acme.rewinds.finish(rewind.id)


@contract()
async def a_rewind_and_its_redo_restore_run_and_conversation(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world)
    first = await acme.steps.get(run.id, 1)
    await acme.runs.finish(run.id, epoch=run.epoch, stop_reason="end_turn")
    before = await all_of(acme, run)
    world.clock.advance(60)
    rewind = await acme.rewinds.begin(
        run.id, to_step=1, path=TEXTS[3] + "/tree", snapshot="snapshot 1", dirty="as it was", id=uuid_of("rewind")
    )
    assert (rewind.id, rewind.run_id, rewind.from_step, rewind.to_step) == (uuid_of("rewind"), run.id, 3, 1)
    assert (rewind.status, rewind.path, rewind.snapshot, rewind.dirty) == (
        "rewinding",
        TEXTS[3] + "/tree",
        "snapshot 1",
        "as it was",
    )
    assert rewind.pending_reason == f"{TEXTS[3]}/tree is being restored to snapshot snapshot 1"
    assert (rewind.created_at, rewind.finished_at) == (from_us(world.clock.now_us()), None)
    now = await acme.runs.get(run.id)
    assert (now.status, now.iteration, now.epoch, now.stop_reason, now.finished_at) == (
        "waiting",
        1,
        run.epoch + 1,
        None,
        None,
    )
    assert (now.input_tokens, now.output_tokens, now.checkpointed_at) == (10, 1, first.created_at)
    assert [step.iteration for step in await acme.steps.list(run.id)] == [1]
    assert [call.id for call in await acme.tool_calls.list(run.id)] == ["call 1"]
    assert await said(acme, run) == ["do it", "step 1", "done 1"]
    assert (await acme.runs.load(run.id)).step == first
    assert [*await acme.rewinds.pending()] == [*await acme.rewinds.pending(run.id)] == [rewind]
    assert await acme.rewinds.begin(run.id, to_step=1, id=uuid_of("rewind")) == rewind, (
        "repeated, because its answer was lost"
    )
    result = await acme.rewinds.finish(rewind.id)
    over = {"pending_reason": None, "finished_at": from_us(world.clock.now_us())}
    assert result == replace(rewind, status="rewound", **over)
    assert await acme.rewinds.finish(rewind.id) == result == await acme.rewinds.get(rewind.id)
    assert [*await acme.rewinds.pending()] == []
    world.clock.advance(60)
    redone = await acme.rewinds.redo(run.id)
    assert (redone.id, redone.status) == (rewind.id, "redoing")
    assert (await acme.runs.get(run.id)).status == "waiting", "no worker drives it before its directory is restored"
    assert await acme.rewinds.redo(run.id, id=rewind.id) == redone
    assert (await acme.rewinds.finish(rewind.id)).status == "redone"
    assert await all_of(acme, run) == before


@contract()
async def rewinds_nest_and_each_redo_undoes_the_last(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 4)
    await acme.leases.release(run.id, epoch=run.epoch)
    at_4 = await all_of(acme, run)
    first = await gone_back(acme, run, 3)
    at_3 = await all_of(acme, run)
    await gone_back(acme, run, 0)
    assert (await acme.runs.get(run.id)).checkpointed_at is None
    assert await said(acme, run) == ["do it"]
    await come_back(acme, run)
    assert await all_of(acme, run) == at_3
    assert (await come_back(acme, run)).id == first.id
    assert await all_of(acme, run) == at_4
    with raises(Conflict, reason="nothing_to_redo"):
        await acme.rewinds.redo(run.id)
    assert [(rewind.to_step, rewind.status) for rewind in await acme.rewinds.list(run.id)] == [
        (0, "redone"),
        (3, "redone"),
    ]
