"""Run long calls and long computations outside the event loop.

``HeavyCall`` marks a call that may take longer than an event loop should block: the asynchronous SQLite engine runs it in a
thread, however fast the disk is. ``compute`` runs plain Python work between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from .protocol import Call, Connection, Engine

T = TypeVar("T")

INLINE_CHARS = 20_000
"""Characters of text up to which a computation runs in the event loop; below this, a thread costs more than it saves."""


class HeavyCall(Generic[T]):
    """A call that must not run in the event loop."""

    __slots__ = ("_call",)

    def __init__(self, call: Call[T]) -> None:
        self._call = call

    def __call__(self, connection: Connection) -> Coroutine[Any, Any, T]:
        return self._call(connection)


class ComputationCancelled(Exception):
    """The caller of a computation was cancelled."""


class Cancellation:
    """Cancellation flag of a computation that runs in a thread."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raise if the caller was cancelled. Call it between pieces of work of a few milliseconds."""
        if self.requested:
            raise ComputationCancelled


async def compute(engine: Engine, function: Callable[[Cancellation], T], *, chars: int) -> T:
    """Run a function that processes ``chars`` characters and return its result; in a thread if it would block an event loop.

    If the caller is cancelled, the function stops at its next ``check``.
    """
    cancellation = Cancellation()
    if engine.blocking or chars <= INLINE_CHARS:
        return function(cancellation)
    import asyncio  # imported lazily: synchronous programs do not need it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(cancellation)  # no event loop: the simulator steps coroutines itself
    try:
        return await asyncio.to_thread(function, cancellation)
    finally:
        cancellation.requested = True
