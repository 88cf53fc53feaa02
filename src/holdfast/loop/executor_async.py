"""Drives a loop in an event loop.

An asynchronous model or tool runs as a task, a synchronous one in its own thread. The executor renews the lease while it waits
for them. When the lease is lost, it cancels the tasks and stops at once; a thread cannot be stopped, but its result is dropped.
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
from .commands import Command, CommandGenerator, StoreCommand
from .config import LoopConfig, log
from .events import Ending, ModelFailure
from .executor import MAX_TRIES, RENEWALS_PER_LEASE, calls_of, retry_delay_s
from .tool_execution import make_call_async, run_in_thread
from .tools import CallAnswer, parallel_batches

T = TypeVar("T")
RELEASE_S = 5.0
"""Maximum seconds that a cancelled drive takes to release its run."""


async def run_loop(
    config: LoopConfig,
    tenant: AsyncTenantHandle,
    generator: CommandGenerator[Ending],
    run: Run | None,
    should_continue: Callable[[], bool],
) -> Ending:
    """Carry out the loop's commands until it ends. If cancelled, release the run first."""
    executor = AsyncExecutor(config, tenant, run, should_continue)
    answer: Any = None
    error: HoldfastError | None = None
    try:
        while True:
            try:
                command = generator.send(answer) if error is None else generator.throw(error)
            except StopIteration as stop:
                ending: Ending = stop.value
                return ending
            answer, error = None, None
            try:
                answer = await executor.carry_out(command)
            except HoldfastError as raised:
                error = raised
    except Exception:
        raise  # let the lease expire: that counts as an attempt, so the run is not retried without end
    except BaseException:
        await executor.release()
        raise


class AsyncExecutor:
    """Carries out commands one after the other."""

    def __init__(
        self, config: LoopConfig, tenant: AsyncTenantHandle, run: Run | None, should_continue: Callable[[], bool]
    ) -> None:
        self._config, self._tenant, self._should_continue = config, tenant, should_continue
        self._run, self._is_lost = run, False

    async def carry_out(self, command: Command) -> Any:
        """Carry out one command and return its result."""
        if isinstance(command, do.LONG_COMMANDS):
            return await self._with_lease(self._carry_out_long(command))
        if isinstance(command, StoreCommand):
            answer = await self._call_store(command)
            if isinstance(command, do.ClaimRun):
                self._run = answer
            return answer
        if isinstance(command, do.Now):
            return from_us(self._tenant.clock.now_us())
        if isinstance(command, do.ShouldContinue):
            return self._should_continue()
        assert isinstance(command, do.EmitEvent)
        return self._config.tell(command.event)

    async def release(self) -> None:
        """Release the run if it is held and the database can be reached."""
        if self._run is None:
            return
        self._is_lost = True
        release = asyncio.ensure_future(self._tenant.leases.release(self._run.id, epoch=self._run.epoch))
        end_s = monotonic_s() + RELEASE_S
        while not release.done() and monotonic_s() < end_s:
            try:
                await asyncio.wait({release}, timeout=end_s - monotonic_s())
            except asyncio.CancelledError:
                continue  # cancelled again: the release is already under way
        if release.done() and not release.cancelled() and release.exception() is not None:
            log.debug("cannot release run %s: %s", self._run.id, release.exception())

    async def _call_store(self, command: StoreCommand) -> Any:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return await command.on(self._tenant)
            except (Unavailable, OutcomeUnknown) as error:
                if attempt == MAX_TRIES or (isinstance(error, OutcomeUnknown) and isinstance(command, do.ClaimRun)):
                    raise
                await asyncio.sleep(retry_delay_s(attempt))
        return None

    async def _with_lease(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that may take longer than the lease lasts, and renew the lease during it."""
        assert self._run is not None
        interval_s = self._run.lease_ms / 1_000 / RENEWALS_PER_LEASE
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=interval_s))[0]:
                await self._renew(self._run)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=RELEASE_S)

    async def _renew(self, run: Run) -> None:
        try:
            await self._tenant.leases.renew(run.id, epoch=run.epoch)
        except (Conflict, NotFound) as error:
            self._is_lost = True
            raise Fenced(f"the lease of run {run.id} was lost: {error}") from error
        except HoldfastError as error:
            log.warning("cannot renew the lease of run %s: %s", run.id, error)

    async def _carry_out_long(self, command: Command) -> Any:
        if isinstance(command, do.AskModel):
            return await self._ask(command)
        if isinstance(command, do.CallTools):
            return await self._call_tools(command)
        if isinstance(command, do.Sleep):
            return await asyncio.sleep(command.seconds)
        assert isinstance(command, StoreCommand)
        return await command.on(self._tenant)

    async def _ask(self, command: do.AskModel) -> Any:
        model = self._config.model
        try:
            if inspect.iscoroutinefunction(model) or inspect.iscoroutinefunction(getattr(model, "__call__", None)):  # noqa: B004
                return await model(command.turn)
            answer = await asyncio.wrap_future(run_in_thread(lambda: model(command.turn)))
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            return ModelFailure(error)

    async def _call_tools(self, command: do.CallTools) -> list[CallAnswer]:
        assert self._run is not None
        tools = dict(self._config.tools)
        answers: list[CallAnswer] = []
        for batch in parallel_batches(calls_of(self._config, command, self._run, self._tenant, lambda: self._is_lost)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(make_call_async(tools, call)) for _, call in batch]
            answers += [task.result() for task in tasks]
        return answers
