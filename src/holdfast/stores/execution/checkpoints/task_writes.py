"""The writes of tasks to a checkpoint; one row contains all writes of a task."""

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
    """One write of a task to a channel. ``value`` describes the ``pieces``.

    ``index`` identifies a write of its task. A write with an index of at least 0 never changes; one with a negative index can be
    replaced.
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


class PlacedWrite(Struct, frozen=True):
    """A write whose pieces are in the log."""

    index: int
    channel: str
    value: bytes
    positions: Sequence[int]


def pack(writes: Sequence[PlacedWrite]) -> tuple[bytes, bytes]:
    """Encode writes as the two columns of a row, in the order of their indexes."""
    writes = sorted(writes, key=lambda write: write.index)
    packed = _encode([(write.index, write.channel, write.value, len(write.positions)) for write in writes])
    spans = ranges.ranges_of(position for write in writes for position in write.positions)
    return packed, ranges.seal(spans, packed)


def unpack(packed: bytes, sealed: bytes) -> list[PlacedWrite]:
    """Decode the writes of a row.

    Raises:
        Corrupt: the row is damaged.
    """
    rest = iter(ranges.positions_in(unseal_ranges(packed, sealed)))
    try:
        return [
            PlacedWrite(index, channel, value, list(islice(rest, count)))
            for index, channel, value, count in _decode(packed)
        ]
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the writes of a task cannot be read: {error}") from error


def unseal_ranges(packed: bytes, sealed: bytes) -> list[Range]:
    """Return the positions of a row's pieces.

    Raises:
        Corrupt: the row is damaged.
    """
    return ranges.unseal(sealed, "the write of a task to a checkpoint", bytes(packed))


def merge(before: Sequence[PlacedWrite], new: Sequence[PlacedWrite]) -> list[PlacedWrite]:
    """Return the writes of a task after it wrote again."""
    by_index = {write.index: write for write in before}
    for write in new:
        if write.index < 0 or write.index not in by_index:
            by_index[write.index] = write
    return list(by_index.values())


def with_pieces(task_id: str, task_path: str, writes: Sequence[PlacedWrite], pieces: Mapping[int, bytes]) -> TaskWrites:
    """Return the writes of a task with their pieces."""
    return TaskWrites(
        task_id,
        task_path,
        [
            Write(write.index, write.channel, write.value, tuple(pieces[position] for position in write.positions))
            for write in writes
        ],
    )
