"""Deleting a run: everything that belongs to it goes, what it shares stays, and a run that is still needed is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.stores.execution.runs.ledger import NewToolCall
from holdfast.stores.execution.runs.states import Run
from tests.contract.cases.rewinds import gone_back, said, worked
from tests.contract.cases.runs import claim_run, commit_step
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

TREE = Path(holdfast.__file__).parent / "engines" / "sqlite"
"""A directory that no process changes."""


@contract()
async def a_deleted_run_leaves_its_messages_and_nothing_else(world: World) -> None:
    acme = world.tenant()
    run, other = await worked(acme, world), await worked(acme, world)
    captured = await acme.workspaces.capture(run.id, TREE, step=1)
    kept = await acme.workspaces.capture(other.id, TREE, step=1)
    await acme.retention.keep_snapshots_for(run.id, seconds=60)
    await gone_back(acme, run, 1, epoch=run.epoch)
    await acme.runs.finish(run.id, epoch=run.epoch, stop_reason="end_turn")
    before = await said(acme, run)
    with acme.acting(user="ada"):
        await acme.runs.delete(run.id)
    assert await said(acme, run) == before != []
    assert [item.id for item in await acme.runs.list()] == [other.id]
    for call in (acme.runs.get, acme.runs.load, acme.runs.resume, acme.runs.delete):
        with raises(NotFound, noun="run", key=run.id):
            await call(run.id)
    assert await acme.rewinds.list(run.id) == [] == await acme.snapshots.list(run_id=run.id)
    with raises(NotFound):
        await acme.snapshots.get(captured.snapshot.id)
    assert len(await acme.steps.list(other.id)) == len(await acme.tool_calls.list(other.id)) == 3
    await acme.objects.prune(grace_s=0)
    await acme.objects.prune(grace_s=0)
    tree = await acme.snapshots.tree(kept.snapshot.id)
    assert len(tree.entries) == kept.snapshot.entry_count, "the content is shared, and stays"
    entries = await acme.activity.list(action="run.deleted")
    assert [(entry.subject_kind, entry.subject_id, entry.actor) for entry in entries] == [("run", run.id, "ada")]
    assert [entry.subject_id for entry in await acme.activity.list(subject_kind="snapshot")] == [captured.snapshot.id]
    again = await acme.runs.start(run.session_id, id=run.id)
    assert (again.iteration, again.epoch, await acme.steps.list(run.id)) == (0, 0, [])
    await acme.sessions.delete(other.session_id)
    with raises(NotFound, noun="run", key=other.id):
        await acme.runs.delete(other.id)


@contract()
async def only_a_run_that_has_ended_is_deleted(world: World) -> None:
    acme = world.tenant()
    run = await acme.runs.start((await acme.sessions.create()).id)

    async def refused(status: str) -> None:
        with raises(Conflict, saying=status, reason="status"):
            await acme.runs.delete(run.id)
        assert (await acme.runs.get(run.id)).status == status

    await refused("pending")
    claimed = await acme.leases.claim("w", run_id=run.id)
    assert claimed is not None
    await refused("running")
    await acme.runs.pause(run.id, epoch=claimed.epoch)
    await refused("waiting")
    await acme.runs.cancel(run.id)
    with raises(NotFound, noun="run", key=run.id):
        await world.tenant("zenith").runs.delete(run.id)
    await acme.runs.delete(run.id.upper())
    assert await acme.leases.claim("w") is None
    for missing in (run.id, uuid_of("missing")):
        with raises(NotFound, noun="run", key=missing):
            await acme.runs.delete(missing)


@contract()
async def a_child_run_stays_and_is_deleted_only_after_its_parent_has_ended(world: World) -> None:
    acme = world.tenant()
    top = await claim_run(acme)
    await acme.tool_calls.intend(top.id, epoch=top.epoch, calls=[NewToolCall(id="agent", tool_name="call_agent")])
    session = await acme.sessions.create()
    calls = [
        await claim_run(acme, session.id, parent=top.id, parent_call="agent"),
        await claim_run(acme, session.id, parent=top.id),
    ]
    for child in calls:
        await acme.runs.finish(child.id, epoch=child.epoch, stop_reason="end_turn")
        with raises(Conflict, saying=top.id, reason="parent_active"):
            await acme.runs.delete(child.id)
    await acme.runs.cancel(top.id)
    await acme.runs.delete(calls[1].id)
    await acme.runs.delete(top.id)
    child = await acme.runs.get(calls[0].id)
    assert (child.parent_run_id, child.parent_call_id, child.status, child.depth) == (None, None, "completed", 1)
    await acme.runs.start(top.session_id, id=top.id)
    assert await acme.runs.list(parent=top.id) == []
    await acme.runs.delete(child.id)


@contract()
async def a_held_run_and_one_whose_rewind_is_not_finished_are_kept(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world)
    rewind = await acme.rewinds.begin(run.id, to_step=1, epoch=run.epoch, path="/tree", snapshot="snapshot 1")
    await acme.runs.cancel(run.id)
    with raises(Conflict, saying=rewind.id, reason="not_finished"):
        await acme.runs.delete(run.id)
    await acme.rewinds.finish(rewind.id)
    others: list[dict[str, Any]] = [
        {"run_id": (await claim_run(acme)).id},
        {"session_id": (await acme.sessions.create()).id},
    ]
    scopes: list[dict[str, Any]] = [{"run_id": run.id}, {"session_id": run.session_id}, {}]
    for scope in scopes:
        hold = await acme.retention.hold("court", **scope)
        with raises(Conflict, saying=run.id, reason="held"):
            await acme.runs.delete(run.id)
        assert len(await acme.steps.list(run.id)) == 1
        await acme.retention.release(hold.id, reason="done")
    for scope in others:
        await acme.retention.hold("another court", **scope)
    await acme.runs.delete(run.id)
    assert await acme.activity.count(action="run.deleted") == 1, "a refused call logs nothing"


@contract("concurrency")
async def a_run_is_deleted_or_resumed(world: World) -> None:
    acme = world.tenant()
    for _ in range(4):
        run = await claim_run(acme)
        await commit_step(acme, run)
        await acme.runs.fail(run.id, epoch=run.epoch, error="no luck")
        calls: list[Any] = [partial(acme.runs.delete, run.id), partial(acme.runs.resume, run.id)]
        results: list[Any] = await world.together(*calls * 2)
        deleted = [result for result in results[::2] if result is None]
        resumed = [result for result in results[1::2] if isinstance(result, Run)]
        refused = {type(result) for result in results if isinstance(result, HoldfastError)}
        assert (len(deleted), len(resumed), refused) in ((1, 0, {NotFound}), (0, 2, {Conflict})), results
        assert [item.id for item in await acme.runs.list(agent="helper", status="pending")] == [
            item.id for item in resumed[:1]
        ]
        if resumed:
            await acme.runs.cancel(run.id)
