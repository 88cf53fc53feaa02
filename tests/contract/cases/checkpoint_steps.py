"""Steps of a thread: what tasks wrote is saved with the checkpoint after it, and a step that was foreseen is like any other."""

from __future__ import annotations

from typing import Any

from holdfast.errors import Conflict, Fenced, InvalidInput, Stale
from holdfast.stores.execution.checkpoints.foresight import Stored
from holdfast.stores.execution.checkpoints.task_writes import TaskWrites, Write, Written
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.checkpoints import LARGE, found, grown, ids
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


async def begun(acme: AsyncTenantHandle, thread: str = "t") -> Stored:
    """A thread with one checkpoint of three pieces."""
    stored: Stored = await acme.checkpoints.put(thread, id="1", state=b"s1", pieces=[b"one", b"two", b"three"])
    return stored


@contract()
async def an_answer_says_where_the_log_goes_on(world: World) -> None:
    checkpoints = world.tenant().checkpoints
    assert (await begun(world.tenant())).next_place == 4
    assert (await checkpoints.put("t", id="2", state=b"", pieces=[b"two", b"one"])).next_place == 4
    assert (await checkpoints.put("t", id="3", state=b"", pieces=[b"four", b"two", b"five"])).next_place == 6
    new = [Write(0, "a", b"", [b"six", b"five"]), Write(1, "b", b"", [b"six"])]
    assert (await checkpoints.put_writes("t", id="3", task_id="x", new=new)).next_place == 7


@contract()
async def what_tasks_wrote_is_saved_with_the_checkpoint_after_it(world: World) -> None:
    acme = world.tenant()
    before = await begun(acme)
    written = [
        Written("1", "x", [Write(0, "a", b"v", [b"new", 2]), Write(1, "b", b"w", [LARGE])], "~path"),
        Written("1", "y", [Write(0, "a", b"", [b"new", b"own"])], namespace="child"),
    ]
    stored = await acme.checkpoints.put(
        "t", id="2", parent="1", state=b"s2", pieces=[(1, 3), b"new"], stamp=before.stamp, written=written
    )
    assert stored.places == [1, 4, 4, 2, 5, 4, 6]
    assert stored.next_place == 7
    assert list((await found(acme, "t", "2")).pieces) == [b"one", b"two", b"three", b"new"]
    (task,) = (await found(acme, "t", "1")).tasks
    assert task == TaskWrites("x", "~path", [Write(0, "a", b"v", (b"new", b"two")), Write(1, "b", b"w", (LARGE,))])
    await acme.checkpoints.put("t", namespace="child", id="1", state=b"")
    child = await acme.checkpoints.find("t", namespace="child")
    assert child is not None
    assert list(child.tasks) == [TaskWrites("y", "", [Write(0, "a", b"", (b"new", b"own"))])]
    assert (await acme.checkpoints.verify()).damaged == []


@contract()
async def what_a_task_wrote_before_stays_when_more_comes_with_a_checkpoint(world: World) -> None:
    acme = world.tenant()
    await begun(acme)
    await acme.checkpoints.put_writes("t", id="1", task_id="x", new=[Write(0, "a", b"first"), Write(-1, "e", b"old")])
    more = Written("1", "x", [Write(0, "a", b"second"), Write(-1, "e", b"new"), Write(1, "b", b"", [b"two"])])
    await acme.checkpoints.put("t", id="2", parent="1", state=b"", written=[more])
    (task,) = (await found(acme, "t", "1")).tasks
    assert list(task.writes) == [Write(-1, "e", b"new"), Write(0, "a", b"first"), Write(1, "b", b"", (b"two",))]


