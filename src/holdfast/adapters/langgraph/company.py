"""What a task wrote waits a moment for the checkpoint that follows it, to be saved with it in one transaction.

In an event loop LangGraph asks for the one and then, a few turns of the loop later, for the other. Each by itself is flushed to
the disk; together they are flushed once. Whoever waits in vain is as far as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct

from holdfast.errors import OutcomeUnknown

from .requests import Task, thread_of

T = TypeVar("T")
Place = tuple[str, asyncio.AbstractEventLoop]
TURNS_MOST = 3
"""Turns of the event loop for which a checkpoint is waited for: in the first LangGraph hears of the task's end, in the second it
asks for the checkpoint to be saved, in the third that begins."""


class _Offer(Struct, eq=False):
    """What a task wrote, and whether it was saved with a checkpoint."""

    task: Task
    is_saved: asyncio.Future[bool]
    is_taken: bool = False

    def settle(self, outcome: bool | Exception) -> None:
        """Tell whoever waits whether it is saved, or that it is not known."""
        if self.is_saved.done():
            return  # nobody waits any longer
        if isinstance(outcome, Exception):
            self.is_saved.set_exception(outcome)
        else:
            self.is_saved.set_result(outcome)


class _Saving(Struct, eq=False):
    """Checkpoints of one thread that are being saved."""

    over: asyncio.Event
    count: int = 0


class Company:
    """Tasks and checkpoints that find each other, by thread of a graph and event loop."""

    def __init__(self) -> None:
        self._offers: dict[Place, list[_Offer]] = {}
        self._saving: dict[Place, _Saving] = {}

    async def saved_with_checkpoint(self, task: Task) -> bool:
        """Wait for a checkpoint of the same thread; whether one came, and what the task wrote is saved.

        Raises:
            OutcomeUnknown: one came, and whether it is saved is not known.
        """
        loop = asyncio.get_running_loop()
        at, offer = (thread_of(task.config), loop), _Offer(task, loop.create_future())
        self._offers.setdefault(at, []).append(offer)
        try:
            await self._next_checkpoint(at, offer)
            return offer.is_taken and await offer.is_saved
        finally:
            if not offer.is_taken:
                self._withdraw(at, offer)

    async def save_checkpoint(self, thread_id: str, save: Callable[[Sequence[Task]], Awaitable[T]]) -> T:
        """Save a checkpoint, together with what is offered. If that fails the checkpoint is saved alone, and so is each task, so
        that everybody hears of its own error."""
        at = thread_id, asyncio.get_running_loop()
        with self._saved(at):
            offers = self._offers.pop(at, [])
            for each in offers:
                each.is_taken = True
            outcome: bool | Exception = False
            try:
                if offers:
                    saved = await save([each.task for each in offers])
                    outcome = True
                    return saved
            except OutcomeUnknown as error:
                outcome = error
                raise
            except Exception:
                outcome = False  # whose error it is raises it again, below or alone
            finally:
                for each in offers:
                    each.settle(outcome)
            return await save(())

    async def _next_checkpoint(self, at: Place, offer: _Offer) -> None:
        turns = 0
        while turns < TURNS_MOST and not offer.is_taken:
            saving = self._saving.get(at)
            if saving is None:
                turns += 1
                await asyncio.sleep(0)
            else:  # the one before: LangGraph asks for the next when this one is over
                turns = 0
                await saving.over.wait()

    @contextmanager
    def _saved(self, at: Place) -> Iterator[None]:
        saving = self._saving.setdefault(at, _Saving(asyncio.Event()))
        saving.count += 1
        try:
            yield
        finally:
            saving.count -= 1
            if not saving.count:
                del self._saving[at]
                saving.over.set()

    def _withdraw(self, at: Place, offer: _Offer) -> None:
        there = self._offers[at]
        there.remove(offer)
        if not there:
            del self._offers[at]
