"""Checkpoints: saving and reading states, their pieces and the writes of tasks."""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.clock import from_us
from holdfast.core.filters import column, meta
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, LimitExceeded, NotFound, Stale
from holdfast.limits import Limits
from holdfast.stores.execution.checkpoints.reader import CachedPieces, Checkpoint
from holdfast.stores.execution.checkpoints.task_writes import TaskWrites, Write
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

LARGE = Random(1).randbytes(20_000)
"""Bytes that cannot be compressed, and so become an object."""


async def grow_thread(acme: AsyncTenantHandle, thread: str, steps: int, *, leans: tuple[str, ...] = ()) -> list[bytes]:
    """Create a thread with a checkpoint for each step, each with one piece more than the previous one; return its pieces."""
    pieces: list[bytes] = []
    for step in range(steps):
        pieces.append(f"piece {step} of {thread} ".encode() * 9)
        parent = f"{step:03}" if step else None
        await acme.checkpoints.put(
            thread,
            id=f"{step + 1:03}",
            parent=parent,
            state=b"state %d" % step,
            pieces=[*pieces],
            metadata={"step": step, "run_id": f"run {step // 2}"},
            leans=leans if step else (),
        )
    return pieces


async def get_checkpoint(acme: AsyncTenantHandle, thread: str, id: str | None = None) -> Checkpoint:
    """Return a checkpoint that must exist."""
    checkpoint = await acme.checkpoints.find(thread, id=id)
    assert checkpoint is not None
    return checkpoint


async def ids(acme: AsyncTenantHandle, thread: str) -> list[str]:
    """Return the ids of a thread's checkpoints, the newest first."""
    return [checkpoint.id for checkpoint in await acme.checkpoints.list(thread)]


@contract()
async def a_checkpoint_is_returned_as_saved(world: World) -> None:
    acme = world.tenant()
    metadata = {"source": "loop", "step": -1, "run_id": "r", "n": {"a": [1, None, "\x00\ud800"]}}
    pieces = [b"", b"one", b"two" * 500, b"one", LARGE]
    saved = await acme.checkpoints.put(
        "thread\x00", id="b", namespace="child:1", parent="a", state=b"\x00state", pieces=pieces, metadata=metadata
    )
    assert saved.positions == [1, 2, 3, 2, 4]
    checkpoint = await acme.checkpoints.find("thread\x00", namespace="child:1")
    assert checkpoint is not None
    assert (checkpoint.thread_id, checkpoint.namespace, checkpoint.id, checkpoint.parent) == (
        "thread\x00",
        "child:1",
        "b",
        "a",
    )
    assert (checkpoint.state, list(checkpoint.pieces), checkpoint.metadata) == (b"\x00state", pieces, metadata)
    assert (checkpoint.tasks, checkpoint.stamp, list(checkpoint.leans)) == ([], saved.stamp, [])
    assert checkpoint.created_at == from_us(world.clock.now_us())
    assert await acme.checkpoints.find("thread\x00", namespace="child:1", id="b") == checkpoint
    assert await acme.checkpoints.find("thread\x00") is None
    assert await acme.checkpoints.find("thread\x00", namespace="child:1", id="c") is None
    assert (await acme.objects.usage()).count == 1


@contract()
async def the_newest_checkpoint_has_the_last_id(world: World) -> None:
    acme = world.tenant()
    for id in ("b", "c", "a"):
        await acme.checkpoints.put("t", id=id, state=id.encode())
    assert (await get_checkpoint(acme, "t")).id == "c"
    assert await ids(acme, "t") == ["c", "b", "a"]
    await acme.checkpoints.put("t", id="c", state=b"again", parent="b", metadata={"n": 1})
    again = await get_checkpoint(acme, "t")
    assert (again.state, again.parent, again.metadata) == (b"again", "b", {"n": 1})
    assert await ids(acme, "t") == ["c", "b", "a"]


@contract()
async def pieces_are_stored_once_per_thread(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 6)
    last = await get_checkpoint(acme, "t")
    assert (list(last.pieces), list(last.positions)) == (pieces, [(1, 6)])
    await acme.checkpoints.put_writes("t", id="006", task_id="x", new=[Write(0, "c", b"", [pieces[2], b"new"])])
    saved = await acme.checkpoints.put("t", id="007", state=b"", pieces=[b"new", *pieces])
    assert saved.positions == [7, 1, 2, 3, 4, 5, 6]
    other = await acme.checkpoints.put("u", id="1", state=b"", pieces=pieces)
    assert other.positions == [1, 2, 3, 4, 5, 6]


