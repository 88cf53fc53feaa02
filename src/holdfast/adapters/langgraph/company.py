"""What a task wrote waits a moment for the checkpoint that follows it, to be saved with it in one transaction.

In an event loop LangGraph asks for the one and then, a few turns of the loop later, for the other. Each by itself is flushed to
the disk; together they are flushed once. Whoever waits in vain is as far as it was.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from .requests import Task, thread_of

TURNS_MOST = 3
"""Turns of the event loop for which a checkpoint is waited for: in the first LangGraph hears of the task's end, in the second it
asks for the checkpoint to be saved, in the third that begins."""


class Offer(Struct, eq=False):
    """What a task wrote, and whether it was saved with a checkpoint."""

    task: Task
    is_saved: asyncio.Future[bool]
    is_taken: bool = False


class Company:
    """Offers of tasks, by thread of a graph and event loop."""

    def __init__(self) -> None:
        self._offers: dict[tuple[str, asyncio.AbstractEventLoop], list[Offer]] = {}

    async def saved_with_checkpoint(self, task: Task) -> bool:
        """Wait for a checkpoint of the same thread; whether one came, and what the task wrote is saved.

        Raises:
            OutcomeUnknown: one came, and whether it is saved is not known.
        """
        loop = asyncio.get_running_loop()
        at, offer = (thread_of(task.config), loop), Offer(task, loop.create_future())
        self._offers.setdefault(at, []).append(offer)
        try:
            for _ in range(TURNS_MOST):
                await asyncio.sleep(0)
                if offer.is_taken:
                    return await offer.is_saved
        finally:
            if not offer.is_taken:
                self._withdraw(at, offer)
        return False

    def take(self, thread_id: str) -> list[Offer]:
        """Everything that is offered for a thread. Whoever takes it settles it."""
        taken = self._offers.pop((thread_id, asyncio.get_running_loop()), [])
        for each in taken:
            each.is_taken = True
        return taken

    def _withdraw(self, at: tuple[str, asyncio.AbstractEventLoop], offer: Offer) -> None:
        there = self._offers[at]
        there.remove(offer)
        if not there:
            del self._offers[at]


def settle(taken: list[Offer], outcome: bool | Exception) -> None:
    """Tell those who wait whether theirs is saved, or that it is not known."""
    for each in taken:
        if each.is_saved.done():
            continue  # nobody waits any longer
        if isinstance(outcome, Exception):
            each.is_saved.set_exception(outcome)
        else:
            each.is_saved.set_result(outcome)
