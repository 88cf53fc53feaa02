"""Checkpoints: pruning rules, leases, history and verification."""

from __future__ import annotations

from typing import Any

from holdfast.errors import Conflict, Fenced, InvalidInput, NotFound, Stale
from holdfast.stores.execution.checkpoints.task_writes import Write
from tests.contract.cases.checkpoints import LARGE, get_checkpoint, grow_thread, ids
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


@contract()
async def known_pieces_are_found_whatever_their_number(world: World) -> None:
    """One, two, three and more digests use different queries."""
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 5)
    for count in (1, 2, 3, 5):
        saved = await acme.checkpoints.put("t", id=f"known {count}", state=b"", pieces=pieces[-count:])
        assert saved.positions == list(range(6 - count, 6))
    next_position = 6
    for count in (1, 2, 3):
        new = [b"new %d of %d" % (number, count) for number in range(count)]
        saved = await acme.checkpoints.put("t", id=f"new {count}", state=b"", pieces=new)
        assert saved.positions == list(range(next_position, next_position + count))
        next_position += count
    twice = await acme.checkpoints.put("t", id="twice", state=b"", pieces=[b"again", b"again"])
    assert twice.positions == [next_position, next_position]
    both = await acme.checkpoints.put("t", id="both", state=b"", pieces=[b"one more", pieces[0]])
    assert both.positions == [next_position + 1, 1]
    other = await acme.checkpoints.put("u", id="1", state=b"", pieces=[pieces[1]])
    assert other.positions == [1], "pieces of another thread are not found"


@contract()
async def recent_checkpoints_are_kept_beside_the_newest(world: World) -> None:
    acme = world.tenant()
    for step in range(6):
        await acme.checkpoints.put("t", id=f"{step}", state=b"")
        world.clock.advance(10)
    assert await acme.checkpoints.prune(["t"], younger_than_s=1_000) == 0
    assert await acme.checkpoints.prune(["t"], younger_than_s=35) == 3
    assert await ids(acme, "t") == ["5", "4", "3"]
    world.clock.advance(1_000)
    assert await acme.checkpoints.prune(["t"], keep=2, younger_than_s=35) == 1
    assert await acme.checkpoints.prune(["t"], younger_than_s=0) == 1
    assert await ids(acme, "t") == ["5"], "the newest stays, whatever its age"


@contract()
async def the_last_runs_are_kept_beside_the_newest(world: World) -> None:
    acme = world.tenant()
    await grow_thread(acme, "t", 8)
    await acme.checkpoints.put("t", id="009", state=b"")
    assert await acme.checkpoints.prune(["t"], runs=2) == 4
    assert await ids(acme, "t") == ["009", "008", "007", "006", "005"]
    assert await acme.checkpoints.prune(["t"], keep=3, runs=0) == 2
    await grow_thread(acme, "v", 6, leans=("messages",))
    assert await acme.checkpoints.prune(["v"], runs=1) == 0, "the last run needs checkpoints of all other runs"
    wrong: list[dict[str, Any]] = [{"runs": -1}, {"younger_than_s": 1.5}, {"keep": None}, {"runs": True}]
    for kwargs in wrong:
        with raises(InvalidInput, field=next(iter(kwargs))):
            await acme.checkpoints.prune(["t"], **kwargs)