@contract()
async def a_checkpoint_that_is_refused_leaves_nothing_of_what_came_with_it(world: World) -> None:
    acme = world.tenant()
    before = await begun(acme)
    await acme.checkpoints.put("t", id="2", parent="1", state=b"")
    written = [Written("1", "x", [Write(0, "a", b"", [b"lost"])])]
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (Conflict, {"only_after_head": True}),
        (Stale, {"pieces": [1], "stamp": uuid_of("another")}),
        (InvalidInput, {"pieces": [4], "stamp": before.stamp}),
    ]
    for error, kwargs in wrong:
        with raises(error):
            await acme.checkpoints.put("t", id="3", parent="1", state=b"", written=written, **kwargs)
    with raises(Stale):
        stale = [Written("1", "x", [Write(0, "a", b"", [1])])]
        await acme.checkpoints.put("t", id="3", parent="1", state=b"", written=stale, stamp=uuid_of("another"))
    assert await ids(acme, "t") == ["2", "1"]
    assert (await found(acme, "t", "1")).tasks == []
    assert (await acme.checkpoints.put("t", id="4", state=b"", pieces=[b"next"])).places == [4]


@contract()
async def a_step_that_was_foreseen_is_like_any_other(world: World) -> None:
    """Whatever is said of where the log goes on, right or wrong, the same is stored."""
    acme = world.tenant()
    guesses: dict[str, Any] = {
        "right": lambda stored: stored.next_place,
        "untold": lambda stored: None,
        "low": lambda stored: 1,
        "high": lambda stored: stored.next_place + 3,
    }
    outcomes = {name: await _lived(acme, name, guess) for name, guess in guesses.items()}
    for name, outcome in outcomes.items():
        assert outcome == outcomes["untold"], name
    assert (await acme.checkpoints.verify()).damaged == []


async def _lived(acme: AsyncTenantHandle, thread: str, guess: Any) -> list[Any]:
    """The life of a thread whose writer says each time where it believes the log goes on; all that can be seen of it."""
    checkpoints, seen = acme.checkpoints, []
    last = await begun(acme, thread)

    async def put(id: str, *pieces: Any, **kwargs: Any) -> None:
        nonlocal last
        known = {"stamp": last.stamp, "next_place": guess(last)}
        last = await checkpoints.put(thread, id=id, state=id.encode(), pieces=pieces, **known, **kwargs)
        seen.append((list(last.places), last.next_place))

    async def write(id: str, task: str, *new: Write) -> None:
        nonlocal last
        known = {"stamp": last.stamp, "next_place": guess(last)}
        last = await checkpoints.put_writes(thread, id=id, task_id=task, task_path="~p", new=new, **known)
        seen.append((list(last.places), last.next_place))

    await put("2", (1, 3), parent="1")
    await put("3", (1, 3), b"four", parent="2", metadata={"run_id": "r", "n": 1}, leans=["a"])
    await put("4", (1, 4), b"five", b"six", b"five", namespace="child\x00", user=None)
    await put("5", (1, 2), b"two", b"seven")
    await put("51", b"between", b"two")
    await put("5", b"again")
    await put("6", b"eight", b"nine", b"ten", b"eleven")
    await put("7", LARGE, b"twelve")
    await put("8")
    await write("8", "x", Write(0, "a", b"v", [b"said"]), Write(1, "b"))
    await write("8", "x", Write(0, "a", b"other", [b"more"]), Write(-1, "e", b"", [b"said"]))
    await write("8", "y", Write(0, "a", b"v", [(1, 2), b"said"]))
    await checkpoints.put(thread, id="9", state=b"", pieces=[b"of another writer"])
    await put("91", b"after another")
    await put("92", b"of another writer")
    everything = await checkpoints.list(thread)
    return [*seen, *((each.id, each.pieces, each.places, each.metadata, each.tasks) for each in everything)]


@contract()
async def what_was_foreseen_before_something_was_removed_is_refused(world: World) -> None:
    acme = world.tenant()
    await grown(acme, "t", 2)
    last = await acme.checkpoints.put("t", id="3", state=b"", pieces=[b"only here"])
    assert await acme.checkpoints.prune(["t"]) == 2
    known: dict[str, Any] = {"stamp": last.stamp, "next_place": last.next_place}
    with raises(Stale):
        await acme.checkpoints.put("t", id="4", state=b"", pieces=[3], **known)
    with raises(Stale):
        await acme.checkpoints.put_writes("t", id="3", task_id="x", new=[Write(0, "a", b"", [3])], **known)
    # What says nothing of places is welcome, wherever it believes to be.
    assert (await acme.checkpoints.put("t", id="4", state=b"", pieces=[b"only here"], **known)).places == [3]
    await acme.checkpoints.delete("t")
    assert (await acme.checkpoints.put("t", id="1", state=b"", pieces=[b"x"], **known)).places == [1]
    assert list((await found(acme, "t")).pieces) == [b"x"]


