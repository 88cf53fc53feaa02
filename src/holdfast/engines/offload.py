"""Keeping long work out of the event loop.

``Heavy`` marks a call that may work for longer than an event loop should stand still: the asynchronous SQLite engine runs it in
a thread, whatever the disk is like. ``compute`` is for work in plain Python between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from .protocol import Call, Connection, Engine

T = TypeVar("T")

INLINE_CHARS = 20_000
"""Characters of text that are processed in the event loop; handing less to a thread takes longer than processing it."""


class Heavy(Generic[T]):
    """A call that must not run in an event loop."""

    __slots__ = ("_call",)

    def __init__(self, call: Call[T]) -> None:
        self._call = call

    def __call__(self, connection: Connection) -> Coroutine[Any, Any, T]:
        return self._call(connection)


class Abandoned(Exception):
    """The caller of a computation no longer waits for it."""


class Progress:
    """Tells a computation in a thread whether its caller still waits."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        self.abandoned = False

    def check(self) -> None:
        """Stop here if the caller was cancelled. Called between two pieces of work, each of a few milliseconds."""
        if self.abandoned:
            raise Abandoned


async def compute(engine: Engine, function: Callable[[Progress], T], *, chars: int) -> T:
    """The result of a function that processes so many characters: in a thread, if that would stall an event loop.

    If the caller is cancelled, the function stops at its next ``check``.
    """
    progress = Progress()
    if engine.blocking or chars <= INLINE_CHARS:
        return function(progress)
    import asyncio  # here and not above: synchronous programs do without it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(progress)  # the simulator steps coroutines by hand
    try:
        return await asyncio.to_thread(function, progress)
    finally:
        progress.abandoned = True
