"""A worker: claims runs of many tenants and drives several of them at once until it is stopped.

A stopped worker claims no more runs. Each run it holds continues to the end of its iteration and is then released, so that
another worker can continue it at once; a run that takes longer than ``grace_s`` is cancelled and released where it is.
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
from .loop import TTL_MS, Loop, process_name

Handler = Loop | Callable[[AsyncTenantHandle, Run], Loop | Awaitable[Loop]]

CONCURRENCY = 8
"""Default number of runs that one worker drives at once."""
GRACE_S = 20.0
"""Default seconds that runs get to finish their iteration when the worker stops."""
MIN_IDLE_S = 0.05
"""Seconds between two polls of the queue just after a run was found."""
MAX_IDLE_S = 2.0
"""Seconds between two polls after a long idle time."""

log = logging.getLogger("holdfast.worker")


class Worker:
    """Drives queued runs with the loop ``handler``, or with the loop that it returns for a tenant and a run.

    Args:
        hf: an open Holdfast.
        handler: a ``Loop``, or a function from the tenant's handle and the run to one.
        concurrency: maximum number of runs that are driven at once.
        tenants: only runs of these tenants; by default, of all tenants.
        agents: only runs of these agents; by default, of all agents.
        holder: the name of this worker, as runs show it.
        ttl_ms: milliseconds after the last renewal until other workers may take a run over.
        grace_s: seconds that runs get to finish their iteration when the worker stops.
        ids: the source of the worker's name suffix and of the jitter of its polling.

    Raises:
        InvalidInput: an argument is invalid.
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
            message = f"concurrency must be a whole number of at least 1, not {concurrency!r}"
            raise InvalidInput(message, field="concurrency")
        if not isinstance(handler, Loop) and not callable(handler):
            raise InvalidInput(
                f"handler must be a Loop or a function that returns one, not {handler!r}", field="handler"
            )
        self._hf, self._handler, self._concurrency = hf, handler, concurrency
        self._tenants = None if tenants is None else [*tenants]
        self._agents, self._ttl_ms, self._grace_s = agents, ttl_ms, grace_s
        self._ids = ids or RandomIds()
        self.holder = holder or f"{process_name()}:{self._ids.new()[-6:]}"
        self._stopping = asyncio.Event()
        self._drives: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Stop claiming runs and end after the current iterations. A second call cancels them at once."""
        if self._stopping.is_set():
            self._grace_s = 0.0
            for task in self._drives:
                task.cancel()
        self._stopping.set()

    async def work(self) -> None:
        """Drive runs until stopped. When this returns, the worker holds no run any more."""
        log.info("%s is ready to drive %d runs at once", self.holder, self._concurrency)
        idle_s = MIN_IDLE_S
        # Maintenance covers all tenants, so only a worker of all tenants does it.
        upkeep = asyncio.ensure_future(keep_up(self._hf)) if self._tenants is None else None
        try:
            while not self._stopping.is_set():
                claimed = await self._claim() if len(self._drives) < self._concurrency else None
                if claimed is not None:
                    self._start(claimed)
                    idle_s = MIN_IDLE_S
                elif await self._wait(idle_s):
                    idle_s = MIN_IDLE_S
                else:
                    idle_s = min(2 * idle_s, MAX_IDLE_S)
        finally:
            if upkeep is not None:
                upkeep.cancel()
            await self._shut_down()

    async def _claim(self) -> ClaimedRun | None:
        """Claim the run that has waited longest, if there is one."""
        try:
            if self._tenants is None:
                return await self._hf.run_queue.claim(self.holder, ttl_ms=self._ttl_ms, agents=self._agents)
            for _ in self._tenants:
                name = self._tenants.pop(0)
                self._tenants.append(name)  # round-robin: no tenant's runs take precedence
                leases = self._hf.tenant(name).leases
                run = await leases.claim(self.holder, ttl_ms=self._ttl_ms, agents=self._agents)
                if run is not None:
                    return ClaimedRun(name, run)
        except HoldfastError as error:
            log.warning("cannot claim a run: %s", error)
        return None

    async def _wait(self, idle_s: float) -> bool:
        """Wait ``idle_s``, plus jitter of up to half of it, so that workers do not poll together. Return whether a run ended."""
        jitter = int(self._ids.new()[-6:], 16) / 0xFFFFFF
        stop = asyncio.ensure_future(self._stopping.wait())
        awaited: set[asyncio.Future[object]] = {stop, *self._drives}  # type: ignore[arg-type]
        is_full = len(self._drives) >= self._concurrency
        try:
            completed, _ = await asyncio.wait(
                awaited,
                timeout=None if is_full else idle_s * (1 + jitter / 2),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stop.cancel()
        return bool(completed)

    def _start(self, claimed: ClaimedRun) -> None:
        task = asyncio.ensure_future(self._drive(self._hf.tenant(claimed.tenant), claimed.run))
        self._drives.add(task)
        task.add_done_callback(self._drives.discard)

    async def _drive(self, tenant: AsyncTenantHandle, run: Run) -> None:
        label, began_s = f"{tenant.name} run {run.id}", monotonic_s()
        log.info(
            "%s: claimed at step %d, attempt %d, for %s", label, run.iteration, run.attempts, run.agent or "no agent"
        )
        try:
            loop = await self._loop_for(tenant, run)
            if loop is None:
                return
            ending = await loop.adrive(tenant, run, should_continue=lambda: not self._stopping.is_set())
            log.info("%s: %s in %.1f s", label, describe(ending), monotonic_s() - began_s)
        except asyncio.CancelledError:
            log.info("%s: released before the end of its iteration; another worker can continue it", label)
            raise
        except HoldfastError as error:
            log.warning("%s: left to be claimed again: %s: %s", label, type(error).__name__, error)
        except Exception:
            log.exception("%s: left to be claimed again", label)

    async def _loop_for(self, tenant: AsyncTenantHandle, run: Run) -> Loop | None:
        """Return the loop for a run. If the handler fails, fail the run with that reason; the run can be resumed later."""
        if isinstance(self._handler, Loop):
            return self._handler
        try:
            result = self._handler(tenant, run)
            loop = await result if inspect.isawaitable(result) else result
            if not isinstance(loop, Loop):
                raise InvalidInput(f"the handler returned {type(loop).__name__} instead of a Loop")
        except Exception as error:
            log.exception("%s run %s: the handler raised", tenant.name, run.id)
            await tenant.runs.fail(run.id, epoch=run.epoch, error=f"the handler raised {type(error).__name__}: {error}")
            return None
        return loop

    async def _shut_down(self) -> None:
        drives = {*self._drives}
        if drives:
            log.info("%s stops: %d runs have %g s to finish their iteration", self.holder, len(drives), self._grace_s)
            await asyncio.wait(drives, timeout=self._grace_s)
        late = {task for task in drives if not task.done()}
        for task in late:
            if not task.cancelling():
                task.cancel()
        if late:
            await asyncio.wait(late, timeout=RELEASE_S)
        log.info("%s has stopped", self.holder)


def describe(ending: Ending) -> str:
    """Return a short text about how a run ended."""
    text = f"{ending.status} at step {ending.iteration}"
    if ending.pause_until is not None:
        text += f" until {ending.pause_until:%Y-%m-%d %H:%M:%S}"
    reason = ending.error or ending.stop_reason
    return f"{text} ({reason})" if reason else text
