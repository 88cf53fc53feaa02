"""Views against what they mean: a view is a set of places, in the order of their numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt
from holdfast.stores.conversation import views
from holdfast.stores.conversation.views import BLOCK, LAST, MAX_BLOCKS, PLAIN, View

END = 30
"""No message of these tests has a higher number, so a set can stand for what is open at the end."""


@st.composite
def branched(draw: st.DrawFn) -> View:
    """What a branch shows after any number of forks, each somewhere before the end."""
    view: View = PLAIN
    for block in range(1, 1 + draw(st.integers(0, 5))):
        seq = draw(st.integers(0, END - 1))
        view = views.followed_by(views.until(view, seq), block, seq + 1)
    return view


@st.composite
def holed(draw: st.DrawFn) -> View:
    """The same with places taken out, some of them put back elsewhere."""
    view = draw(branched())
    removed = draw(st.sets(st.sampled_from(sorted(places(view)))))
    moved = draw(st.sets(st.sampled_from(sorted(removed)))) if removed else set()
    return views.including(views.without(view, removed), [9 * BLOCK + views.seq_of(place) for place in moved])


def places(view: View) -> set[int]:
    """All places of a view up to the end."""
    return {
        place
        for first, last in view
        for place in range(first, min(last, views.block_of(first) + END) + 1)
        if views.seq_of(place) <= END
    }


def by_seq(found: set[int]) -> list[int]:
    return sorted(found, key=views.seq_of)


def in_order(view: View) -> list[int]:
    """The places of a view as they stand in it."""
    return [
        place for first, last in view for place in range(first, min(last, views.block_of(first) + END) + 1)
    ]  # fmt: skip


def is_tidy(view: View) -> bool:
    """In the order of numbers, nothing twice, nothing empty, and nothing in two pieces that could be in one."""
    numbers = [views.seq_of(place) for place in in_order(view)]
    apart = all(one[1] + 1 != other[0] for one, other in pairwise(view))
    return numbers == sorted(set(numbers)) and all(first <= last for first, last in view) and apart


@given(branched() | holed())
def test_a_view_is_tidy_and_shows_each_number_once(view: View) -> None:
    assert is_tidy(view)
    assert in_order(view) == by_seq(places(view))


@given(branched() | holed())
def test_a_view_is_read_back_as_it_was_written(view: View) -> None:
    assert views.load(views.dump(view)) == view


def test_the_plain_view_is_not_written_down() -> None:
    assert views.dump(PLAIN) is None
    assert views.dump(views.including(views.without(PLAIN, [3]), [3])) is None
    assert views.dump([(1, LAST)]) is None
    assert views.load(None) == PLAIN == ((1, LAST),)


@pytest.mark.parametrize("stored", ["", "{}", "[1]", "[[1]]", "[[1, 2, 3]]", '[["a", "b"]]', "[[1, 2]", "null"])
def test_a_view_that_cannot_be_read_says_so(stored: str) -> None:
    with pytest.raises(Corrupt, match="view of a session"):
        views.load(stored)


@given(st.integers(0, MAX_BLOCKS), st.integers(1, LAST))
def test_a_place_is_a_block_and_a_number(block: int, seq: int) -> None:
    place = views.first_of(block) + seq
    assert views.seq_of(place) == seq
    assert views.block_of(place) == views.first_of(block)
    assert 0 < place < 2**63


@given(branched() | holed(), st.integers(0, END))
def test_until_keeps_what_is_no_later(view: View, seq: int) -> None:
    kept = views.until(view, seq)
    assert places(kept) == {place for place in places(view) if views.seq_of(place) <= seq}
    assert is_tidy(kept)


@given(branched() | holed(), st.integers(0, END + 1), st.integers(0, END + 1))
def test_within_keeps_what_is_between(view: View, after: int, before: int) -> None:
    kept = tuple(views.within(view, after, before))
    assert places(kept) == {place for place in places(view) if after < views.seq_of(place) < before}
    assert is_tidy(kept)


@given(branched() | holed(), st.integers(0, END - 1))
def test_a_fork_goes_on_in_a_block_of_its_own(view: View, seq: int) -> None:
    fork = views.followed_by(views.until(view, seq), 7, seq + 1)
    own = {7 * BLOCK + number for number in range(seq + 1, END + 1)}
    assert places(fork) == {place for place in places(view) if views.seq_of(place) <= seq} | own
    assert fork[-1] == (7 * BLOCK + seq + 1, 7 * BLOCK + LAST)
    assert len(fork) <= len(view) + 1


@given(branched() | holed(), st.integers(0, 9 * BLOCK + END))
def test_shows_is_membership(view: View, place: int) -> None:
    near = place % (END + 1) + views.block_of(place)
    if views.seq_of(near):
        assert views.shows(view, near) == (near in places(view))


@given(branched() | holed(), st.integers(0, END))
def test_the_place_of_a_number_is_where_it_was_written(view: View, seq: int) -> None:
    result = [place for place in places(view) if views.seq_of(place) == seq]
    assert views.position_of(view, seq) == (result[0] if result else None)


@given(st.data(), branched() | holed())
def test_without_is_a_difference(data: st.DataObject, view: View) -> None:
    removed = data.draw(st.lists(st.sampled_from([*sorted(places(view)), 5, 8 * BLOCK + 3]))) if places(view) else [5]
    left = views.without(view, removed)
    assert places(left) == places(view) - {*removed}
    assert is_tidy(left)


@given(st.data(), branched())
def test_including_what_was_taken_out_gives_back_the_view(data: st.DataObject, view: View) -> None:
    removed = data.draw(st.lists(st.sampled_from(sorted(places(view)))))
    assert views.including(views.without(view, removed), removed) == view
    assert views.including(view, removed) == view, "what is there already is not put there twice"
    assert views.including(view, []) == view


@given(st.data(), branched())
def test_including_is_a_union(data: st.DataObject, view: View) -> None:
    removed = data.draw(st.sets(st.sampled_from(sorted(places(view)))))
    some = data.draw(st.sets(st.sampled_from(sorted(removed)))) if removed else set()
    moved = {9 * BLOCK + views.seq_of(place) for place in removed - some}
    result = views.including(views.without(view, removed), [*some, *moved])
    assert places(result) == places(view) - removed | some | moved
    assert is_tidy(result)


def test_a_thousand_places_are_taken_out_and_put_back_quickly() -> None:
    """Every other place of a long log: as many pieces as places, and the time grows with them, not with their square."""
    removed = range(2, 40_000, 2)
    left = views.without(PLAIN, removed)
    assert len(left) == len(removed) + 1
    assert views.including(left, removed) == PLAIN


@st.composite
def written(draw: st.DrawFn) -> tuple[View, int]:
    """What a branch shows, and where its next message goes."""
    view = draw(branched() | holed().filter(lambda view: view[-1][1] & LAST == LAST))
    first = views.block_of(view[-1][0])
    start = views.seq_of(view[-1][0])
    return view, first + draw(st.integers(start, max(start, END)))


def there_now(view: View, next_position: int) -> list[int]:
    """The places of a view that something was written to."""
    block = views.block_of(next_position)
    return [
        place for place in by_seq(places(view)) if not (views.block_of(place) == block and place >= next_position)
    ]  # fmt: skip


@given(written(), st.integers(0, 40), st.integers(0, END + 1), st.integers(0, END + 1))
def test_the_first_places_are_the_first_that_were_written(
    given_: tuple[View, int], count: int, after: int, before: int
) -> None:
    view, next_position = given_
    ranges = tuple(views.within(view, after, before))
    near = views.first_positions(ranges, count, next_position)
    assert there_now(near, next_position) == there_now(ranges, next_position)[:count]
    assert is_tidy(near)


@given(written(), st.integers(0, 40), st.integers(0, END + 1), st.integers(0, END + 1))
def test_the_last_places_are_the_last_that_were_written(
    given_: tuple[View, int], count: int, after: int, before: int
) -> None:
    view, next_position = given_
    ranges = tuple(views.within(view, after, before))
    near = views.last_positions(ranges, count, next_position)
    existing = there_now(ranges, next_position)
    assert there_now(near, next_position) == existing[max(0, len(existing) - count) :]
    assert is_tidy(near)


@given(written(), st.integers(1, 40))
def test_what_is_open_at_the_end_stays_open(given_: tuple[View, int], count: int) -> None:
    """Somebody may append between looking up a view and reading through it."""
    view, next_position = given_
    assert views.last_positions(view, count, next_position)[-1][1] == view[-1][1]
    many: Any = views.first_positions(view, 10**6, next_position)
    assert many == view == views.last_positions(view, 10**6, next_position)
