"""Positions of pieces as ranges and bytes, and which checkpoints pruning must keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt
from holdfast.stores.execution.checkpoints import ancestry, ranges
from holdfast.stores.execution.checkpoints.ancestry import CheckpointNode
from holdfast.stores.execution.checkpoints.channel_marks import decode_marks
from tests.errors import raises

POSITIONS = st.lists(st.integers(1, 60) | st.integers(1, 2**40), max_size=40)


@given(POSITIONS)
def test_positions_survive_encoding(positions: list[int]) -> None:
    spans = ranges.ranges_of(positions)
    assert ranges.positions_in(spans) == positions
    assert ranges.load(ranges.dump(spans)) == spans
    assert ranges.unseal(ranges.seal(spans, b"x", b"y"), "it", b"x", b"y") == spans


@given(
    st.lists(
        st.integers(1, 60)
        | st.builds(lambda first, count: (first, first + count - 1), st.integers(1, 60), st.integers(1, 9))
    )
)
def test_positions_can_be_passed_as_ranges(positions: list[int | ranges.Range]) -> None:
    one_by_one = ranges.expand(positions)
    assert ranges.first_positions(positions) == [ranges.expand([item])[0] for item in positions]
    assert ranges.ranges_of(positions) == ranges.ranges_of(one_by_one)
    assert ranges.positions_in(ranges.ranges_of(positions)) == one_by_one


@given(st.lists(st.integers(1, 60), max_size=40))
def test_a_union_and_its_complement_cover_everything(positions: list[int]) -> None:
    live = ranges.union(ranges.ranges_of(positions))
    assert ranges.positions_in(live) == sorted(set(positions))
    dead = ranges.subtract((1, 60), live)
    assert sorted([*ranges.positions_in(live), *ranges.positions_in(dead)]) == list(range(1, 61))
    assert all(first <= last for first, last in dead)


def test_a_list_that_only_grew_takes_three_bytes() -> None:
    assert len(ranges.dump([(1, 1_000)])) == 3
    assert ranges.dump([]) == b""


@pytest.mark.parametrize("encoded", [b"\x02", b"\x80", b"\x01\x00", b"\x00\x00", b"\x02\xff\xff\xff\xff\xff\x7f"])
def test_invalid_bytes_are_corrupt(encoded: bytes) -> None:
    with pytest.raises(Corrupt):
        ranges.load(encoded)


@given(POSITIONS, st.binary(min_size=1, max_size=20), st.integers(0, 10_000))
def test_a_flipped_bit_breaks_the_checksum(positions: list[int], beside: bytes, at: int) -> None:
    sealed = ranges.seal(ranges.ranges_of(positions), beside)
    both = bytearray(sealed + beside)
    both[at // 8 % len(both)] ^= 1 << at % 8
    with raises(Corrupt):
        ranges.unseal(bytes(both[: len(sealed)]), "the checkpoint", bytes(both[len(sealed) :]))


def node(id: str, parent: str | None, *marks: str, namespace: str = "", written: str = "") -> CheckpointNode:
    """Return a node: one letter is a channel without a value; ``~`` before it means changed, ``+`` means a snapshot."""
    stored = [mark if len(mark) > 1 else f"={mark}" for mark in marks]
    return CheckpointNode(namespace, id, parent, decode_marks(stored), None, written_channels=frozenset(written))


def test_required_ancestors_stay() -> None:
    nodes = [node("5", "4", "a"), node("4", "3", "a", "b"), node("3", "2"), node("2", "1"), node("1", None)]
    assert ancestry.newest(nodes, 1) == {("", "5")}
    assert ancestry.with_required_ancestors(nodes, [("", "5")]) == {("", "5"), ("", "4"), ("", "3")}
    assert ancestry.with_required_ancestors(nodes, [("", "3")]) == {("", "3")}
    assert ancestry.with_required_ancestors(nodes, []) == set()


def test_ancestors_are_required_until_every_channel_has_its_value() -> None:
    nodes = [node("4", "3", "a", "b"), node("3", "2", "b"), node("2", "1", "a", "b"), node("1", None)]
    assert ancestry.with_required_ancestors(nodes, [("", "4")]) == {("", id) for id in "4321"}
    resolved = [node("4", "3", "a"), node("3", "2", "b"), node("2", "1", "a", "b"), node("1", None)]
    assert ancestry.with_required_ancestors(resolved, [("", "4")]) == {("", "4"), ("", "3")}


def test_a_cycle_or_a_missing_parent_ends_the_walk() -> None:
    circle = [node("2", "1", "a"), node("1", "2", "a")]
    assert ancestry.with_required_ancestors(circle, [("", "2")]) == {("", "2")}, "the value does not exist anywhere"
    written = [node("3", "2", "a"), node("2", "1", "a", written="a"), node("1", "2", "a", written="a")]
    assert ancestry.with_required_ancestors(written, [("", "3")]) == {("", id) for id in "321"}
    assert ancestry.with_required_ancestors([node("2", "1", "a")], [("", "2")]) == {("", "2")}


def test_an_emptied_channel_needs_no_ancestor_and_one_made_of_writes_needs_all() -> None:
    emptied = [node("4", "3", "a"), node("3", "2", "~a"), node("2", "1"), node("1", None, written="a")]
    assert ancestry.with_required_ancestors(emptied, [("", "4")]) == {("", "4")}
    changed = [node("4", "3", "~a"), node("3", "2", "~a", written="a"), node("2", "1"), node("1", None, written="a")]
    assert ancestry.with_required_ancestors(changed, [("", "4")]) == {("", id) for id in "432"}, (
        "a plain value, then a write"
    )
    never = [node("4", "3", "~a"), node("3", "2", "~a", written="a"), node("2", "1", "a"), node("1", None, "b")]
    assert ancestry.with_required_ancestors(never, [("", "4")]) == {("", id) for id in "4321"}
    own = [node("3", "2", "~a", written="a"), node("2", "1"), node("1", None)]
    assert ancestry.with_required_ancestors(own, [("", "3")]) == {("", "3"), ("", "2")}, (
        "a write that is already applied"
    )


def test_a_snapshot_is_required_even_without_later_writes() -> None:
    nodes = [node("3", "2", "~a"), node("2", "1", "+a"), node("1", None, "a", written="a")]
    assert ancestry.with_required_ancestors(nodes, [("", "3")]) == {("", "3"), ("", "2")}


def test_each_namespace_keeps_its_own_newest() -> None:
    nodes = [node("3", "2"), node("2", None), node("9", None, namespace="child"), node("1", None, namespace="child")]
    assert ancestry.newest(nodes, 1) == {("", "3"), ("child", "9")}
    assert ancestry.newest(nodes, 5) == {checkpoint.key for checkpoint in nodes}
    assert ancestry.newest(nodes, 0) == set()
