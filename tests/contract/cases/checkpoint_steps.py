"""Checkpoints and task writes saved one after the other and concurrently."""

from __future__ import annotations

from typing import Any

from holdfast.errors import Conflict, Fenced, InvalidInput, Stale
from holdfast.stores.execution.checkpoints.task_writes import Write
from holdfast.stores.execution.checkpoints.writer import StoredPieces
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.checkpoints import get_checkpoint, grow_thread, ids
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


async def start_thread(acme: AsyncTenantHandle, thread: str = "t") -> StoredPieces:
    """Create a thread with one checkpoint of three pieces."""
    saved: StoredPieces = await acme.checkpoints.put(thread, id="1", state=b"s1", pieces=[b"one", b"two", b"three"])
    return saved


@contract()
async def new_pieces_are_added_at_the_end_of_the_log(world: World) -> None:
    checkpoints = world.tenant().checkpoints
    assert (await start_thread(world.tenant())).positions == [1, 2, 3]
    assert (await checkpoints.put("t", id="2", state=b"", pieces=[b"two", b"one"])).positions == [2, 1]
    assert (await checkpoints.put("t", id="3", state=b"", pieces=[b"four", b"two", b"five"])).positions == [4, 2, 5]
    new = [Write(0, "a", b"", [b"six", b"five"]), Write(1, "b", b"", [b"six"])]
    assert (await checkpoints.put_writes("t", id="3", task_id="x", new=new)).positions == [6, 5, 6]
    assert (await checkpoints.put("t", id="4", state=b"", pieces=[b"seven"])).positions == [7]


@contract()
async def a_refused_step_changes_nothing(world: World) -> None:
    acme = world.tenant()
    before = await start_thread(acme)
    await acme.checkpoints.put("t", id="2", parent="1", state=b"")
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (Conflict, {"pieces": [b"lost"], "only_after_head": True}),
        (Stale, {"pieces": [b"lost", 1], "stamp": uuid_of("another")}),
        (InvalidInput, {"pieces": [b"lost", 4], "stamp": before.stamp}),
    ]
    for error, kwargs in wrong:
        with raises(error):
            await acme.checkpoints.put("t", id="3", parent="1", state=b"", **kwargs)
    with raises(Stale):
        new = [Write(0, "a", b"", [b"lost", 1])]
        await acme.checkpoints.put_writes("t", id="1", task_id="x", new=new, stamp=uuid_of("another"))
    assert await ids(acme, "t") == ["2", "1"]
    assert (await get_checkpoint(acme, "t", "1")).tasks == []
    assert (await acme.checkpoints.put("t", id="4", state=b"", pieces=[b"next"])).positions == [4]


@contract()
async def positions_from_before_a_removal_are_refused(world: World) -> None:
    acme = world.tenant()
    await grow_thread(acme, "t", 2)
    last = await acme.checkpoints.put("t", id="3", state=b"", pieces=[b"only here"])
    assert await acme.checkpoints.prune(["t"]) == 2
    with raises(Stale):
        await acme.checkpoints.put("t", id="4", state=b"", pieces=[3], stamp=last.stamp)
    with raises(Stale):
        new = [Write(0, "a", b"", [3])]
        await acme.checkpoints.put_writes("t", id="3", task_id="x", new=new, stamp=last.stamp)
    # A step without positions is accepted with any stamp.
    assert (await acme.checkpoints.put("t", id="4", state=b"", pieces=[b"only here"], stamp=last.stamp)).positions == [
        3
    ]
    await acme.checkpoints.delete("t")
    assert (await acme.checkpoints.put("t", id="1", state=b"", pieces=[b"x"], stamp=last.stamp)).positions == [1]
    assert list((await get_checkpoint(acme, "t")).pieces) == [b"x"]


@contract()
async def a_fenced_writer_saves_no_step(world: World) -> None:
    acme = world.tenant()
    run = await acme.runs.start((await acme.sessions.create()).id, agent="helper")
    claimed = await acme.leases.claim("one", run_id=run.id)
    assert claimed is not None
    await acme.leases.release(run.id, epoch=claimed.epoch)
    assert await acme.leases.claim("other", run_id=run.id) is not None
    await start_thread(acme)
    last = await acme.checkpoints.put("t", id="2", parent="1", state=b"")
    conditions: dict[str, Any] = {"stamp": last.stamp, "lease": (run.id, claimed.epoch)}
    with raises(Fenced):
        await acme.checkpoints.put("t", id="3", parent="2", state=b"", **conditions)
    with raises(Fenced):
        await acme.checkpoints.put_writes("t", id="2", task_id="x", new=[Write(0, "a")], **conditions)
    with raises(Conflict):
        await acme.checkpoints.put("t", id="3", parent="1", state=b"", only_after_head=True, stamp=last.stamp)
    assert await ids(acme, "t") == ["2", "1"]
    assert (await get_checkpoint(acme, "t")).tasks == []


@contract("concurrency")
async def concurrent_steps_share_their_pieces(world: World) -> None:
    acme = world.tenant()
    last = await start_thread(acme)
    puts: list[Any] = [
        lambda n=n: acme.checkpoints.put(
            "t", id=f"2{n}", state=b"", pieces=[(1, 3), b"shared", b"%d" % n], stamp=last.stamp
        )
        for n in range(8)
    ]
    tasks: list[Any] = [
        lambda n=n: acme.checkpoints.put_writes(
            "t", id="1", task_id=f"{n}", new=[Write(0, "a", b"", [b"shared", b"task %d" % n])], stamp=last.stamp
        )
        for n in range(8)
    ]
    outcomes = await world.together(*(call for both in zip(puts, tasks, strict=True) for call in both))
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    saved = [outcome for outcome in outcomes if isinstance(outcome, StoredPieces)]
    positions = {position for pieces in saved for position in pieces.positions} - {1}
    assert positions == set(range(4, 21)), "sixteen of their own, and one that all share"
    for checkpoint in await acme.checkpoints.list("t"):
        if checkpoint.id == "1":
            assert [list(task.writes[0].pieces) for task in checkpoint.tasks] == [
                [b"shared", b"task %d" % n] for n in range(8)
            ]
        else:
            assert list(checkpoint.pieces) == [b"one", b"two", b"three", b"shared", checkpoint.id[1:].encode()]
    assert (await acme.checkpoints.verify()).damaged == []


@contract()
async def invalid_task_writes_are_refused(world: World) -> None:
    checkpoints: Any = world.tenant().checkpoints
    wrong: list[dict[str, Any]] = [
        {"id": "", "task_id": "x", "new": []},
        {"id": "1", "task_id": "", "new": []},
        {"id": "1", "task_id": "x", "new": ["text"]},
        {"id": "1", "task_id": "x", "new": "text"},
    ]
    for arguments in wrong:
        with raises(InvalidInput):
            await checkpoints.put_writes("t", **arguments)
    assert await checkpoints.list() == []