@contract()
async def known_pieces_can_be_passed_by_position(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 3)
    checkpoint = await get_checkpoint(acme, "t")
    saved = await acme.checkpoints.put("t", id="9", state=b"", pieces=[3, 1, b"new", 1], stamp=checkpoint.stamp)
    assert saved.positions == [3, 1, 4, 1]
    assert list((await get_checkpoint(acme, "t")).pieces) == [pieces[2], pieces[0], b"new", pieces[0]]
    for position in (0, 5, -1):
        with raises(InvalidInput, field="pieces"):
            await acme.checkpoints.put("t", id="10", state=b"", pieces=[position], stamp=saved.stamp)
    for stamp in (None, uuid_of("another")):
        with raises(Stale):
            await acme.checkpoints.put("t", id="10", state=b"", pieces=[1], stamp=stamp)
    assert (await get_checkpoint(acme, "t")).id == "9"


@contract()
async def positions_can_be_passed_as_ranges(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 5)
    stamp = (await get_checkpoint(acme, "t")).stamp
    saved = await acme.checkpoints.put("t", id="9", state=b"", pieces=[(2, 4), b"new", 1], stamp=stamp)
    assert saved.positions == [2, 6, 1]
    assert list((await get_checkpoint(acme, "t")).pieces) == [*pieces[1:4], b"new", pieces[0]]
    written = [Write(0, "a", b"v", [(4, 6), b"newer"]), Write(1, "b", b"w", [2])]
    stamp = (await acme.checkpoints.put_writes("t", id="9", task_id="x", new=written, stamp=saved.stamp)).stamp
    (task,) = (await get_checkpoint(acme, "t")).tasks
    assert [list(write.pieces) for write in task.writes] == [[*pieces[3:5], b"new", b"newer"], [pieces[1]]]
    wrongs: list[Any] = [(0, 1), (6, 8), (3, 2), (1, 3, 5), (3,), (-2, -1), (True, 2), (1, 2.0)]
    for wrong in wrongs:
        with raises(InvalidInput):
            await acme.checkpoints.put("t", id="10", state=b"", pieces=[wrong], stamp=stamp)
    with raises(InvalidInput, field="pieces"):
        await acme.checkpoints.put("t", id="10", state=b"", pieces=[(1, 2**40)], stamp=stamp)
    with raises(Stale):
        await acme.checkpoints.put("t", id="10", state=b"", pieces=[(1, 2)])
    assert (await get_checkpoint(acme, "t")).id == "9"


@contract()
async def cached_pieces_are_not_read(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 5)
    stamp = (await get_checkpoint(acme, "t")).stamp
    checkpoint = await acme.checkpoints.find("t", cached=CachedPieces(stamp, [[1, 2], [4, 4], [9, 12]]))
    assert checkpoint is not None
    assert list(checkpoint.pieces) == [None, None, pieces[2], None, pieces[4]]
    unknown = await acme.checkpoints.find("t", cached=CachedPieces(uuid_of("another"), [[1, 5]]))
    assert unknown is not None
    assert list(unknown.pieces) == pieces


@contract()
async def positions_are_refused_after_a_removal(world: World) -> None:
    acme = world.tenant()
    await grow_thread(acme, "t", 2)
    await acme.checkpoints.put("t", id="3", state=b"", pieces=[b"only here"])
    before = await get_checkpoint(acme, "t")
    assert await acme.checkpoints.prune(["t"]) == 2
    with raises(Stale):
        await acme.checkpoints.put("t", id="4", state=b"", pieces=[3], stamp=before.stamp)
    after = await get_checkpoint(acme, "t")
    assert (list(after.pieces), after.stamp != before.stamp) == ([b"only here"], True)
    await acme.checkpoints.delete("t")
    await acme.checkpoints.put("t", id="1", state=b"", pieces=[b"x"])
    with raises(Stale):
        await acme.checkpoints.put("t", id="2", state=b"", pieces=[1], stamp=after.stamp)


