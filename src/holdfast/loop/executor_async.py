"""Driving a loop in an event loop.

An asynchronous model or tool runs as a task, a synchronous one in a thread of its own. Whoever waits for them renews the lease
meanwhile, and when it is lost cancels the tasks and stops at once; a thread cannot be stopped, but what it answers is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast import AsyncTenantHandle
from holdfast.clock import from_us, monotonic_s
from holdfast.errors import Conflict, Fenced, HoldfastError, NotFound, OutcomeUnknown, Unavailable
from holdfast.types import Run

from . import commands as do
from .commands import Command, StoreCommand
from .core import Driving
from .events import Ending, Failure
from .executor import BEATS, TRIES, calls_of, wait_s
from .plan import Plan, log
from .tool_execution import in_thread, make_call_async
from .tools import Answer, batches

T = TypeVar("T")
RELEASE_S = 5.0
"""Seconds that a cancelled drive takes at most to hand its run over."""


async def carry_on(
    plan: Plan, acme: AsyncTenantHandle, driving: Driving[Ending], run: Run | None, go_on: Callable[[], bool]
) -> Ending:
    """Carry out what a loop wants done, until it has come to its end. Cancelled, it hands the run over first."""
    hands = AsyncHands(plan, acme, run, go_on)
    answer: Any = None
    error: HoldfastError | None = None
    try:
        while True:
            try:
                command = driving.send(answer) if error is None else driving.throw(error)
            except StopIteration as done:
                ending: Ending = done.value
                return ending
            answer, error = None, None
            try:
                answer = await hands.carry_out(command)
            except HoldfastError as raised:
                error = raised
    except Exception:
        raise  # the lease is left to run out: that counts as an attempt, so it is not tried for ever
    except BaseException:
        await hands.release()
        raise


class AsyncHands:
    """What carries out commands, one after the other."""

    def __init__(self, plan: Plan, acme: AsyncTenantHandle, run: Run | None, go_on: Callable[[], bool]) -> None:
        self._plan, self._acme, self._go_on = plan, acme, go_on
        self._run, self._is_lost = run, False

    async def carry_out(self, command: Command) -> Any:
        """One command."""
        if isinstance(command, do.LONG):
            return await self._kept(self._long(command))
        if isinstance(command, StoreCommand):
            answer = await self._store(command)
            if isinstance(command, do.ClaimRun):
                self._run = answer
            return answer
        if isinstance(command, do.Now):
            return from_us(self._acme.clock.now_us())
        if isinstance(command, do.GoOn):
            return self._go_on()
        assert isinstance(command, do.Tell)
        return self._plan.tell(command.event)

    async def release(self) -> None:
        """Hand the run over, if it is held and the database can be reached."""
        if self._run is None:
            return
        self._is_lost = True
        work = asyncio.ensure_future(self._acme.leases.release(self._run.id, epoch=self._run.epoch))
        end_s = monotonic_s() + RELEASE_S
        while not work.done() and monotonic_s() < end_s:
            try:
                await asyncio.wait({work}, timeout=end_s - monotonic_s())
            except asyncio.CancelledError:
                continue  # cancelled once more: it is on its way already
        if work.done() and not work.cancelled() and work.exception() is not None:
            log.debug("run %s was not released: %s", self._run.id, work.exception())

    async def _store(self, command: StoreCommand) -> Any:
        for tried in range(1, TRIES + 1):
            try:
                return await command.on(self._acme)
            except (Unavailable, OutcomeUnknown) as error:
                if tried == TRIES or (isinstance(error, OutcomeUnknown) and isinstance(command, do.ClaimRun)):
                    raise
                await asyncio.sleep(wait_s(tried))
        return None

    async def _kept(self, work: Coroutine[Any, Any, T]) -> T:
        """Something that may take longer than the lease lasts."""
        assert self._run is not None
        every_s = self._run.lease_ms / 1_000 / BEATS
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=every_s))[0]:
                await self._renew(self._run)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=RELEASE_S)

    async def _renew(self, run: Run) -> None:
        try:
            await self._acme.leases.renew(run.id, epoch=run.epoch)
        except (Conflict, NotFound) as error:
            self._is_lost = True
            raise Fenced(f"run {run.id} was lost: {error}") from error
        except HoldfastError as error:
            log.warning("the lease of run %s was not renewed: %s", run.id, error)

    async def _long(self, command: Command) -> Any:
        if isinstance(command, do.AskModel):
            return await self._ask(command)
        if isinstance(command, do.CallTools):
            return await self._call_tools(command)
        if isinstance(command, do.Sleep):
            return await asyncio.sleep(command.seconds)
        assert isinstance(command, StoreCommand)
        return await command.on(self._acme)

    async def _ask(self, command: do.AskModel) -> Any:
        model = self._plan.model
        try:
            if inspect.iscoroutinefunction(model) or inspect.iscoroutinefunction(getattr(model, "__call__", None)):  # noqa: B004
                return await model(command.turn)
            answer = await asyncio.wrap_future(in_thread(lambda: model(command.turn)))
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            return Failure(error)

    async def _call_tools(self, command: do.CallTools) -> list[Answer]:
        assert self._run is not None
        tools = dict(self._plan.tools)
        answers: list[Answer] = []
        for together in batches(calls_of(self._plan, command, self._run, self._acme, lambda: self._is_lost)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(make_call_async(tools, call)) for _, call in together]
            answers += [task.result() for task in tasks]
        return answers
