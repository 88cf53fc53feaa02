"""Work that would hold up an event loop: done in a thread, or, for a synchronous caller, where it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

T = TypeVar("T")

INLINE_CHARS = 100_000
"""Characters of a value up to which an event loop works on it."""
_PART_CHARS = 10
"""Characters that each part of a value counts as, besides its own."""
_SCALARS = frozenset((type(None), bool, int, float, datetime))


class _Caller(Protocol):
    @property
    def blocking(self) -> bool: ...


async def work(engine: _Caller, do: Callable[[], T]) -> T:
    """Do something that reads files or computes for more than a few milliseconds.

    A caller that is cancelled waits for the thread, so that nothing goes on behind its back. What takes long is therefore
    given in slices.
    """
    if engine.blocking:
        return do()
    import asyncio

    doing = asyncio.ensure_future(asyncio.to_thread(do))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        if not doing.cancelled():
            doing.exception()  # nobody waits for it any longer
        raise


def is_large(value: Any) -> bool:
    """Whether a JSON value, or an object with fields, is more than an event loop should work on: over ``INLINE_CHARS``, where
    each part counts as some characters. It stops looking as soon as it knows."""
    left, waiting = INLINE_CHARS, [value]
    while waiting:
        each = waiting.pop()
        left -= _PART_CHARS
        if type(each) in _SCALARS:
            continue
        if isinstance(each, (str, bytes)):
            left -= len(each)
        elif isinstance(each, (list, tuple)):
            if len(each) * _PART_CHARS > left:
                return True
            waiting += each
        elif isinstance(each, dict):
            if len(each) * 2 * _PART_CHARS > left:
                return True
            waiting += each
            waiting += each.values()
        elif isinstance(each, Struct):
            waiting += astuple(each)
        if left < 0:
            return True
    return False
