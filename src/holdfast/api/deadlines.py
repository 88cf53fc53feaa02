"""How long a request may take. One look a moment at all that is under way is cheaper than a timer for each."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from holdfast.clock import monotonic_s

from .bodies import Disconnected, until_gone

_LOOK_S = 0.25


class Deadlines:
    """Everything that is under way, and until when."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._look_s = seconds, min(_LOOK_S, seconds / 2)
        self._under_way: dict[Deadline, float] = {}
        self._is_looking = False

    def begin(self) -> Deadline:
        """A deadline for the running task, from now to the end of the block that this is to be around."""
        deadline = Deadline(self._under_way, asyncio.current_task())
        self._under_way[deadline] = monotonic_s() + self._seconds
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(self._look_s, self._look)
        return deadline

    def _look(self) -> None:
        now_s = monotonic_s()
        for deadline, until_s in self._under_way.items():
            if until_s <= now_s:
                deadline.pass_()
            else:
                deadline.watch()
        self._is_looking = bool(self._under_way)
        if self._is_looking:
            asyncio.get_running_loop().call_later(self._look_s, self._look)


class Deadline:
    """One that is under way. Leaving the block too late is a ``TimeoutError``, without its client ``Disconnected``."""

    __slots__ = ("_is_gone", "_passed", "_receive", "_task", "_under_way", "_watching")

    def __init__(self, under_way: dict[Deadline, float], task: asyncio.Task[Any] | None) -> None:
        self._under_way, self._task, self._passed, self._is_gone = under_way, task, False, False
        self._receive: Receive | None = None
        self._watching: asyncio.Task[None] | None = None

    def needs_client(self, receive: Receive) -> None:
        """End what the task is doing as well when the client goes away. The body must have been read."""
        self._receive = receive

    def watch(self) -> None:
        """Begin to watch the client, which quick requests never need."""
        if self._receive is not None and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(until_gone(self._receive))
            self._watching.add_done_callback(self._left)

    def pass_(self) -> None:
        """It is too late: end what the task is doing."""
        if not self._passed and self._task is not None:
            self._passed = True
            self._task.cancel()

    def _left(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and not self._passed:
            self._is_gone = True
            self.pass_()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._under_way[self]
        if self._watching is not None:
            self._watching.cancel()
        if not self._passed or self._task is None:
            return
        # Somebody else may want the task to end as well, and that must not be forgotten.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise (Disconnected if self._is_gone else TimeoutError) from error
