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

from collections.abc import Iterator, Sequence

import msgspec

from ...errors import Corrupt

BLOCK = 2**40
"""Places in one block."""
LAST = BLOCK - 1
"""The highest ``seq``: more than a trillion messages in one branch."""

Range = tuple[int, int]
View = Sequence[Range]
PLAIN: View = ((1, LAST),)

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


def without(view: View, places: Sequence[int]) -> View:
    """A view that no longer includes these places."""
    ranges = list(view)
    for place in sorted(places, key=seq_of):
        ranges = [left for each in ranges for left in _split(each, place)]
    return tuple(ranges)


def including(view: View, places: Sequence[int]) -> View:
    """A view that includes these places too, each where its ``seq`` belongs."""
    ranges = sorted([*view, *((place, place) for place in places)], key=lambda each: seq_of(each[0]))
    joined: list[Range] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first and block_of(joined[-1][1]) == block_of(first):
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def _split(each: Range, place: int) -> list[Range]:
    first, last = each
    if not first <= place <= last:
        return [each]
    return [left for left in ((first, place - 1), (place + 1, last)) if left[0] <= left[1]]