@contract()
async def only_the_holder_of_the_run_can_write(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    run = await acme.runs.start(session.id, agent="helper")
    with raises(Conflict, saying="None", reason="status"):
        await acme.checkpoints.put("t", id="n1", state=b"", lease=(run.id, 0))
    first = await acme.leases.claim("one", run_id=run.id)
    assert first is not None
    mine = (run.id, first.epoch)
    await acme.checkpoints.put("t", id="n1", state=b"", lease=mine)
    await acme.checkpoints.put_writes("t", id="n1", task_id="x", new=[Write(0, "c")], lease=mine)
    await acme.leases.release(run.id, epoch=first.epoch)
    second = await acme.leases.claim("other", run_id=run.id)
    assert second is not None
    await acme.checkpoints.put("t", id="n2", parent="n1", state=b"", lease=(run.id, second.epoch))
    with raises(Fenced, saying="n2"):
        await acme.checkpoints.put("t", id="n3", parent="n1", state=b"", lease=mine)
    with raises(Fenced, saying="n2"):
        await acme.checkpoints.put_writes("t", id="n1", task_id="y", new=[Write(0, "c")], lease=mine)
    with raises(NotFound):
        await acme.checkpoints.put("t", id="n3", state=b"", lease=(uuid_of("missing"), 1))
    assert await ids(acme, "t") == ["n2", "n1"]
    await acme.checkpoints.put("t", id="n3", state=b"")


@contract()
async def the_history_of_the_newest_needs_no_id(world: World) -> None:
    acme = world.tenant()
    assert await acme.checkpoints.history("t") == []
    await grow_thread(acme, "t", 4, leans=("messages",))
    await acme.checkpoints.put("t", id="9", namespace="child", state=b"")
    newest = await acme.checkpoints.history("t", channels=["messages"])
    assert [checkpoint.id for checkpoint in newest] == ["004", "003", "002", "001"]
    assert newest == await acme.checkpoints.history("t", id="004", channels=["messages"])
    assert [checkpoint.id for checkpoint in await acme.checkpoints.history("t", namespace="child")] == ["9"]


@contract()
async def verify_reads_the_threads_of_all_users(world: World) -> None:
    acme = world.tenant()
    await grow_thread(acme, "t", 3)
    await acme.checkpoints.put("u", id="1", state=b"", pieces=[LARGE, b"\x00"], user="ada\x00")
    await acme.checkpoints.put_writes("w", id="1", task_id="x", new=[Write(0, "c", b"v", [LARGE, b"p"])])
    checked = await acme.checkpoints.verify()
    assert (checked.threads, checked.checkpoints, list(checked.damaged), checked.next) == (3, 4, [], None)
    first = await acme.checkpoints.verify(limit=2)
    assert (first.threads, first.checkpoints) == (2, 4)
    rest = await acme.checkpoints.verify(limit=2, after=first.next)
    assert (rest.threads, rest.checkpoints, rest.next) == (1, 0, None)
    assert (await world.tenant("zenith").checkpoints.verify()).threads == 0
    for wrong in ("x", "-1", 7):
        with raises(InvalidInput):
            await acme.checkpoints.verify(after=wrong)  # type: ignore[arg-type]


@contract("joining")
async def positions_from_a_rolled_back_transaction_are_refused(world: World) -> None:
    acme = world.tenant()
    kept = await acme.checkpoints.put("t", id="1", state=b"", pieces=[b"one" * 30])
    await world.caller.commit()
    await world.caller.begin()
    undone = await acme.checkpoints.put("t", id="2", state=b"", pieces=[b"undone" * 30])
    written = await acme.checkpoints.put_writes("t", id="2", task_id="x", new=[Write(0, "c", b"", [b"too" * 30])])
    uncommitted = await acme.checkpoints.find("t")
    await world.caller.rollback()
    await world.caller.begin()
    outside = await world.outside()
    await acme.checkpoints.put("t", id="3", state=b"", pieces=[kept.positions[0]], stamp=kept.stamp)
    await acme.checkpoints.put("t", id="4", state=b"", pieces=[b"another" * 30, b"and one more" * 30])
    await world.caller.commit()
    assert uncommitted is not None
    for stamp, position in (
        (undone.stamp, undone.positions[0]),
        (written.stamp, written.positions[0]),
        (uncommitted.stamp, 2),
    ):
        with raises(Stale):
            await outside.checkpoints.put("t", id="5", state=b"", pieces=[position], stamp=stamp)
    checkpoint = await outside.checkpoints.find("t", id="3")
    assert checkpoint is not None
    assert checkpoint.pieces == [b"one" * 30]
    await world.caller.begin()


@contract()
async def history_ends_where_no_value_is_missing(world: World) -> None:
    acme = world.tenant()
    channels = ["messages"]
    await grow_thread(acme, "t", 4, leans=("messages",))
    await acme.checkpoints.put_writes("t", id="002", task_id="x", new=[Write(0, "messages", b"w", [b"p"])])
    chain = await acme.checkpoints.history("t", id="004", channels=channels)
    assert [checkpoint.id for checkpoint in chain] == ["004", "003", "002", "001"]
    assert [len(checkpoint.tasks) for checkpoint in chain] == [0, 0, 1, 0]
    await acme.checkpoints.put("t", id="005", parent="004", state=b"snapshot")
    await acme.checkpoints.put("t", id="006", parent="005", state=b"", leans=["messages"])
    assert [checkpoint.id for checkpoint in await acme.checkpoints.history("t", id="006", channels=channels)] == [
        "006",
        "005",
    ]
    assert [checkpoint.id for checkpoint in await acme.checkpoints.history("t", id="006", least=3, channels=channels)][
        2:
    ] == [
        "004",
        "003",
        "002",
        "001",
    ]
    assert [checkpoint.id for checkpoint in await acme.checkpoints.history("t", id="004", channels=["other"])] == [
        "004",
        "003",
    ]
    assert [checkpoint.id for checkpoint in await acme.checkpoints.history("t", id="006", least=0)] == ["006"]
    assert await acme.checkpoints.history("t", id="nothing", channels=channels) == []
    for wrong in (-1, True, 20_001, "1"):
        with raises(InvalidInput, field="least"):
            await acme.checkpoints.history("t", least=wrong)  # type: ignore[arg-type]


@contract()
async def the_writes_to_a_channel_decide_which_ancestors_it_needs(world: World) -> None:
    acme = world.tenant()
    for thread, is_written in (("emptied", False), ("added to", True)):
        await acme.checkpoints.put(thread, id="1", state=b"")
        if is_written:
            await acme.checkpoints.put_writes(thread, id="1", task_id="x", new=[Write(0, "log", b"w")])
        await acme.checkpoints.put(thread, id="2", parent="1", state=b"", leans=["log"], changed=["log"])
        await acme.checkpoints.put(thread, id="3", parent="2", state=b"", leans=["log"])
        assert list((await get_checkpoint(acme, thread)).leans) == ["log"]
        assert await acme.checkpoints.prune([thread]) == (0 if is_written else 2)
    await acme.checkpoints.put("seen", id="1", state=b"", snapshots=["log"])
    await acme.checkpoints.put("seen", id="2", parent="1", state=b"", leans=["log"], changed=["log"])
    assert await acme.checkpoints.prune(["seen"]) == 0
    wrong: list[dict[str, Any]] = [{"changed": ["log"]}, {"leans": ["log"], "snapshots": ["log"]}, {"snapshots": "log"}]
    for kwargs in wrong:
        with raises(InvalidInput):
            await acme.checkpoints.put("t", id="1", state=b"", **kwargs)
