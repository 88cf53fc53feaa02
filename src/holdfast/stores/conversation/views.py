"""What of its log a session shows.

A message's *place* in the log never changes: it is the block it was written in, times 2^40, plus its ``seq``. A branch writes
into a block of its own, so two branches may both have a message 7 and neither has to move. What a branch shows is its
*view*: a list of ranges of places, in the order of ``seq``, the last of which is open at the end and grows with every append.
A branch therefore shares everything before its fork with the branch it came from, without a copy::

    block 0   1  2  3  4  5                 branch 0 shows  [1 ..]
    block 1            4' 5' 6'             branch 1 shows  [1 .. 3] [4' ..]

A session that was never branched has no view written down: it shows all of block 0, where place and ``seq`` are the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ...errors import Corrupt

BLOCK = 2**40
"""Places in one block."""
LAST = BLOCK - 1
"""The highest ``seq``: more than a trillion messages in one branch."""

Range = tuple[int, int]
View = Sequence[Range]
PLAIN: View = ((1, LAST),)
MAX_BLOCKS = 2**22
"""Blocks one session may have: more, and a place would no longer fit into 63 bits."""

_decode = msgspec.json.Decoder(tuple[Range, ...]).decode


def seq_of(place: int) -> int:
    """The number of a message within its branch."""
    return place & LAST


def block_of(place: int) -> int:
    """The first place of the block a place is in, less one: what to add to a ``seq``."""
    return place & ~LAST


def first_of(block: int) -> int:
    """What to add to a ``seq`` in the block with this number."""
    return block * BLOCK


def load(stored: str | None) -> View:
    """A view as it is stored.

    Raises:
        Corrupt: it cannot be read.
    """
    if stored is None:
        return PLAIN
    try:
        return _decode(stored)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the view of a session cannot be read: {error}") from error


def dump(view: View) -> str | None:
    """A view as it is stored; the plain one is not."""
    view = tuple(view)
    return None if view == PLAIN else msgspec.json.encode(view).decode()


def until(view: View, seq: int) -> View:
    """What a view shows up to a message, which it includes."""
    return tuple(within(view, 0, seq + 1))


def within(view: View, after: int, before: int) -> Iterator[Range]:
    """The ranges of a view between two messages, neither of which they include."""
    for first, last in view:
        block = block_of(first)
        low, high = max(first, block + after + 1), min(last, block + before - 1)
        if low <= high:
            yield low, high


def followed_by(view: View, block: int, seq: int) -> View:
    """A view that goes on in a block of its own, from this message on."""
    start = first_of(block)
    return (*view, (start + seq, start + LAST))


def shows(view: View, place: int) -> bool:
    """Whether a view includes a place."""
    return any(first <= place <= last for first, last in view)


def place_of(view: View, seq: int) -> int | None:
    """Where the message of this number was written, if a view includes its place."""
    for first, last in view:
        if seq_of(first) <= seq <= seq_of(last):
            return block_of(first) + seq
    return None


def without(view: View, places: Iterable[int]) -> View:
    """A view that no longer includes these places."""
    gone = sorted(places)
    left: list[Range] = []
    for first, last in view:
        for place in gone[bisect_left(gone, first) : bisect_right(gone, last)]:
            if first < place:
                left.append((first, place - 1))
            first = place + 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def including(view: View, places: Iterable[int]) -> View:
    """A view that includes these places too, each where its ``seq`` belongs. No two places may have the same ``seq``."""
    there = sorted(view)
    new = {place for place in places if not _covered(there, place)}
    ranges = sorted([*view, *((place, place) for place in new)], key=lambda each: seq_of(each[0]))
    joined: list[Range] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first and block_of(joined[-1][1]) == block_of(first):
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def first_places(ranges: Iterable[Range], count: int, next_place: int) -> View:
    """So many places from the beginning of some ranges, where ``next_place`` is the first that was not written yet.

    What is open at the end stays open if it is reached, so that whatever is written meanwhile is among them.
    """
    taken: list[Range] = []
    for first, last in ranges:
        if count <= 0:
            break
        size = _written(first, last, next_place) - first + 1
        taken.append((first, last if size <= count else first + count - 1))
        count -= size
    return tuple(taken)


def last_places(ranges: Iterable[Range], count: int, next_place: int) -> View:
    """The same from the end of the ranges."""
    taken: list[Range] = []
    for first, last in reversed([*ranges]):
        if count <= 0:
            break
        written = _written(first, last, next_place)
        taken.append((max(first, written - count + 1), last))
        count -= written - first + 1
    return tuple(reversed(taken))


def _written(first: int, last: int, next_place: int) -> int:
    """The last place of a range that was written to, or the one before its first."""
    if block_of(first) != block_of(next_place):
        return last
    return max(first - 1, min(last, next_place - 1))


def _covered(ranges: Sequence[Range], place: int) -> bool:
    """Whether one of these ranges, which are in the order of places, includes a place."""
    before = bisect_right(ranges, place, key=lambda each: each[0])
    return before > 0 and place <= ranges[before - 1][1]
