"""How alike two embeddings are: the cosine of the angle between them, from -1 to 1.

Embeddings are stored as 32-bit floats, the lowest byte first. Where numpy is installed it does the work; without it the same
comes out, slower. Any number of them may have to be compared, so that is done in slices of bounded size, each outside of
the event loop: a search that is given up stops after the slice it is in.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import mul
from typing import Any

from ...engines.protocol import Engine, Row
from ...errors import InvalidInput
from ...limits import MIB, Limits
from ...offload import work

SLICE_BYTES = MIB
"""Bytes of embeddings that are read and compared at a time."""
SLICE_ROWS = 1_000
"""Embeddings that are read and compared at a time, however short they are."""
INLINE_BYTES = MIB // 16
"""Bytes that are compared more quickly than a thread is found."""
Scored = list[tuple[float, str]]


def pack(embedding: Sequence[float] | None, limits: Limits) -> bytes:
    """An embedding as it is stored; none is no bytes.

    Raises:
        InvalidInput: it is not a list of finite numbers.
        LimitExceeded: it has more dimensions than ``embedding_floats``.
    """
    if embedding is None:
        return b""
    if isinstance(embedding, (str, bytes)) or not isinstance(embedding, Sequence):
        raise InvalidInput("an embedding is a list of numbers")
    limits.check("embedding_floats", len(embedding), "embedding")
    try:
        packed = struct.pack(f"<{len(embedding)}f", *embedding)
    except (struct.error, OverflowError):
        raise InvalidInput("an embedding is a list of numbers that fit into 32 bits") from None
    if not all(map(math.isfinite, unpack(packed))):
        raise InvalidInput("an embedding is a list of finite numbers")
    return packed


def unpack(packed: bytes) -> list[float]:
    """The numbers of an embedding."""
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def slice_rows(query: bytes) -> int:
    """How many embeddings of as many dimensions make a slice."""
    return max(1, min(SLICE_ROWS, SLICE_BYTES // max(1, len(query))))


async def rank_best(
    engine: Engine,
    query: bytes,
    part: Sequence[Row],
    best: Scored,
    *,
    limit: int,
    min_score: float,
    least: float = -1.0,
    fits: Callable[[Row], bool] | None = None,
) -> Scored:
    """The best of those found so far and of one more slice: rows that begin with an id and an embedding.

    Args:
        least: lower scores count as this one.
        fits: which rows count at all.
    """

    def rank() -> Scored:
        rows = part if fits is None else [row for row in part if fits(row)]
        scores = cosines(query, [bytes(row[1]) for row in rows])
        alike = [(max(least, score), row[0]) for score, row in zip(scores, rows, strict=True)]
        alike = [each for each in alike if each[0] >= min_score]
        return heapq.nsmallest(limit, [*best, *alike], key=lambda pair: (-pair[0], pair[1]))

    # Only what is less than a slice, and so the last: many of them in a row must leave the event loop in between.
    is_quick = fits is None and len(part) < slice_rows(query) and len(part) * len(query) <= INLINE_BYTES
    return rank() if is_quick else await work(engine, rank)


def cosines(query: bytes, others: Sequence[bytes]) -> list[float]:
    """How alike each of these embeddings is to one of as many dimensions; 0 where one of the two points nowhere."""
    numpy = _numpy()
    return _cosines_in_python(query, others) if numpy is None else _cosines_in_numpy(numpy, query, others)


def _cosines_in_python(query: bytes, others: Sequence[bytes]) -> list[float]:
    wanted = unpack(query)
    length = math.sqrt(sum(map(mul, wanted, wanted)))
    found = []
    for other in map(unpack, others):
        lengths = length * math.sqrt(sum(map(mul, other, other)))
        found.append(_clamp(sum(map(mul, wanted, other)) / lengths) if lengths else 0.0)
    return found


def _cosines_in_numpy(numpy: Any, query: bytes, others: Sequence[bytes]) -> list[float]:
    if not others:
        return []
    wanted = numpy.frombuffer(query, "<f4").astype("f8")
    rows = numpy.frombuffer(b"".join(others), "<f4").reshape(len(others), len(wanted)).astype("f8")
    lengths = numpy.sqrt((rows * rows).sum(axis=1)) * math.sqrt(float(wanted @ wanted))
    dots = rows @ wanted
    return [_clamp(float(dot) / float(size)) if size else 0.0 for dot, size in zip(dots, lengths, strict=True)]


def _clamp(cosine: float) -> float:
    return max(-1.0, min(1.0, cosine))


@cache
def _numpy() -> Any:
    """numpy, if it is there; looked for when it is first needed, because it takes long to import."""
    return import_module("numpy") if find_spec("numpy") else None
