"""A worker: claims runs of many tenants as they come, and drives several of them at once until it is told to stop.

Told to stop, it claims nothing more. Each run it holds goes on to the end of its iteration and is then released, so that another
worker goes on at once; what takes longer than ``grace_s`` is cancelled and released where it is.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence

from holdfast import AsyncHoldfast, AsyncTenantHandle, IdSource, RandomIds
from holdfast.clock import monotonic_s
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.maintenance import keep_up
from holdfast.types import ClaimedRun, Run

from .events import Ending
from .executor_async import RELEASE_S
from .loop import TTL_MS, Loop, this_process

Handler = Loop | Callable[[AsyncTenantHandle, Run], Loop | Awaitable[Loop]]

CONCURRENCY = 8
"""Runs that one worker drives at once, unless it is told otherwise."""
GRACE_S = 20.0
"""Seconds that runs get to come to the end of their iteration when the worker stops."""
IDLE_FIRST_S = 0.05
"""Seconds between two looks into the queue, when there was something a moment ago."""
IDLE_MOST_S = 2.0
"""The same when there has been nothing for long."""

log = logging.getLogger("holdfast.worker")


class Worker:
    """Drives whatever runs there are, with the loop that ``handler`` is, or that it returns for a tenant and a run.

    Args:
        hf: an open Holdfast.
        handler: a ``Loop``, or a function from the tenant's handle and the run to one.
        concurrency: runs that are driven at once.
        tenants: only theirs; without it, those of all tenants.
        agents: only theirs; without it, those of all agents.
        holder: the name of this worker, as runs show it.
        ttl_ms: milliseconds after the last sign of life until others may take a run over.
        grace_s: seconds that runs get to come to the end of their iteration when the worker stops.
        ids: where the jitter of its waiting comes from.

    Raises:
        InvalidInput: an argument cannot be used.
    """

    def __init__(
        self,
        hf: AsyncHoldfast,
        handler: Handler,
        *,
        concurrency: int = CONCURRENCY,
        tenants: Sequence[str] | None = None,
        agents: Sequence[str] | None = None,
        holder: str | None = None,
        ttl_ms: int = TTL_MS,
        grace_s: float = GRACE_S,
        ids: IdSource | None = None,
    ) -> None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
            raise InvalidInput(f"concurrency must be a whole number from 1 on, not {concurrency!r}")
        if not isinstance(handler, Loop) and not callable(handler):
            raise InvalidInput(f"a handler is a Loop, or a function that returns one, not {handler!r}")
        self._hf, self._handler, self._concurrency = hf, handler, concurrency
        self._tenants = None if tenants is None else [*tenants]
        self._agents, self._ttl_ms, self._grace_s = agents, ttl_ms, grace_s
        self._ids = ids or RandomIds()
        self.holder = holder or f"{this_process()}:{self._ids.new()[-6:]}"
        self._stopping = asyncio.Event()
        self._driven: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Claim nothing more and come to an end. Said a second time, without waiting for anything."""
        if self._stopping.is_set():
            self._grace_s = 0.0
            for task in self._driven:
                task.cancel()
        self._stopping.set()

    async def work(self) -> None:
        """Drive runs until told to stop. When this returns, nothing is held any more."""
        log.info("%s is ready for %d runs at once", self.holder, self._concurrency)
        idle_s = IDLE_FIRST_S
        # Of all tenants, so only where this worker is for all of them.
        upkeep = asyncio.ensure_future(keep_up(self._hf)) if self._tenants is None else None
        try:
            while not self._stopping.is_set():
                claimed = await self._claim() if len(self._driven) < self._concurrency else None
                if claimed is not None:
                    self._begin(claimed)
                    idle_s = IDLE_FIRST_S
                elif await self._rest(idle_s):
                    idle_s = IDLE_FIRST_S
                else:
                    idle_s = min(2 * idle_s, IDLE_MOST_S)
        finally:
            if upkeep is not None:
                upkeep.cancel()
            await self._wind_down()

    async def _claim(self) -> ClaimedRun | None:
        """The run that has waited longest, or none."""
        try:
            if self._tenants is None:
                return await self._hf.run_queue.claim(self.holder, ttl_ms=self._ttl_ms, agents=self._agents)
            for _ in self._tenants:
                name = self._tenants.pop(0)
                self._tenants.append(name)  # so that no tenant's runs come before all of another's
                leases = self._hf.tenant(name).leases
                run = await leases.claim(self.holder, ttl_ms=self._ttl_ms, agents=self._agents)
                if run is not None:
                    return ClaimedRun(name, run)
        except HoldfastError as error:
            log.warning("no run could be claimed: %s", error)
        return None

    async def _rest(self, idle_s: float) -> bool:
        """Wait a while, up to half of it more, so that many workers do not all look at once; whether a run ended meanwhile."""
        jitter = int(self._ids.new()[-6:], 16) / 0xFFFFFF
        stopped = asyncio.ensure_future(self._stopping.wait())
        everything: set[asyncio.Future[object]] = {stopped, *self._driven}  # type: ignore[arg-type]
        is_full = len(self._driven) >= self._concurrency
        try:
            done, _ = await asyncio.wait(
                everything,
                timeout=None if is_full else idle_s * (1 + jitter / 2),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopped.cancel()
        return bool(done)

    def _begin(self, claimed: ClaimedRun) -> None:
        task = asyncio.ensure_future(self._drive(self._hf.tenant(claimed.tenant), claimed.run))
        self._driven.add(task)
        task.add_done_callback(self._driven.discard)

    async def _drive(self, acme: AsyncTenantHandle, run: Run) -> None:
        what, began_s = f"{acme.name} run {run.id}", monotonic_s()
        log.info(
            "%s: claimed at step %d, attempt %d, for %s", what, run.iteration, run.attempts, run.agent or "no agent"
        )
        try:
            loop = await self._loop_for(acme, run)
            if loop is None:
                return
            ending = await loop.adrive(acme, run, go_on=lambda: not self._stopping.is_set())
            log.info("%s: %s in %.1f s", what, describe(ending), monotonic_s() - began_s)
        except asyncio.CancelledError:
            log.info("%s: given up where it was; somebody else goes on", what)
            raise
        except HoldfastError as error:
            log.warning("%s: left to be claimed again: %s: %s", what, type(error).__name__, error)
        except Exception:
            log.exception("%s: left to be claimed again", what)

    async def _loop_for(self, acme: AsyncTenantHandle, run: Run) -> Loop | None:
        """The loop to drive a run with. Without one the run fails, with the reason, and can be resumed when that is mended."""
        if isinstance(self._handler, Loop):
            return self._handler
        try:
            made = self._handler(acme, run)
            loop = await made if inspect.isawaitable(made) else made
            if not isinstance(loop, Loop):
                raise InvalidInput(f"the handler returned {type(loop).__name__} instead of a Loop")
        except Exception as error:
            log.exception("%s run %s: the handler raised", acme.name, run.id)
            await acme.runs.fail(run.id, epoch=run.epoch, error=f"the handler raised {type(error).__name__}: {error}")
            return None
        return loop

    async def _wind_down(self) -> None:
        driven = {*self._driven}
        if driven:
            log.info("%s stops: %d runs have %g s to come to a step", self.holder, len(driven), self._grace_s)
            await asyncio.wait(driven, timeout=self._grace_s)
        late = {task for task in driven if not task.done()}
        for task in late:
            if not task.cancelling():
                task.cancel()
        if late:
            await asyncio.wait(late, timeout=RELEASE_S)
        log.info("%s has stopped", self.holder)


def describe(ending: Ending) -> str:
    """How a run ended, in a few words."""
    words = f"{ending.status} at step {ending.iteration}"
    if ending.pause_until is not None:
        words += f" until {ending.pause_until:%Y-%m-%d %H:%M:%S}"
    why = ending.error or ending.stop_reason
    return f"{words} ({why})" if why else words
