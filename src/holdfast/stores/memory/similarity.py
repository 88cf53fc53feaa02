"""Similarity of embeddings: the cosine of the angle between them, from -1 to 1.

Embeddings are stored as little-endian 32-bit floats. The computation uses numpy if it is installed; without it, the results are
the same, but slower. A search may compare any number of embeddings, so it works in slices of bounded size, each outside of the
event loop: a cancelled search stops after its current slice.
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
"""Bytes of embeddings per slice."""
SLICE_ROWS = 1_000
"""The most embeddings per slice, however short they are."""
INLINE_BYTES = MIB // 16
"""Bytes up to which comparing is faster than starting a thread."""
Scored = list[tuple[float, str]]


def pack(embedding: Sequence[float] | None, limits: Limits) -> bytes:
    """Convert an embedding to its stored form; ``None`` becomes empty bytes.

    Raises:
        InvalidInput: the embedding is not a list of finite numbers.
        LimitExceeded: the embedding has more dimensions than ``embedding_floats``.
    """
    if embedding is None:
        return b""
    if isinstance(embedding, (str, bytes)) or not isinstance(embedding, Sequence):
        raise InvalidInput("embedding must be a list of numbers", field="embedding")
    limits.check("embedding_floats", len(embedding), "embedding")
    try:
        packed = struct.pack(f"<{len(embedding)}f", *embedding)
    except (struct.error, OverflowError):
        raise InvalidInput("embedding must be a list of numbers that fit into 32 bits", field="embedding") from None
    if not all(map(math.isfinite, unpack(packed))):
        raise InvalidInput("embedding must be a list of finite numbers", field="embedding")
    return packed


def unpack(packed: bytes) -> list[float]:
    """Convert a stored embedding to its numbers."""
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def slice_rows(query: bytes) -> int:
    """Return the number of embeddings per slice, for embeddings of the size of ``query``."""
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
    """Merge the best results so far with those of one more slice: rows that begin with an id and an embedding.

    Args:
        least: lower scores are raised to this one.
        fits: a filter for the rows.
    """

    def rank() -> Scored:
        rows = part if fits is None else [row for row in part if fits(row)]
        scores = cosines(query, [bytes(row[1]) for row in rows])
        scored = [(max(least, score), row[0]) for score, row in zip(scores, rows, strict=True)]
        scored = [pair for pair in scored if pair[0] >= min_score]
        return heapq.nsmallest(limit, [*best, *scored], key=lambda pair: (-pair[0], pair[1]))

    # Only an incomplete slice, which is the last one, is computed inline: many slices in a row would block the event loop.
    is_quick = fits is None and len(part) < slice_rows(query) and len(part) * len(query) <= INLINE_BYTES
    return rank() if is_quick else await work(engine, rank)


def cosines(query: bytes, others: Sequence[bytes]) -> list[float]:
    """Return the cosine of ``query`` with each of these embeddings of the same size; 0 if one of the two is a zero vector."""
    numpy = _numpy()
    return _cosines_in_python(query, others) if numpy is None else _cosines_in_numpy(numpy, query, others)


def _cosines_in_python(query: bytes, others: Sequence[bytes]) -> list[float]:
    numbers = unpack(query)
    length = math.sqrt(sum(map(mul, numbers, numbers)))
    cosines = []
    for other in map(unpack, others):
        lengths = length * math.sqrt(sum(map(mul, other, other)))
        cosines.append(_clamp(sum(map(mul, numbers, other)) / lengths) if lengths else 0.0)
    return cosines


def _cosines_in_numpy(numpy: Any, query: bytes, others: Sequence[bytes]) -> list[float]:
    if not others:
        return []
    numbers = numpy.frombuffer(query, "<f4").astype("f8")
    rows = numpy.frombuffer(b"".join(others), "<f4").reshape(len(others), len(numbers)).astype("f8")
    lengths = numpy.sqrt((rows * rows).sum(axis=1)) * math.sqrt(float(numbers @ numbers))
    dots = rows @ numbers
    return [_clamp(float(dot) / float(size)) if size else 0.0 for dot, size in zip(dots, lengths, strict=True)]


def _clamp(cosine: float) -> float:
    return max(-1.0, min(1.0, cosine))


@cache
def _numpy() -> Any:
    """Return the module numpy, or ``None`` if it is not installed. Imported at first use, because importing it is slow."""
    return import_module("numpy") if find_spec("numpy") else None