@contract()
async def whoever_foresees_is_fenced_like_any_other(world: World) -> None:
    acme = world.tenant()
    run = await acme.runs.start((await acme.sessions.create()).id, agent="helper")
    held = await acme.leases.claim("one", run_id=run.id)
    assert held is not None
    await acme.leases.release(run.id, epoch=held.epoch)
    assert await acme.leases.claim("other", run_id=run.id) is not None
    await begun(acme)
    last = await acme.checkpoints.put("t", id="2", parent="1", state=b"")
    known: dict[str, Any] = {"stamp": last.stamp, "next_place": last.next_place}
    mine = (run.id, held.epoch)
    with raises(Fenced):
        await acme.checkpoints.put("t", id="3", parent="2", state=b"", lease=mine, **known)
    with raises(Fenced):
        await acme.checkpoints.put_writes("t", id="2", task_id="x", new=[Write(0, "a")], lease=mine, **known)
    with raises(Conflict):
        await acme.checkpoints.put("t", id="3", parent="1", state=b"", only_after_head=True, **known)
    assert await ids(acme, "t") == ["2", "1"]
    assert (await found(acme, "t")).tasks == []


@contract("concurrency")
async def of_many_who_foresee_the_same_each_is_saved_and_no_piece_twice(world: World) -> None:
    acme = world.tenant()
    last = await begun(acme)
    known: dict[str, Any] = {"stamp": last.stamp, "next_place": last.next_place}
    puts: list[Any] = [
        lambda n=n: acme.checkpoints.put("t", id=f"2{n}", state=b"", pieces=[(1, 3), b"shared", b"%d" % n], **known)
        for n in range(8)
    ]
    tasks: list[Any] = [
        lambda n=n: acme.checkpoints.put_writes(
            "t", id="1", task_id=f"{n}", new=[Write(0, "a", b"", [b"shared", b"task %d" % n])], **known
        )
        for n in range(8)
    ]
    outcomes = await world.together(*(call for both in zip(puts, tasks, strict=True) for call in both))
    assert [each for each in outcomes if isinstance(each, Exception)] == []
    places = {place for each in outcomes if isinstance(each, Stored) for place in each.places} - {1}
    assert places == set(range(4, 21)), "sixteen of their own, and one that all share"
    for each in await acme.checkpoints.list("t"):
        if each.id == "1":
            assert [list(task.writes[0].pieces) for task in each.tasks] == [
                [b"shared", b"task %d" % n] for n in range(8)
            ]
        else:
            assert list(each.pieces) == [b"one", b"two", b"three", b"shared", each.id[1:].encode()]
    assert (await acme.checkpoints.verify()).damaged == []


@contract()
async def wrong_steps_are_named(world: World) -> None:
    checkpoints: Any = world.tenant().checkpoints
    for next_place in (0, -1, "4", 1.0, True):
        with raises(InvalidInput, saying="next_place"):
            await checkpoints.put("t", id="1", state=b"", next_place=next_place)
        with raises(InvalidInput, saying="next_place"):
            await checkpoints.put_writes("t", id="1", task_id="x", new=[], next_place=next_place)
    for written in ("text", ["text"], [Write(0, "a")], Written("1", "x", [])):
        with raises(InvalidInput, saying="what tasks wrote"):
            await checkpoints.put("t", id="1", state=b"", written=written)
    for wrong in (Written("", "x", []), Written("1", "", []), Written("1", "x", ["text"])):  # type: ignore[list-item]
        with raises(InvalidInput):
            await checkpoints.put("t", id="1", state=b"", written=[wrong])
    assert await checkpoints.list() == []
