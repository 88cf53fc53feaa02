"""How long a request may take. One look a moment at all that is under way is cheaper than a timer for each."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from holdfast.clock import monotonic_s

_LOOK_S = 0.25


class Deadlines:
    """Everything that is under way, and until when."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._look_s = seconds, min(_LOOK_S, seconds / 2)
        self._under_way: dict[Deadline, float] = {}
        self._is_looking = False

    def begin(self) -> Deadline:
        """A deadline for the running task, as a block around what it does."""
        return Deadline(self)

    def _add(self, deadline: Deadline) -> None:
        self._under_way[deadline] = monotonic_s() + self._seconds
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _remove(self, deadline: Deadline) -> None:
        del self._under_way[deadline]

    def _look(self) -> None:
        now_s = monotonic_s()
        for deadline, until_s in self._under_way.items():
            if until_s <= now_s:
                deadline.pass_()
        self._is_looking = bool(self._under_way)
        if self._is_looking:
            asyncio.get_running_loop().call_later(self._look_s, self._look)


class Deadline:
    """One that is under way. Leaving the block too late is a ``TimeoutError``."""

    __slots__ = ("_all", "_passed", "_task")

    def __init__(self, all: Deadlines) -> None:
        self._all, self._passed = all, False
        self._task: asyncio.Task[Any] | None = None

    def pass_(self) -> None:
        """It is too late: end what the task is doing."""
        if not self._passed and self._task is not None:
            self._passed = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._all._add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._all._remove(self)
        if not self._passed or self._task is None:
            return
        # Somebody else may want the task to end as well, and that must not be forgotten.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error