@contract()
async def writes_are_in_the_order_of_their_tasks(world: World) -> None:
    acme = world.tenant()
    await acme.checkpoints.put("t", id="1", state=b"")
    one = [Write(-3, "__interrupt__", b"i"), Write(0, "a", b"v", (b"p", LARGE)), Write(1, "b\x00", b"w")]
    await acme.checkpoints.put_writes("t", id="1", task_id="z", task_path="~a", new=one[::-1])
    await acme.checkpoints.put_writes("t", id="1", task_id="b", task_path="~b", new=[Write(0, "a", b"2")])
    await acme.checkpoints.put_writes("t", id="1", task_id="a", task_path="~b", new=[Write(0, "a", b"1")])
    await acme.checkpoints.put_writes("t", id="1", task_id="q", new=[Write(0, "a", b"0")])
    checkpoint = await get_checkpoint(acme, "t")
    assert [(task.task_path, task.task_id) for task in checkpoint.tasks] == [
        ("", "q"), ("~a", "z"), ("~b", "a"), ("~b", "b"),
    ]  # fmt: skip
    assert list(checkpoint.tasks[1].writes) == one
    assert (await acme.checkpoints.list("t"))[0].tasks == checkpoint.tasks


@contract()
async def writes_are_kept_and_special_ones_are_replaced(world: World) -> None:
    acme = world.tenant()
    await acme.checkpoints.put_writes("t", id="1", task_id="x", new=[Write(0, "a", b"first"), Write(-1, "e", b"old")])
    await acme.checkpoints.put_writes("t", id="1", task_id="x", new=[Write(0, "a", b"second"), Write(-1, "e", b"new")])
    await acme.checkpoints.put_writes("t", id="1", task_id="x", new=[Write(1, "b", b"more", [b"p"])])
    assert await acme.checkpoints.find("t") is None, "writes can be saved before their checkpoint"
    await acme.checkpoints.put("t", id="1", state=b"")
    (task,) = (await get_checkpoint(acme, "t")).tasks
    assert task == TaskWrites(
        "x", "", [Write(-1, "e", b"new"), Write(0, "a", b"first"), Write(1, "b", b"more", (b"p",))]
    )
    await acme.checkpoints.put("t", id="2", state=b"", parent="1")
    assert (await get_checkpoint(acme, "t")).tasks == []


@contract()
async def a_list_has_filters_and_pages(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 6)
    await acme.checkpoints.put("t", id="003", namespace="child", state=b"c")
    await acme.checkpoints.put("u", id="003", state=b"u")
    checkpoints = acme.checkpoints
    assert [item.id for item in await checkpoints.list("t", namespace="", before="003")] == ["002", "001"]
    assert [item.id for item in await checkpoints.list("t", metadata={"step": 4})] == ["005"]
    assert [item.id for item in await checkpoints.list("t", metadata={"step": 4, "run_id": "run 0"})] == []
    assert [item.state for item in await checkpoints.list("t", id="003", namespace="child")] == [b"c"]
    assert list((await checkpoints.list("t", id="004"))[0].pieces) == pieces[:4]
    everything = await checkpoints.list()
    assert len(everything) == 8
    paged: list[Checkpoint] = []
    page = await checkpoints.list(limit=3)
    while True:
        paged += page
        if page.next is None:
            break
        page = await checkpoints.list(limit=3, cursor=page.next)
    assert paged == everything
    assert await checkpoints.list("missing") == []


@contract()
async def uuids_work_like_other_ids(world: World) -> None:
    acme = world.tenant()
    uuids = sorted(uuid_of(number) for number in range(4))
    for parent, id in zip([None, *uuids], uuids, strict=False):
        await acme.checkpoints.put("t", id=id, parent=parent, state=id.encode(), only_after_head=True)
    await acme.checkpoints.put_writes("t", id=uuids[3], task_id=uuids[0], new=[Write(0, "c", b"w", [b"p"])])
    with raises(Conflict, saying=uuids[3], reason="newer_checkpoint"):
        await acme.checkpoints.put("t", id=uuid_of(9), parent=uuids[1], state=b"", only_after_head=True)
    with raises(Conflict, saying=uuids[3], reason="newer_checkpoint"):
        await acme.checkpoints.put(
            "t", id=uuid_of(9), parent=uuids[1], state=b"", only_after_head=True, known_head=uuids[2]
        )
    newest = await get_checkpoint(acme, "t")
    assert (newest.id, newest.parent, newest.tasks[0].task_id) == (uuids[3], uuids[2], uuids[0])
    assert await get_checkpoint(acme, "t", uuids[3]) == newest
    assert (await acme.checkpoints.list("t"))[0] == newest
    assert [checkpoint.id for checkpoint in await acme.checkpoints.history("t")] == uuids[:1:-1]
    listed = {
        "before": await acme.checkpoints.list("t", before=uuids[2]),
        "lt": await acme.checkpoints.list("t", where=[column("id").lt(uuids[2])]),
        "parent": await acme.checkpoints.list("t", where=[column("parent").is_in([None, uuids[0]])]),
        "contains": await acme.checkpoints.list("t", where=[column("id").contains("-"), column("id").ne(uuids[3])]),
        "page": await acme.checkpoints.list("t", cursor=(await acme.checkpoints.list("t", limit=2)).next),
    }
    two = [uuids[1], uuids[0]]
    assert {by: [checkpoint.id for checkpoint in page] for by, page in listed.items()} == {
        "before": two, "lt": two, "parent": two, "contains": [uuids[2], *two], "page": two,
    }  # fmt: skip
    assert await acme.checkpoints.copy("t", "u") == 4
    assert await acme.checkpoints.prune(["t"]) == 3
    assert (await ids(acme, "t"), await ids(acme, "u")) == ([uuids[3]], uuids[::-1])
    assert (await get_checkpoint(acme, "t")).tasks == newest.tasks
    assert (await acme.checkpoints.verify()).damaged == []


