"""What tasks wrote to a checkpoint, and how one row holds all writes of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec
from msgspec import Struct

from ....errors import Corrupt
from . import ranges
from .ranges import Range

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, str, bytes, int]]).decode


class Write(Struct, frozen=True):
    """One write of a task: to which channel, and what. ``pieces`` belong to ``value``, which says what they are.

    A task's writes are told apart by ``index``. Those from 0 on are written once; a negative one is written over.
    """

    index: int
    channel: str
    value: bytes = b""
    pieces: Sequence[bytes | int | Range] = ()


class TaskWrites(Struct, frozen=True):
    """All writes of one task to one checkpoint."""

    task_id: str
    task_path: str
    writes: Sequence[Write]


class Placed(Struct, frozen=True):
    """A write whose pieces are in the log."""

    index: int
    channel: str
    value: bytes
    places: Sequence[int]


def pack(writes: Sequence[Placed]) -> tuple[bytes, bytes]:
    """Writes as the two columns of a row, in the order of their indices."""
    writes = sorted(writes, key=lambda each: each.index)
    packed = _encode([(each.index, each.channel, each.value, len(each.places)) for each in writes])
    spans = ranges.ranges_of(place for each in writes for place in each.places)
    return packed, ranges.seal(spans, packed)


def unpack(packed: bytes, sealed: bytes) -> list[Placed]:
    """The writes of a row.

    Raises:
        Corrupt: the row is damaged.
    """
    rest = iter(ranges.places_in(unsealed(packed, sealed)))
    try:
        return [
            Placed(index, channel, value, list(islice(rest, count))) for index, channel, value, count in _decode(packed)
        ]
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the writes of a task cannot be read: {error}") from error


def unsealed(packed: bytes, sealed: bytes) -> list[Range]:
    """The places of a row's pieces."""
    return ranges.unseal(sealed, "what a task wrote to a checkpoint", bytes(packed))


def merged(before: Sequence[Placed], new: Sequence[Placed]) -> list[Placed]:
    """A task's writes after it wrote again."""
    by_index = {each.index: each for each in before}
    for each in new:
        if each.index < 0 or each.index not in by_index:
            by_index[each.index] = each
    return list(by_index.values())


def filled(task_id: str, task_path: str, writes: Sequence[Placed], pieces: Mapping[int, bytes]) -> TaskWrites:
    """A task's writes with their pieces."""
    return TaskWrites(
        task_id,
        task_path,
        [Write(each.index, each.channel, each.value, tuple(pieces[place] for place in each.places)) for each in writes],
    )
