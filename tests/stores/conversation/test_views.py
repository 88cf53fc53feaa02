"""Views, compared with a model: a set of positions in the order of their ``seq``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt
from holdfast.stores.conversation import views
from holdfast.stores.conversation.views import BLOCK, LAST, MAX_BLOCKS, PLAIN, View
from tests.errors import raises

END = 30
"""No message of these tests has a higher ``seq``, so a finite set can model an open end."""


@st.composite
def branched(draw: st.DrawFn) -> View:
    """Return the view of a branch after any number of forks, each before the end."""
    view: View = PLAIN
    for block in range(1, 1 + draw(st.integers(0, 5))):
        seq = draw(st.integers(0, END - 1))
        view = views.followed_by(views.until(view, seq), block, seq + 1)
    return view


@st.composite
def holed(draw: st.DrawFn) -> View:
    """Return such a view with positions removed, some of them added again elsewhere."""
    view = draw(branched())
    removed = draw(st.sets(st.sampled_from(sorted(positions(view)))))
    moved = draw(st.sets(st.sampled_from(sorted(removed)))) if removed else set()
    return views.including(views.without(view, removed), [9 * BLOCK + views.seq_of(position) for position in moved])


def positions(view: View) -> set[int]:
    """Return all positions of a view up to the end."""
    return {
        position
        for first, last in view
        for position in range(first, min(last, views.block_of(first) + END) + 1)
        if views.seq_of(position) <= END
    }


def by_seq(found: set[int]) -> list[int]:
    return sorted(found, key=views.seq_of)


def in_order(view: View) -> list[int]:
    """Return the positions of a view in the order of its ranges."""
    return [
        position for first, last in view for position in range(first, min(last, views.block_of(first) + END) + 1)
    ]  # fmt: skip


def is_tidy(view: View) -> bool:
    """Return whether the ranges are sorted by ``seq``, distinct, not empty and merged where possible."""
    numbers = [views.seq_of(position) for position in in_order(view)]
    apart = all(one[1] + 1 != other[0] for one, other in pairwise(view))
    return numbers == sorted(set(numbers)) and all(first <= last for first, last in view) and apart


@given(branched() | holed())
def test_a_view_is_tidy_and_shows_each_seq_once(view: View) -> None:
    assert is_tidy(view)
    assert in_order(view) == by_seq(positions(view))


@given(branched() | holed())
def test_a_view_round_trips(view: View) -> None:
    assert views.load(views.dump(view)) == view


def test_the_default_view_is_not_stored() -> None:
    assert views.dump(PLAIN) is None
    assert views.dump(views.including(views.without(PLAIN, [3]), [3])) is None
    assert views.dump([(1, LAST)]) is None
    assert views.load(None) == PLAIN == ((1, LAST),)


@pytest.mark.parametrize("stored", ["", "{}", "[1]", "[[1]]", "[[1, 2, 3]]", '[["a", "b"]]', "[[1, 2]", "null"])
def test_a_damaged_view_is_corrupt(stored: str) -> None:
    with raises(Corrupt):
        views.load(stored)


@given(st.integers(0, MAX_BLOCKS), st.integers(1, LAST))
def test_a_position_is_a_block_and_a_seq(block: int, seq: int) -> None:
    position = views.first_of(block) + seq
    assert views.seq_of(position) == seq
    assert views.block_of(position) == views.first_of(block)
    assert 0 < position < 2**63


@given(branched() | holed(), st.integers(0, END))
def test_until_keeps_messages_up_to_the_given_one(view: View, seq: int) -> None:
    kept = views.until(view, seq)
    assert positions(kept) == {position for position in positions(view) if views.seq_of(position) <= seq}
    assert is_tidy(kept)


@given(branched() | holed(), st.integers(0, END + 1), st.integers(0, END + 1))
def test_within_keeps_messages_between_the_bounds(view: View, after: int, before: int) -> None:
    kept = tuple(views.within(view, after, before))
    assert positions(kept) == {position for position in positions(view) if after < views.seq_of(position) < before}
    assert is_tidy(kept)


@given(branched() | holed(), st.integers(0, END - 1))
def test_a_fork_continues_in_its_own_block(view: View, seq: int) -> None:
    fork = views.followed_by(views.until(view, seq), 7, seq + 1)
    own = {7 * BLOCK + number for number in range(seq + 1, END + 1)}
    assert positions(fork) == {position for position in positions(view) if views.seq_of(position) <= seq} | own
    assert fork[-1] == (7 * BLOCK + seq + 1, 7 * BLOCK + LAST)
    assert len(fork) <= len(view) + 1


@given(branched() | holed(), st.integers(0, 9 * BLOCK + END))
def test_shows_is_set_membership(view: View, position: int) -> None:
    near = position % (END + 1) + views.block_of(position)
    if views.seq_of(near):
        assert views.shows(view, near) == (near in positions(view))


@given(branched() | holed(), st.integers(0, END))
def test_position_of_finds_the_position_of_a_seq(view: View, seq: int) -> None:
    result = [position for position in positions(view) if views.seq_of(position) == seq]
    assert views.position_of(view, seq) == (result[0] if result else None)


@given(st.data(), branched() | holed())
def test_without_is_set_difference(data: st.DataObject, view: View) -> None:
    removed = (
        data.draw(st.lists(st.sampled_from([*sorted(positions(view)), 5, 8 * BLOCK + 3]))) if positions(view) else [5]
    )
    left = views.without(view, removed)
    assert positions(left) == positions(view) - {*removed}
    assert is_tidy(left)


@given(st.data(), branched())
def test_including_removed_positions_restores_the_view(data: st.DataObject, view: View) -> None:
    removed = data.draw(st.lists(st.sampled_from(sorted(positions(view)))))
    assert views.including(views.without(view, removed), removed) == view
    assert views.including(view, removed) == view, "a position is not added twice"
    assert views.including(view, []) == view


@given(st.data(), branched())
def test_including_is_set_union(data: st.DataObject, view: View) -> None:
    removed = data.draw(st.sets(st.sampled_from(sorted(positions(view)))))
    some = data.draw(st.sets(st.sampled_from(sorted(removed)))) if removed else set()
    moved = {9 * BLOCK + views.seq_of(position) for position in removed - some}
    result = views.including(views.without(view, removed), [*some, *moved])
    assert positions(result) == positions(view) - removed | some | moved
    assert is_tidy(result)


def test_thousands_of_positions_are_removed_and_added_quickly() -> None:
    """Every other position of a long log: the time grows linearly with the number of ranges."""
    removed = range(2, 40_000, 2)
    left = views.without(PLAIN, removed)
    assert len(left) == len(removed) + 1
    assert views.including(left, removed) == PLAIN


@st.composite
def written(draw: st.DrawFn) -> tuple[View, int]:
    """Return the view of a branch, and the position of its next message."""
    view = draw(branched() | holed().filter(lambda view: view[-1][1] & LAST == LAST))
    first = views.block_of(view[-1][0])
    start = views.seq_of(view[-1][0])
    return view, first + draw(st.integers(start, max(start, END)))


def written_positions(view: View, next_position: int) -> list[int]:
    """Return the positions of a view that were written to."""
    block = views.block_of(next_position)
    return [
        position for position in by_seq(positions(view)) if not (views.block_of(position) == block and position >= next_position)
    ]  # fmt: skip


@given(written(), st.integers(0, 40), st.integers(0, END + 1), st.integers(0, END + 1))
def test_first_positions_covers_the_first_written_positions(
    given_: tuple[View, int], count: int, after: int, before: int
) -> None:
    view, next_position = given_
    ranges = tuple(views.within(view, after, before))
    near = views.first_positions(ranges, count, next_position)
    assert written_positions(near, next_position) == written_positions(ranges, next_position)[:count]
    assert is_tidy(near)


@given(written(), st.integers(0, 40), st.integers(0, END + 1), st.integers(0, END + 1))
def test_last_positions_covers_the_last_written_positions(
    given_: tuple[View, int], count: int, after: int, before: int
) -> None:
    view, next_position = given_
    ranges = tuple(views.within(view, after, before))
    near = views.last_positions(ranges, count, next_position)
    existing = written_positions(ranges, next_position)
    assert written_positions(near, next_position) == existing[max(0, len(existing) - count) :]
    assert is_tidy(near)


@given(written(), st.integers(1, 40))
def test_an_open_end_stays_open(given_: tuple[View, int], count: int) -> None:
    """Another caller may append between reading a view and reading through it."""
    view, next_position = given_
    assert views.last_positions(view, count, next_position)[-1][1] == view[-1][1]
    many: Any = views.first_positions(view, 10**6, next_position)
    assert many == view == views.last_positions(view, 10**6, next_position)