@contract()
async def filters_see_the_original_metadata_of_a_step(world: World) -> None:
    acme = world.tenant()
    step = {"source": "loop", "step": 7, "parents": {}}
    metadata_by_id = {
        "1": step,
        "2": {**step, "source": "input", "more": None},
        "3": {**step, "parents": {"": "1"}},
        "4": {},
    }
    for id, metadata in metadata_by_id.items():
        await acme.checkpoints.put("t", id=id, state=b"", metadata=metadata)
    assert {checkpoint.id: checkpoint.metadata for checkpoint in await acme.checkpoints.list("t")} == metadata_by_id
    for where, expected in (
        ([meta("step").eq(7)], "321"),
        ([meta("step").gt(6), meta("source").eq("loop")], "31"),
        ([meta("source").is_in(["input", "fork"])], "2"),
        ([meta("source").contains("oo")], "31"),
        ([meta("source").ne("loop")], "42"),
        ([meta("more").eq(None)], "2"),
        ([meta("step").eq("7")], ""),
    ):
        assert "".join(checkpoint.id for checkpoint in await acme.checkpoints.list("t", where=where)) == expected
    assert [
        checkpoint.id for checkpoint in await acme.checkpoints.list("t", metadata={"source": "input", "step": 7})
    ] == ["2"]


@contract()
async def prune_keeps_the_newest_and_their_required_ancestors(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 5)
    await grow_thread(acme, "u", 3)
    await acme.checkpoints.put("t", id="001", namespace="child", state=b"c")
    assert await acme.checkpoints.prune(["t", "missing"], keep=2) == 3
    assert await ids(acme, "t") == ["005", "004", "001"]
    assert list((await get_checkpoint(acme, "t")).pieces) == pieces
    assert await ids(acme, "u") == ["003", "002", "001"]
    assert await acme.checkpoints.prune(["u"], keep=0) == 3
    assert await acme.checkpoints.list("u") == []
    await grow_thread(acme, "v", 4, leans=("messages",))
    await acme.checkpoints.put("v", id="005", parent="004", state=b"s", leans=["messages", "other"])
    assert await acme.checkpoints.prune(["v"]) == 0, "the newest needs all of them"
    await acme.checkpoints.put("v", id="006", parent="005", state=b"whole")
    assert await acme.checkpoints.prune(["v"]) == 5


@contract()
async def pruning_removes_exactly_the_unneeded_pieces(world: World) -> None:
    acme = world.tenant()
    saved = await acme.checkpoints.put("t", id="1", state=b"", pieces=[b"a", LARGE, b"c"])
    new = [Write(0, "w", b"", [b"c", b"written"])]
    written = await acme.checkpoints.put_writes("t", id="2", task_id="x", new=new)
    await acme.checkpoints.put("t", id="2", state=b"", pieces=[b"d", saved.positions[0]], stamp=written.stamp)
    assert await acme.checkpoints.prune(["t"]) == 1
    left = await get_checkpoint(acme, "t")
    assert list(left.pieces) == [b"d", b"a"]
    assert list(left.tasks[0].writes[0].pieces) == [b"c", b"written"]
    later = await acme.checkpoints.put("t", id="3", state=b"", pieces=[b"a", b"c", LARGE])
    assert later.positions == [1, 3, 6], "removed pieces get new positions, kept pieces keep theirs"
    assert (await acme.objects.prune(grace_s=0)).removed == 0
    await acme.checkpoints.delete("t")
    assert (await acme.objects.prune(grace_s=0)).removed == 1


