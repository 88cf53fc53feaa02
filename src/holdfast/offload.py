"""Runs work that would block an event loop in a thread; synchronous callers run it inline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

T = TypeVar("T")

INLINE_CHARS = 100_000
"""Size of a value, in characters, up to which an event loop processes it inline."""
_PART_CHARS = 10
"""Characters that each element of a value counts for, in addition to its text."""
_SCALARS = frozenset((type(None), bool, int, float, datetime))


class _Caller(Protocol):
    @property
    def blocking(self) -> bool: ...


async def work(engine: _Caller, do: Callable[[], T]) -> T:
    """Run a function that reads files or computes for more than a few milliseconds.

    A cancelled caller waits until the thread has finished, so that no work continues after it returns. Long work must therefore
    be split into short slices.
    """
    if engine.blocking:
        return do()
    import asyncio

    task = asyncio.ensure_future(asyncio.to_thread(do))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio would log that it never was
        raise


def is_large(value: Any) -> bool:
    """Return whether a JSON value or a struct is too large to be processed inline: over ``INLINE_CHARS`` characters, where each
    element counts for ``_PART_CHARS``. Stops counting as soon as the answer is known."""
    left, stack = INLINE_CHARS, [value]
    while stack:
        part = stack.pop()
        left -= _PART_CHARS
        if type(part) in _SCALARS:
            continue
        if isinstance(part, (str, bytes)):
            left -= len(part)
        elif isinstance(part, (list, tuple)):
            if len(part) * _PART_CHARS > left:
                return True
            stack += part
        elif isinstance(part, dict):
            if len(part) * 2 * _PART_CHARS > left:
                return True
            stack += part
            stack += part.values()
        elif isinstance(part, Struct):
            stack += astuple(part)
        if left < 0:
            return True
    return False
