"""Work that would hold up an event loop: done in a thread, or, for a synchronous caller, where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


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