@contract()
async def delete_runs_keeps_required_ancestors(world: World) -> None:
    acme = world.tenant()
    await grow_thread(acme, "t", 6)
    await grow_thread(acme, "u", 2)
    assert await acme.checkpoints.delete_runs(["run 0", "run 7"]) == 4
    assert await ids(acme, "t") == ["006", "005", "004", "003"]
    assert await ids(acme, "u") == []
    await grow_thread(acme, "v", 4, leans=("messages",))
    assert await acme.checkpoints.delete_runs(["run 0"]) == 0
    assert await acme.checkpoints.delete_runs(["run 1"]) == 4
    assert await ids(acme, "v") == ["002", "001"]
    assert await acme.checkpoints.delete_runs([]) == 0


@contract()
async def a_copy_is_independent_of_its_original(world: World) -> None:
    acme = world.tenant()
    pieces = await grow_thread(acme, "t", 4)
    await acme.checkpoints.put_writes("t", id="004", task_id="x", new=[Write(0, "c", b"v", [LARGE])])
    assert await acme.checkpoints.copy("t", "copy") == 4
    assert await acme.checkpoints.copy("t", "copy") == 4
    assert (await get_checkpoint(acme, "copy")).tasks == (await get_checkpoint(acme, "t")).tasks
    await acme.checkpoints.put("copy", id="005", state=b"", pieces=[b"only in the copy", *pieces])
    assert (await get_checkpoint(acme, "t")).id == "004"
    await acme.checkpoints.put("t", id="006", state=b"", pieces=pieces)
    with raises(AlreadyExists, noun="thread", key="copy"):
        await acme.checkpoints.copy("t", "copy")
    assert await ids(acme, "copy") == ["005", "004", "003", "002", "001"]
    assert await acme.checkpoints.delete("t") == 5
    assert [list(checkpoint.pieces) for checkpoint in await acme.checkpoints.list("copy", before="005")] == [
        pieces[:n] for n in (4, 3, 2, 1)
    ]
    assert (await get_checkpoint(acme, "copy", "004")).tasks[0].writes[0].pieces == (LARGE,)
    with raises(NotFound):
        await acme.checkpoints.copy("t", "another")
    await grow_thread(acme, "t", 1)
    with raises(AlreadyExists):
        await acme.checkpoints.copy("t", "copy")
    assert await acme.checkpoints.delete("copy") == 5
    assert (await acme.objects.prune(grace_s=0)).removed == 1


@contract()
async def users_of_a_tenant_have_separate_threads(world: World) -> None:
    acme = world.tenant()
    await acme.checkpoints.put("t", id="1", state=b"no user's")
    await acme.checkpoints.put("t", id="1", state=b"ada's", user="ada", metadata={"run_id": "r"})
    assert (await get_checkpoint(acme, "t")).state == b"no user's"
    hers = await acme.checkpoints.find("t", user="ada")
    assert hers is not None
    assert hers.state == b"ada's"
    assert [checkpoint.state for checkpoint in await acme.checkpoints.list(user="ada")] == [b"ada's"]
    assert await acme.checkpoints.delete_runs(["r"]) == 0
    assert await acme.checkpoints.delete("t") == 1
    assert await acme.checkpoints.find("t", user="ada") == hers
    assert await world.tenant("zenith").checkpoints.list(user="ada") == []


@contract()
async def a_single_writer_gets_a_conflict_with_the_newest_checkpoint(world: World) -> None:
    checkpoints = world.tenant().checkpoints
    await checkpoints.put("t", id="n1", state=b"", only_after_head=True)
    await checkpoints.put("t", id="n2", state=b"", parent="n1", only_after_head=True)
    with raises(Conflict, saying="n2", reason="newer_checkpoint"):
        await checkpoints.put("t", id="n3", state=b"", parent="n1", only_after_head=True)
    with raises(Conflict, saying="n2", reason="newer_checkpoint"):
        await checkpoints.put("t", id="n3", state=b"", only_after_head=True)
    await checkpoints.put("t", id="n2", state=b"again", parent="n1", only_after_head=True)
    await checkpoints.put("t", id="n3", state=b"a fork", parent="n1")
    await checkpoints.put("t", id="n4", state=b"", parent="n3", only_after_head=True)
    await checkpoints.put("t", id="n1", namespace="child", state=b"", only_after_head=True)
    assert [checkpoint.id for checkpoint in await checkpoints.list("t", namespace="")] == ["n4", "n3", "n2", "n1"]


