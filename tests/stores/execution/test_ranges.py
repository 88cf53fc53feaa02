"""Places of pieces: ranges, their bytes, and which checkpoints must stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt
from holdfast.stores.execution.checkpoints import ancestry, ranges
from holdfast.stores.execution.checkpoints.ancestry import CheckpointNode
from holdfast.stores.execution.checkpoints.channel_marks import decode_marks

PLACES = st.lists(st.integers(1, 60) | st.integers(1, 2**40), max_size=40)


@given(PLACES)
def test_places_come_back_from_ranges_and_bytes(given_places: list[int]) -> None:
    spans = ranges.ranges_of(given_places)
    assert ranges.positions_in(spans) == given_places
    assert ranges.load(ranges.dump(spans)) == spans
    assert ranges.unseal(ranges.seal(spans, b"x", b"y"), "it", b"x", b"y") == spans


@given(
    st.lists(
        st.integers(1, 60) | st.builds(lambda at, count: (at, at + count - 1), st.integers(1, 60), st.integers(1, 9))
    )
)
def test_places_may_be_given_as_ranges(given_places: list[int | ranges.Range]) -> None:
    one_by_one = ranges.expand(given_places)
    assert ranges.first_positions(given_places) == [ranges.expand([each])[0] for each in given_places]
    assert ranges.ranges_of(given_places) == ranges.ranges_of(one_by_one)
    assert ranges.positions_in(ranges.ranges_of(given_places)) == one_by_one


@given(st.lists(st.integers(1, 60), max_size=40))
def test_a_union_and_what_is_left_are_everything(given_places: list[int]) -> None:
    live = ranges.union(ranges.ranges_of(given_places))
    assert ranges.positions_in(live) == sorted(set(given_places))
    dead = ranges.subtract((1, 60), live)
    assert sorted([*ranges.positions_in(live), *ranges.positions_in(dead)]) == list(range(1, 61))
    assert all(first <= last for first, last in dead)


def test_a_list_that_only_grew_takes_three_bytes() -> None:
    assert len(ranges.dump([(1, 1_000)])) == 3
    assert ranges.dump([]) == b""


@pytest.mark.parametrize("written", [b"\x02", b"\x80", b"\x01\x00", b"\x00\x00", b"\x02\xff\xff\xff\xff\xff\x7f"])
def test_bytes_that_are_no_places_are_damaged(written: bytes) -> None:
    with pytest.raises(Corrupt):
        ranges.load(written)


@given(PLACES, st.binary(min_size=1, max_size=20), st.integers(0, 10_000))
def test_a_flipped_bit_breaks_the_seal(given_places: list[int], beside: bytes, at: int) -> None:
    sealed = ranges.seal(ranges.ranges_of(given_places), beside)
    both = bytearray(sealed + beside)
    both[at // 8 % len(both)] ^= 1 << at % 8
    with pytest.raises(Corrupt, match="the checkpoint is damaged"):
        ranges.unseal(bytes(both[: len(sealed)]), "the checkpoint", bytes(both[len(sealed) :]))


def kin(id: str, parent: str | None, *marks: str, namespace: str = "", written: str = "") -> CheckpointNode:
    """One letter is a channel without a value; ``~`` before it says that it changed, ``+`` that it has a snapshot."""
    stored = [each if len(each) > 1 else f"={each}" for each in marks]
    return CheckpointNode(namespace, id, parent, decode_marks(stored), None, written=frozenset(written))


def test_what_is_leaned_on_stays() -> None:
    family = [kin("5", "4", "a"), kin("4", "3", "a", "b"), kin("3", "2"), kin("2", "1"), kin("1", None)]
    assert ancestry.newest(family, 1) == {("", "5")}
    assert ancestry.with_required_ancestors(family, [("", "5")]) == {("", "5"), ("", "4"), ("", "3")}
    assert ancestry.with_required_ancestors(family, [("", "3")]) == {("", "3")}
    assert ancestry.with_required_ancestors(family, []) == set()


def test_one_channel_found_and_another_still_missing() -> None:
    family = [kin("4", "3", "a", "b"), kin("3", "2", "b"), kin("2", "1", "a", "b"), kin("1", None)]
    assert ancestry.with_required_ancestors(family, [("", "4")]) == {("", each) for each in "4321"}
    found = [kin("4", "3", "a"), kin("3", "2", "b"), kin("2", "1", "a", "b"), kin("1", None)]
    assert ancestry.with_required_ancestors(found, [("", "4")]) == {("", "4"), ("", "3")}


def test_a_circle_and_a_parent_that_is_gone_end_the_walk() -> None:
    circle = [kin("2", "1", "a"), kin("1", "2", "a")]
    assert ancestry.with_required_ancestors(circle, [("", "2")]) == {("", "2")}, "nothing of the value is there"
    written = [kin("3", "2", "a"), kin("2", "1", "a", written="a"), kin("1", "2", "a", written="a")]
    assert ancestry.with_required_ancestors(written, [("", "3")]) == {("", each) for each in "321"}
    assert ancestry.with_required_ancestors([kin("2", "1", "a")], [("", "2")]) == {("", "2")}


def test_an_emptied_channel_needs_no_ancestor_and_one_made_of_writes_needs_all_of_them() -> None:
    emptied = [kin("4", "3", "a"), kin("3", "2", "~a"), kin("2", "1"), kin("1", None, written="a")]
    assert ancestry.with_required_ancestors(emptied, [("", "4")]) == {("", "4")}
    changed = [kin("4", "3", "~a"), kin("3", "2", "~a", written="a"), kin("2", "1"), kin("1", None, written="a")]
    assert ancestry.with_required_ancestors(changed, [("", "4")]) == {("", each) for each in "432"}, (
        "a plain value, then a write"
    )
    never = [kin("4", "3", "~a"), kin("3", "2", "~a", written="a"), kin("2", "1", "a"), kin("1", None, "b")]
    assert ancestry.with_required_ancestors(never, [("", "4")]) == {("", each) for each in "4321"}
    own = [kin("3", "2", "~a", written="a"), kin("2", "1"), kin("1", None)]
    assert ancestry.with_required_ancestors(own, [("", "3")]) == {("", "3"), ("", "2")}, (
        "a write that is applied already"
    )


def test_a_snapshot_is_needed_although_nothing_was_written_since() -> None:
    family = [kin("3", "2", "~a"), kin("2", "1", "+a"), kin("1", None, "a", written="a")]
    assert ancestry.with_required_ancestors(family, [("", "3")]) == {("", "3"), ("", "2")}


def test_each_namespace_keeps_its_own_newest() -> None:
    family = [kin("3", "2"), kin("2", None), kin("9", None, namespace="child"), kin("1", None, namespace="child")]
    assert ancestry.newest(family, 1) == {("", "3"), ("child", "9")}
    assert ancestry.newest(family, 5) == {each.key for each in family}
    assert ancestry.newest(family, 0) == set()
