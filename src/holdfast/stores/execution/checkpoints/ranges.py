"""Places in a log, as they are written down: mostly one range after another, so mostly a few bytes.

A checkpoint is made of pieces in an order that matters; what is stored is the list of their places. A list that only grew
lies in the log as it is, so its thousand places are one range. Ranges are written as two numbers each, the distance from the
last place of the range before and the number of places that follow, seven bits to a byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain

from ....errors import Corrupt

Range = tuple[int, int]
"""First and last place."""
CHECKSUM_BYTES = 4
MAX_PLACES = 2**24
"""No checkpoint has more pieces: a damaged row must not ask for all memory there is."""


def ranges_of(places: Iterable[int | Range]) -> list[Range]:
    """Places in their order, some of which may be given as ranges, as ranges."""
    ranges: list[Range] = []
    first = last = -1
    for each in places:
        start, end = (each, each) if isinstance(each, int) else each
        if start == last + 1 and last >= 0:
            last = end
            continue
        if last >= 0:
            ranges.append((first, last))
        first, last = start, end
    if last >= 0:
        ranges.append((first, last))
    return ranges


def places_in(ranges: Iterable[Range]) -> list[int]:
    """The places of ranges, in their order."""
    return list(chain.from_iterable(range(first, last + 1) for first, last in ranges))


def firsts(places: Iterable[int | Range]) -> list[int]:
    """Places in their order, of each range the first."""
    return [each if isinstance(each, int) else each[0] for each in places]


def flat(places: Iterable[int | Range]) -> list[int]:
    """Places in their order, one by one."""
    return places_in((each, each) if isinstance(each, int) else each for each in places)


def union(ranges: Iterable[Range]) -> list[Range]:
    """The same places in ascending order, each once."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def without(whole: Range, taken: Sequence[Range]) -> list[Range]:
    """What of one range is in none of these, which are ascending and do not touch."""
    rest: list[Range] = []
    start, end = whole
    for first, last in taken:
        if first > start:
            rest.append((start, min(first - 1, end)))
        start = max(start, last + 1)
    if start <= end:
        rest.append((start, end))
    return [each for each in rest if each[0] <= each[1]]


def dump(ranges: Iterable[Range]) -> bytes:
    """Ranges as bytes."""
    written = bytearray()
    at = 0
    for first, last in ranges:
        distance = first - at
        # The sign goes into the lowest bit, so that a step back is as short as a step ahead.
        _number(written, distance << 1 if distance >= 0 else (-distance << 1) - 1)
        _number(written, last - first)
        at = last
    return bytes(written)


def load(written: bytes) -> list[Range]:
    """The ranges that were dumped.

    Raises:
        Corrupt: these bytes were not written by ``dump``.
    """
    numbers = _numbers(bytes(written))
    ranges: list[Range] = []
    at = 0
    for step, more in zip(numbers[::2], numbers[1::2], strict=False):
        first = at + (step >> 1 if not step & 1 else -((step + 1) >> 1))
        at = first + more
        ranges.append((first, at))
    sizes = [last - first + 1 for first, last in ranges]
    if len(numbers) % 2 or sum(sizes) > MAX_PLACES or min((first for first, _ in ranges), default=1) < 1:
        raise Corrupt("the places of a checkpoint are damaged")
    return ranges


def seal(ranges: Iterable[Range], *contents: bytes) -> bytes:
    """Ranges as bytes, with a checksum over them and what stands beside them."""
    written = dump(ranges)
    return _checksum(written, contents) + written


def unseal(sealed: bytes, what: str, *contents: bytes) -> list[Range]:
    """The ranges that were sealed.

    Raises:
        Corrupt: they, or what stands beside them, are not what they were.
    """
    written = bytes(sealed)[CHECKSUM_BYTES:]
    if bytes(sealed)[:CHECKSUM_BYTES] != _checksum(written, contents):
        raise Corrupt(f"{what} is damaged: what was read is not what was written")
    return load(written)


def head(namespace: str, id: str, parent: str | None, leans: Sequence[str]) -> bytes:
    """What else says which checkpoint this is and what it cannot do without, to be sealed with it."""
    return "\0".join([namespace, id, parent or "", *leans]).encode("utf-8", "surrogatepass")


def _checksum(written: bytes, contents: Sequence[bytes]) -> bytes:
    total = zlib.crc32(written)
    for each in contents:
        total = zlib.crc32(each, total)
    return total.to_bytes(CHECKSUM_BYTES, "big")


def _number(written: bytearray, value: int) -> None:
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)


def _numbers(written: bytes) -> list[int]:
    numbers: list[int] = []
    value = shift = 0
    for byte in written:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        numbers.append(value)
        value = shift = 0
    if shift:
        raise Corrupt("the places of a checkpoint are damaged")
    return numbers