@contract("concurrency")
async def of_concurrent_single_writers_one_wins(world: World) -> None:
    checkpoints = world.tenant().checkpoints
    await checkpoints.put("t", id="0", state=b"")
    calls: list[Any] = [
        lambda n=n: checkpoints.put("t", id=f"{n}", state=b"", parent="0", pieces=[b"%d" % n], only_after_head=True)
        for n in range(1, 9)
    ]
    outcomes = await world.together(*calls)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 7 + ["StoredPieces"]
    assert len(await checkpoints.list("t")) == 2


@contract("concurrency")
async def concurrent_writes_and_prunes_of_one_thread_succeed(world: World) -> None:
    acme = world.tenant()
    shared = [b"shared %d " % n * 20 for n in range(5)]
    calls: list[Any] = [
        lambda n=n: acme.checkpoints.put("t", id=f"{n:02}", state=b"", pieces=[*shared, b"%d" % n, LARGE])
        for n in range(12)
    ]
    calls[5:5] = [lambda: acme.checkpoints.prune(["t"], keep=3)]
    calls[9:9] = [lambda: acme.checkpoints.prune(["t"], keep=1), lambda: acme.objects.prune(grace_s=0)]
    outcomes = await world.together(*calls)
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    for checkpoint in await acme.checkpoints.list("t"):
        assert list(checkpoint.pieces) == [*shared, b"%d" % int(checkpoint.id), LARGE]


@contract(limits=Limits(key_bytes=20, name_bytes=10, content_bytes=100, metadata_bytes=60, batch_rows=3))
async def checkpoints_have_limits(world: World) -> None:
    checkpoints = world.tenant().checkpoints
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("t" * 21, {"id": "1"}),
        ("t", {"id": "1" * 11}),
        ("t", {"id": "1", "namespace": "n" * 21}),
        ("t", {"id": "1", "metadata": {"a": "x" * 60}}),
        ("t", {"id": "1", "pieces": [b"x" * 101]}),
        ("t", {"id": "1", "state": b"x" * 101}),
    ]
    for thread, kwargs in wrong:
        with raises(LimitExceeded):
            await checkpoints.put(thread, **{"state": b"", **kwargs})
    with raises(LimitExceeded):
        await checkpoints.put_writes("t", id="1", task_id="x", new=[Write(n, "c") for n in range(4)])
    assert await checkpoints.list() == []


@contract()
async def invalid_arguments_are_refused(world: World) -> None:
    checkpoints: Any = world.tenant().checkpoints
    for kwargs in (
        {"id": "1", "state": "text"},
        {"id": "", "state": b""},
        {"id": 1, "state": b""},
        {"id": "1", "state": b"", "pieces": b"bytes"},
        {"id": "1", "state": b"", "pieces": ["text"]},
        {"id": "1", "state": b"", "parent": "1"},
        {"id": "1", "state": b"", "leans": [1]},
    ):
        with raises(InvalidInput):
            await checkpoints.put("t", **kwargs)
    for write in ("text", Write("0", "c"), Write(0, 1), Write(0, "c", "text"), Write(2**31, "c")):  # type: ignore[arg-type]
        with raises(InvalidInput):
            await checkpoints.put_writes("t", id="1", task_id="x", new=[write])
    with raises(InvalidInput):
        await checkpoints.prune("t")
    with raises(InvalidInput):
        await checkpoints.prune(["t"], keep=-1)
    assert await checkpoints.list() == []


@contract("tenants")
async def the_first_checkpoint_registers_its_tenant_and_is_removed_with_it(world: World) -> None:
    fresh = world.tenant("fresh")
    await grow_thread(fresh, "t", 2)
    await fresh.checkpoints.put("t", id="9", state=b"", pieces=[LARGE])
    assert (await world.tenants.get("fresh")).id == "fresh"
    await world.tenants.delete("fresh", cascade=True)
    assert await fresh.checkpoints.list() == []
    assert (await fresh.objects.usage()).count == 0


@contract("reopening")
async def checkpoints_persist_after_reopening(world: World) -> None:
    pieces = await grow_thread(world.tenant(), "t", 3)
    await world.reopen()
    assert list((await get_checkpoint(world.tenant(), "t")).pieces) == pieces
