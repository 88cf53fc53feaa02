"""Edge cases of checkpoints: invalid arguments, lists, writes, copies, pruning rules and damaged rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.clock import FixedClock
from holdfast.core.filters import column, meta
from holdfast.core.paging import encode_cursor
from holdfast.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    InvalidFilter,
    InvalidInput,
    InvalidText,
    LimitExceeded,
    NotFound,
    Stale,
)
from holdfast.stores.execution.checkpoints import ancestry, ranges, task_writes
from holdfast.stores.execution.checkpoints.ancestry import CheckpointNode, PruningRules
from holdfast.stores.execution.checkpoints.channel_marks import ChannelMarks
from holdfast.stores.execution.checkpoints.reader import CachedPieces, Checkpoint
from holdfast.stores.execution.checkpoints.task_writes import PlacedWrite, Write
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.errors import raises

CLOCK = FixedClock()
LIMITS = Limits(key_bytes=40, name_bytes=20, batch_rows=5, content_bytes=1_000, list_rows=6, page_rows=100)
STRANGE = ["é", "\x00", "\ud800", "a b", "'"]


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=LIMITS) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """A tenant of its own for each test."""
    return opened.tenant(request.node.name[:200])


def put(acme: TenantHandle, thread: str, id: str, **how: Any) -> Any:
    return acme.checkpoints.put(thread, id=id, **{"state": id.encode(errors="replace"), **how})


def get(acme: TenantHandle, thread: str, **how: Any) -> Checkpoint:
    checkpoint = acme.checkpoints.find(thread, **how)
    assert checkpoint is not None
    return checkpoint


def ids(checkpoints: Any) -> list[str]:
    return [checkpoint.id for checkpoint in checkpoints]


# Invalid arguments


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"leans": "messages"}, InvalidInput), ({"leans": ["\ud800"]}, InvalidInput), ({"leans": ["a"] * 6}, LimitExceeded),
        ({"leans": [None]}, InvalidInput), ({"pieces": 7}, InvalidInput), ({"pieces": [None]}, InvalidInput),
        ({"pieces": [True]}, InvalidInput), ({"pieces": [b"x" * 1_001]}, LimitExceeded), ({"state": None}, InvalidInput),
        ({"state": b"x" * 1_001}, LimitExceeded), ({"metadata": [1]}, InvalidInput), ({"metadata": {"a": {1}}}, InvalidText),
        ({"metadata": {"run_id": "x" * 41}}, LimitExceeded), ({"namespace": None}, InvalidInput),
        ({"namespace": "x" * 41}, LimitExceeded), ({"parent": ""}, InvalidInput), ({"parent": 7}, InvalidInput),
        ({"parent": "x" * 21}, LimitExceeded), ({"user": ""}, InvalidInput), ({"lease": ("no run", 1)}, InvalidInput),
        ({"pieces": [1]}, Stale), ({"pieces": [1], "stamp": "another"}, Stale),
        ({"lease": ("00000000-0000-0000-0000-000000000000", 1)}, NotFound),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_an_invalid_checkpoint_is_not_saved(acme: TenantHandle, how: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        put(acme, "t", "1", **how)
    assert acme.checkpoints.list() == []


@pytest.mark.parametrize("new", [None, 7, "text", [None], [("0", "c")], [Write(-(2**31) - 1, "c")], [Write(0, "\udc00")],
                                 [Write(0, "c", pieces=b"x")], [Write(0, "c", pieces=["x"])], [Write(True, "c")],
                                 [Write(0, "c")] * 6], ids=lambda value: repr(value)[:30])  # fmt: skip
def test_invalid_writes_are_refused_together(acme: TenantHandle, new: Any) -> None:
    put(acme, "t", "1")
    with pytest.raises(InvalidInput):
        acme.checkpoints.put_writes("t", id="1", task_id="x", new=new)
    assert get(acme, "t").tasks == []


@pytest.mark.parametrize("how", [{"keep": None}, {"keep": True}, {"keep": 2**31}, {"keep": 1.0}, {"younger_than_s": -1},
                                 {"runs": -1}, {"runs": "1"}, {"younger_than_s": False}], ids=repr)  # fmt: skip
def test_pruning_rules_are_whole_numbers(acme: TenantHandle, how: Any) -> None:
    put(acme, "t", "1")
    with raises(InvalidInput, field=next(iter(how))):
        acme.checkpoints.prune(["t"], **how)
    assert ids(acme.checkpoints.list("t")) == ["1"]


@pytest.mark.parametrize("threads", ["t", 7, None, [7], [""], ["t"] * 6], ids=repr)
def test_threads_must_be_a_list_of_names(acme: TenantHandle, threads: Any) -> None:
    with pytest.raises(InvalidInput):
        acme.checkpoints.prune(threads)
    with pytest.raises(InvalidInput):
        acme.checkpoints.delete_runs("t" if threads == [""] else threads)


@pytest.mark.parametrize("after", ["", "-1", "x", "1.0", "9" * 19, 5, b"1", "\u00b2"], ids=repr)
def test_verify_continues_only_from_its_own_cursor(acme: TenantHandle, after: Any) -> None:
    with raises(InvalidInput, field="after"):
        acme.checkpoints.verify(after=after)


# Lists


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, ["4", "3", "2", "1"]),
        ({"id": "2"}, ["2"]),
        ({"before": "3"}, ["2", "1"]),
        ({"before": "0"}, []),
        ({"namespace": ""}, ["4", "2", "1"]),
        ({"namespace": "child"}, ["3"]),
        ({"metadata": {"step": 1}}, ["1"]),
        ({"metadata": {"step": 1.0}}, ["1"]),
        ({"metadata": {"step": True}}, []),
        ({"metadata": {"absent": None}}, []),
        ({"where": [meta("step").gt(1)]}, ["4", "3", "2"]),
        ({"where": [column("parent").eq(None)]}, ["3", "1"]),
        ({"where": [column("parent").ne("1")]}, ["4", "3", "1"]),
        ({"where": [column("run_id").eq("\x00")]}, ["4"]),
        ({"where": [column("id").is_in(["1", "4", "9"]), meta("step").ne(4)]}, ["1"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_filtered_list_is_the_same_whole_and_in_pages(acme: TenantHandle, how: Any, expected: list[str]) -> None:
    put(acme, "t", "1", metadata={"step": 1})
    put(acme, "t", "2", metadata={"step": 2}, parent="1")
    put(acme, "t", "3", metadata={"step": 3}, namespace="child")
    put(acme, "t", "4", metadata={"step": 4, "run_id": "\x00"}, parent="2")
    put(acme, "t", "5", user="other")
    assert ids(acme.checkpoints.list("t", **how)) == expected
    page = acme.checkpoints.list("t", limit=1, **how)
    listed = ids(page)
    while page.next is not None:
        page = acme.checkpoints.list("t", limit=1, cursor=page.next, **how)
        listed += ids(page)
    assert listed == expected


def test_a_list_of_all_threads_is_limited(acme: TenantHandle) -> None:
    for number in range(6):
        put(acme, f"t{number % 2}", str(number))
    assert ids(acme.checkpoints.list()) == ["5", "4", "3", "2", "1", "0"]
    put(acme, "t0", "6")
    with raises(LimitExceeded, limit="list_rows", maximum=6):
        acme.checkpoints.list()
    assert len(acme.checkpoints.list(limit=7)) == 7


@pytest.mark.parametrize("how", [*({"cursor": text} for text in GARBAGE_CURSORS), {"cursor": encode_cursor("checkpoints", "1")},
                                 {"where": "x"}, {"where": [column("state").eq(1)]}, {"metadata": [1]}, {"id": 7},
                                 {"before": 7}, {"namespace": b"x"}], ids=lambda how: repr(how)[:30])  # fmt: skip
def test_invalid_list_arguments_are_refused(acme: TenantHandle, how: Any) -> None:
    with pytest.raises(InvalidFilter):
        acme.checkpoints.list("t", limit=1, **how)


@pytest.mark.parametrize("name", STRANGE, ids=repr)
def test_threads_namespaces_tasks_and_checkpoints_can_have_any_name(acme: TenantHandle, name: str) -> None:
    put(acme, name, name, namespace=name, user=name, metadata={"run_id": name, name: name}, pieces=[b"p"])
    acme.checkpoints.put_writes(
        name, id=name, task_id=name, task_path=name, namespace=name, user=name, new=[Write(0, "c", b"v", [b"w"])]
    )
    one = get(acme, name, namespace=name, user=name)
    assert (one.thread_id, one.namespace, one.id, one.metadata[name]) == (name, name, name, name)
    assert [(task.task_id, task.task_path) for task in one.tasks] == [(name, name)]
    assert acme.checkpoints.list(name, user=name) == [one]
    assert acme.checkpoints.verify().damaged == []
    assert acme.checkpoints.delete_runs([name], user=name) == 1


# Writes


@pytest.mark.parametrize(
    ("index", "calls", "kept"),
    [
        (0, [[b"1", b"2"]], b"1"),
        (0, [[b"1"], [b"2"]], b"1"),
        (0, [[b"1"], [b"2", b"3"]], b"1"),
        (-1, [[b"1", b"2"]], b"2"),
        (-1, [[b"1"], [b"2"]], b"2"),
        (-1, [[b"1"], [b"2", b"3"]], b"3"),
    ],
)
def test_the_index_of_a_write_decides_if_it_is_replaced(
    acme: TenantHandle, index: int, calls: list[list[bytes]], kept: bytes
) -> None:
    put(acme, "t", "1")
    for values in calls:
        new = [Write(index, "c", value, [value * 2]) for value in values]
        acme.checkpoints.put_writes("t", id="1", task_id="x", new=new)
    (task,) = get(acme, "t").tasks
    assert task.writes == [Write(index, "c", kept, (kept * 2,))]


def test_writes_can_be_saved_before_their_checkpoint(acme: TenantHandle) -> None:
    acme.checkpoints.put_writes("t", id="1", task_id="x", new=[Write(1, "b", b"2"), Write(0, "a", b"1")])
    assert acme.checkpoints.find("t") is None
    assert acme.checkpoints.prune(["t"]) == 0
    put(acme, "t", "1")
    assert [write.value for write in get(acme, "t").tasks[0].writes] == [b"1", b"2"]
    acme.checkpoints.put_writes("t", id="1", task_id="y", new=[])
    assert [task.task_id for task in get(acme, "t").tasks] == ["x", "y"]
    assert acme.checkpoints.delete("t") == 1


placed = st.builds(
    PlacedWrite,
    st.integers(-3, 5),
    st.sampled_from("ab"),
    st.binary(max_size=3),
    st.lists(st.integers(1, 9), max_size=3),
)


@given(st.lists(placed, max_size=6, unique_by=lambda write: write.index))
@settings(max_examples=40)
def test_the_writes_of_a_task_are_in_the_order_of_their_indexes(writes: list[PlacedWrite]) -> None:
    packed, sealed = task_writes.pack(writes)
    ordered = sorted(writes, key=lambda write: write.index)
    assert task_writes.unpack(packed, sealed) == ordered
    assert ranges.positions_in(task_writes.unseal_ranges(packed, sealed)) == [
        position for write in ordered for position in write.positions
    ]


def test_undecodable_writes_are_corrupt() -> None:
    for packed in (b"", b"\xff", b"\x91\x93\x00\xa1a\xc4\x00"):
        with raises(Corrupt):
            task_writes.unpack(packed, ranges.seal([], packed))


# Copies, forks and leases


def test_a_copy_to_an_existing_thread_is_refused(acme: TenantHandle) -> None:
    put(acme, "a", "1", pieces=[b"x"])
    put(acme, "b", "1")
    with raises(NotFound, noun="thread", key="absent"):
        acme.checkpoints.copy("absent", "c")
    with pytest.raises(NotFound):
        acme.checkpoints.copy("a", "c", user="other")
    with raises(AlreadyExists, noun="thread", key="b"):
        acme.checkpoints.copy("a", "b")
    assert acme.checkpoints.copy("a", "a") == 1
    assert [acme.checkpoints.copy("a", "c"), acme.checkpoints.copy("a", "c")] == [1, 1]
    put(acme, "c", "2", parent="1")
    assert acme.checkpoints.copy("c", "a") == 2, "threads that share a log can be copied to each other"
    assert acme.checkpoints.delete("a") == 2
    assert list(get(acme, "c", id="1").pieces) == [b"x"]


def test_only_after_head_accepts_the_first_checkpoint_and_repetitions(acme: TenantHandle) -> None:
    put(acme, "t", "1", only_after_head=True)
    put(acme, "t", "1", only_after_head=True)
    put(acme, "t", "2", parent="1", only_after_head=True)
    for id, parent in (("3", None), ("3", "1"), ("1", None)):
        with raises(Conflict, reason="newer_checkpoint"):
            put(acme, "t", id, parent=parent, only_after_head=True)
    put(acme, "t", "0", parent=None, namespace="child", only_after_head=True)
    assert ids(acme.checkpoints.list("t")) == ["2", "1", "0"]


def test_cached_pieces_are_not_read_unless_their_stamp_is_old(acme: TenantHandle) -> None:
    stored = put(acme, "t", "1", pieces=[b"a", b"b", b"c", b"a"])
    assert stored.positions == [1, 2, 3, 1]
    for cached, expected in (
        ([(1, 1)], [None, b"b", b"c", None]),
        ([(1, 3)], [None] * 4),
        ([(7, 9)], [b"a", b"b", b"c", b"a"]),
    ):
        assert list(get(acme, "t", cached=CachedPieces(stored.stamp, cached)).pieces) == expected
    assert list(get(acme, "t", cached=CachedPieces("another", [(1, 3)])).pieces) == [b"a", b"b", b"c", b"a"]
    assert acme.checkpoints.find("absent", cached=CachedPieces(stored.stamp, [(1, 3)])) is None


@pytest.mark.parametrize("position", [0, -1, 3, 10**30])
def test_a_position_without_a_piece_is_refused(acme: TenantHandle, position: int) -> None:
    pieces = put(acme, "t", "1", pieces=[b"a", b"b"])
    with raises(InvalidInput, field="pieces"):
        put(acme, "t", "2", pieces=[position], stamp=pieces.stamp)


# Pruning


def node(id: str, run: str | None = None, *, young: bool = False, namespace: str = "") -> CheckpointNode:
    return CheckpointNode(namespace, id, None, ChannelMarks(), run, young)


NODES = [
    node("6", "b"),
    node("5", None),
    node("4", "b", young=True),
    node("3", "a"),
    node("2", "a", young=True),
    node("1"),
]


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (PruningRules(), ""),
        (PruningRules(keep=2), "65"),
        (PruningRules(keep=9), "654321"),
        (PruningRules(younger_than_s=5), "42"),
        (PruningRules(younger_than_s=0), "42"),
        (PruningRules(runs=0), ""),
        (PruningRules(runs=1), "64"),
        (PruningRules(runs=2), "6432"),
        (PruningRules(keep=1, younger_than_s=5, runs=1), "642"),
        (PruningRules(without_runs=frozenset("a")), "6541"),
        (PruningRules(without_runs=frozenset("ab")), "51"),
        (PruningRules(keep=9, without_runs=frozenset("ab")), "51"),
    ],
)
def test_each_rule_keeps_what_it_names(rules: PruningRules, kept: str) -> None:
    assert {id for _, id in rules.select(NODES)} == set(kept)
    assert ancestry.with_required_ancestors(NODES, rules.select(NODES)) == rules.select(NODES)
    assert rules.since_us(10_000_000) == 10_000_000 - (rules.younger_than_s or 0) * 1_000_000


CALL = "sub:00000000-0000-4000-8000-00000000000"


def test_past_subgraph_calls_are_not_kept() -> None:
    nodes = [
        node("9", namespace=CALL + "3"), node("8"), node("7", namespace=CALL + "2|deep:x"), node("6"),
        node("5", "a", namespace=CALL + "1"), node("4", namespace="stable"), node("3", namespace=CALL + "0"), node("2"),
        node("1", namespace="stable|" + CALL + "4"),
    ]  # fmt: skip
    assert {id for _, id in PruningRules(keep=1).select(nodes)} == set("9875431")
    assert {id for _, id in PruningRules(keep=1, without_past_calls=True).select(nodes)} == set("984")
    assert {id for _, id in PruningRules(keep=2, without_past_calls=True).select(nodes)} == set("98764")
    assert {id for _, id in PruningRules(keep=1, runs=1, without_past_calls=True).select(nodes)} == set("9854")
    assert {id for _, id in PruningRules(keep=1, without_past_calls=True).select(nodes[2:3])} == set("7")


# Damage


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE lg_checkpoint SET checkpoint = x'00'", "is damaged"),
        ("UPDATE lg_checkpoint SET parent_checkpoint_id = x'ff30'", "is damaged"),
        ("UPDATE lg_checkpoint SET checkpoint_id = x'ff32'", "is damaged"),
        ("UPDATE lg_checkpoint SET checkpoint_id = x'32'", "id 32"),
        ("UPDATE lg_checkpoint SET checkpoint_id = x'fff0'", "id fff0"),
        ("UPDATE lg_checkpoint SET metadata = 'l07'", "cannot be read"),
        ("UPDATE lg_checkpoint SET pieces = x''", "is damaged"),
        ("UPDATE lg_piece SET body = x'00'", "digest"),
        ("UPDATE lg_piece SET codec = 7", "codec 7"),
        ("DELETE FROM lg_piece", "missing"),
    ],
)
def test_a_damaged_row_is_corrupt_for_readers_and_reported_by_verify(tmp_path: Path, sql: str, reason: str) -> None:
    path = tmp_path / "a.db"
    with Holdfast(str(path), clock=CLOCK) as hf:
        put(hf.tenant("acme"), "t", "1", pieces=[b"piece"], parent="00")
        assert hf.tenant("acme").checkpoints.verify().damaged == []
    raw = apsw.Connection(str(path))
    raw.execute(sql)
    raw.close()
    with Holdfast(str(path)) as hf:
        acme = hf.tenant("acme")
        for read in (acme.checkpoints.find, acme.checkpoints.history, acme.checkpoints.list):
            with raises(Corrupt):
                read("t")
        checked = acme.checkpoints.verify()
        assert [(damage.thread_id, damage.user) for damage in checked.damaged] == [("t", None)]
        assert reason in checked.damaged[0].reason
        assert (checked.threads, checked.checkpoints) == (1, 1)


def test_verify_reports_an_unreadable_row_and_checks_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Holdfast(str(path), clock=CLOCK) as hf:
        for thread in ("s", "t", "u"):
            for id in ("1", "2", "3"):
                put(hf.tenant("acme"), thread, id, pieces=[f"piece {id}".encode()])
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE lg_checkpoint SET metadata = '{' WHERE thread = 1 AND checkpoint_id = x'ff32'")
    raw.execute("UPDATE lg_checkpoint SET leans = '[1' WHERE thread = 2 AND checkpoint_id = x'ff31'")
    raw.execute("UPDATE lg_piece SET body = x'00' WHERE log = 3 AND place = 3")
    raw.close()
    with Holdfast(str(path)) as hf:
        checked = hf.tenant("acme").checkpoints.verify()
    assert [(damage.thread_id, damage.id) for damage in checked.damaged] == [("s", "2"), ("t", "1"), ("u", "3")]
    assert (checked.threads, checked.checkpoints) == (3, 9)
