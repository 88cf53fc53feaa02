"""Positions in a log in their stored form: usually consecutive ranges, so usually a few bytes.

A checkpoint is an ordered list of pieces; its stored form is the list of their positions. A list that only grew
is consecutive in the log, so its thousand positions are one range. A range is stored as two numbers: the distance from the
last position of the previous range, and the number of further positions, seven bits to a byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain

from ....errors import Corrupt

Range = tuple[int, int]
"""First and last position."""
CHECKSUM_BYTES = 4
MAX_POSITIONS = 2**24
"""Maximum pieces of a checkpoint: a damaged row must not exhaust the memory."""


def ranges_of(positions: Iterable[int | Range]) -> list[Range]:
    """Return positions and ranges as ranges, in their order."""
    ranges: list[Range] = []
    first = last = -1
    for item in positions:
        start, end = (item, item) if isinstance(item, int) else item
        if start == last + 1 and last >= 0:
            last = end
            continue
        if last >= 0:
            ranges.append((first, last))
        first, last = start, end
    if last >= 0:
        ranges.append((first, last))
    return ranges


def positions_in(ranges: Iterable[Range]) -> list[int]:
    """Return the positions of ranges, in their order."""
    return list(chain.from_iterable(range(first, last + 1) for first, last in ranges))


def first_positions(positions: Iterable[int | Range]) -> list[int]:
    """Return positions in their order, and of each range the first."""
    return [item if isinstance(item, int) else item[0] for item in positions]


def expand(positions: Iterable[int | Range]) -> list[int]:
    """Return positions in their order, and all positions of each range."""
    return positions_in((item, item) if isinstance(item, int) else item for item in positions)


def union(ranges: Iterable[Range]) -> list[Range]:
    """Return the same positions in ascending order, each once."""
    union: list[Range] = []
    for first, last in sorted(ranges):
        if union and first <= union[-1][1] + 1:
            union[-1] = (union[-1][0], max(last, union[-1][1]))
        else:
            union.append((first, last))
    return union


def subtract(whole: Range, taken: Sequence[Range]) -> list[Range]:
    """Return the parts of a range that are in none of the ``taken`` ranges, which are ascending and disjoint."""
    rest: list[Range] = []
    start, end = whole
    for first, last in taken:
        if first > start:
            rest.append((start, min(first - 1, end)))
        start = max(start, last + 1)
    if start <= end:
        rest.append((start, end))
    return [span for span in rest if span[0] <= span[1]]


def dump(ranges: Iterable[Range]) -> bytes:
    """Encode ranges as bytes."""
    encoded = bytearray()
    end = 0
    for first, last in ranges:
        distance = first - end
        # The sign is the lowest bit, so that a negative distance is as short as a positive one.
        _append_number(encoded, distance << 1 if distance >= 0 else (-distance << 1) - 1)
        _append_number(encoded, last - first)
        end = last
    return bytes(encoded)


def load(encoded: bytes) -> list[Range]:
    """Decode the ranges that ``dump`` encoded.

    Raises:
        Corrupt: these bytes were not written by ``dump``.
    """
    numbers = _read_numbers(bytes(encoded))
    ranges: list[Range] = []
    end = 0
    for step, count in zip(numbers[::2], numbers[1::2], strict=False):
        first = end + (step >> 1 if not step & 1 else -((step + 1) >> 1))
        end = first + count
        ranges.append((first, end))
    sizes = [last - first + 1 for first, last in ranges]
    if len(numbers) % 2 or sum(sizes) > MAX_POSITIONS or min((first for first, _ in ranges), default=1) < 1:
        raise Corrupt("the positions of a checkpoint are damaged")
    return ranges


def seal(ranges: Iterable[Range], *contents: bytes) -> bytes:
    """Encode ranges with a checksum over them and the other columns of the row."""
    encoded = dump(ranges)
    return _checksum(encoded, contents) + encoded


def unseal(sealed: bytes, label: str, *contents: bytes) -> list[Range]:
    """Decode the ranges that ``seal`` encoded.

    Raises:
        Corrupt: the ranges or the other columns of the row are damaged.
    """
    encoded = bytes(sealed)[CHECKSUM_BYTES:]
    if bytes(sealed)[:CHECKSUM_BYTES] != _checksum(encoded, contents):
        raise Corrupt(f"{label} is damaged: its checksum does not match")
    return load(encoded)


def head(namespace: str, id: str, parent: str | None, leans: Sequence[str]) -> bytes:
    """Return the identity of a checkpoint and its channels without a value, to be included in the checksum."""
    return "\0".join([namespace, id, parent or "", *leans]).encode("utf-8", "surrogatepass")


def _checksum(encoded: bytes, contents: Sequence[bytes]) -> bytes:
    total = zlib.crc32(encoded)
    for content in contents:
        total = zlib.crc32(content, total)
    return total.to_bytes(CHECKSUM_BYTES, "big")


def _append_number(encoded: bytearray, value: int) -> None:
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)


def _read_numbers(encoded: bytes) -> list[int]:
    numbers: list[int] = []
    value = shift = 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        numbers.append(value)
        value = shift = 0
    if shift:
        raise Corrupt("the positions of a checkpoint are damaged")
    return numbers
