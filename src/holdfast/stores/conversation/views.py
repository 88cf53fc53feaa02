"""Views: the part of its log that a session shows.

A message's *position* in the log never changes: it is the number of the block it was written in, times 2^40, plus its ``seq``. A
branch writes to a block of its own, so two branches may both have a message 7 and neither has to move. The messages that a branch
shows are its *view*: a list of ranges of positions, in the order of ``seq``, the last of which is open-ended and grows with every
append. A branch therefore shares everything before its fork with the branch it was forked from, without a copy::

    block 0   1  2  3  4  5                 branch 0 shows  [1 ..]
    block 1            4' 5' 6'             branch 1 shows  [1 .. 3] [4' ..]

A session that was never branched has no stored view: it shows all of block 0, where position and ``seq`` are the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ...errors import Corrupt

BLOCK = 2**40
"""The number of positions in one block."""
LAST = BLOCK - 1
"""The highest ``seq``: more than a trillion messages in one branch."""

Range = tuple[int, int]
View = Sequence[Range]
PLAIN: View = ((1, LAST),)
MAX_BLOCKS = 2**22
"""The number of blocks in one session: with more, a position would not fit into 63 bits."""

_decode = msgspec.json.Decoder(tuple[Range, ...]).decode


def seq_of(position: int) -> int:
    """Return the ``seq`` of a position."""
    return position & LAST


def block_of(position: int) -> int:
    """Return the first position of the block of a position, less one: the difference between position and ``seq``."""
    return position & ~LAST


def first_of(block: int) -> int:
    """Return the difference between position and ``seq`` in the block with this number."""
    return block * BLOCK


def load(stored: str | None) -> View:
    """Return a view from its stored form.

    Raises:
        Corrupt: it cannot be parsed.
    """
    if stored is None:
        return PLAIN
    try:
        return _decode(stored)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the view of a session cannot be read: {error}") from error


def dump(view: View) -> str | None:
    """Return the stored form of a view; ``None`` for the default view."""
    view = tuple(view)
    return None if view == PLAIN else msgspec.json.encode(view).decode()


def until(view: View, seq: int) -> View:
    """Return the part of a view up to and including a message."""
    return tuple(within(view, 0, seq + 1))


def within(view: View, after: int, before: int) -> Iterator[Range]:
    """Yield the ranges of a view between two messages, excluding both."""
    for first, last in view:
        block = block_of(first)
        low, high = max(first, block + after + 1), min(last, block + before - 1)
        if low <= high:
            yield low, high


def followed_by(view: View, block: int, seq: int) -> View:
    """Return a view that continues in another block from this message on."""
    start = first_of(block)
    return (*view, (start + seq, start + LAST))


def shows(view: View, position: int) -> bool:
    """Return whether a view includes a position."""
    return any(first <= position <= last for first, last in view)


def position_of(view: View, seq: int) -> int | None:
    """Return the position of the message with this ``seq``, or ``None`` if the view does not include it."""
    for first, last in view:
        if seq_of(first) <= seq <= seq_of(last):
            return block_of(first) + seq
    return None


def without(view: View, positions: Iterable[int]) -> View:
    """Return a view without these positions."""
    removed = sorted(positions)
    remaining: list[Range] = []
    for first, last in view:
        for position in removed[bisect_left(removed, first) : bisect_right(removed, last)]:
            if first < position:
                remaining.append((first, position - 1))
            first = position + 1
        if first <= last:
            remaining.append((first, last))
    return tuple(remaining)


def including(view: View, positions: Iterable[int]) -> View:
    """Return a view with these positions too, sorted by ``seq``. No two positions may have the same ``seq``."""
    in_order = sorted(view)
    new = {position for position in positions if not _covers(in_order, position)}
    ranges = sorted([*view, *((position, position) for position in new)], key=lambda span: seq_of(span[0]))
    joined: list[Range] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first and block_of(joined[-1][1]) == block_of(first):
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def first_positions(ranges: Iterable[Range], count: int, next_position: int) -> View:
    """Return the first positions of some ranges; ``next_position`` is the first that was not written yet.

    An open end stays open if it is reached, so that concurrent appends are included.
    """
    taken: list[Range] = []
    for first, last in ranges:
        if count <= 0:
            break
        size = _last_written(first, last, next_position) - first + 1
        taken.append((first, last if size <= count else first + count - 1))
        count -= size
    return tuple(taken)


def last_positions(ranges: Iterable[Range], count: int, next_position: int) -> View:
    """Return the last positions of some ranges, as ``first_positions`` does from their beginning."""
    taken: list[Range] = []
    for first, last in reversed([*ranges]):
        if count <= 0:
            break
        end = _last_written(first, last, next_position)
        taken.append((max(first, end - count + 1), last))
        count -= end - first + 1
    return tuple(reversed(taken))


def _last_written(first: int, last: int, next_position: int) -> int:
    """Return the last position of a range that was written to, or the one before its first."""
    if block_of(first) != block_of(next_position):
        return last
    return max(first - 1, min(last, next_position - 1))


def _covers(ranges: Sequence[Range], position: int) -> bool:
    """Return whether one of these ranges, sorted by position, includes a position."""
    before = bisect_right(ranges, position, key=lambda span: span[0])
    return before > 0 and position <= ranges[before - 1][1]
