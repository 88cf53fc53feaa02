"""Periodic background jobs of a server.

Several servers may run on one database. Jobs that only one of them needs to run are run by the leader: the process that holds
a lease in the database and renews it. If the leader dies, another process takes over when the lease has expired. Leadership
only avoids duplicate work. Every job is safe with two leaders, because sweeps have epochs and erasures run at least once.

To add a job, add it to ``jobs_of``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from .compatibility import ERASURE_STREAM
from .erasure.consumer import EVENT, ErasureConsumer
from .errors import HoldfastError
from .handles import AsyncHoldfast
from .ids import IdSource, RandomIds
from .loop.loop import process_name
from .retention_worker import EVERY_S, RetentionWorker, describe

LEASE_S = 60
"""Seconds after its last renewal until another process may lead."""
RENEWALS = 3
"""How often the lease is renewed within ``LEASE_S``."""
ERASURES_EVERY_S = 5.0
"""Seconds between two polls for erasure requests, in the stream and in the database."""

log = logging.getLogger("holdfast.background")


class BackgroundOptions(Struct, frozen=True, kw_only=True):
    """Which background jobs a server runs, and how often."""

    retention_every_s: float = EVERY_S
    """Seconds between two sweeps of a tenant; 0 disables sweeps."""
    erasures_every_s: float = ERASURES_EVERY_S
    """Seconds between two polls for erasure requests; 0 disables them."""
    redis_url: str | None = None
    """The Redis with the stream of erasure requests. Without it, only requests made through other channels are carried out."""
    stream: str = ERASURE_STREAM
    event: str = EVENT


class PeriodicJob(Struct, frozen=True):
    """A job that is repeated at an interval."""

    name: str
    every_s: float
    work: Callable[[], Awaitable[object]]
    leader_only: bool = True


class Background:
    """Runs periodic jobs until it is stopped.

    Args:
        hf: the database that all processes share.
        jobs: the jobs to run.
        holder: the name of this process.
        lease_s: seconds after its last renewal until another process may lead.
    """

    def __init__(
        self,
        hf: AsyncHoldfast,
        jobs: Sequence[PeriodicJob],
        *,
        holder: str | None = None,
        lease_s: int = LEASE_S,
        ids: IdSource | None = None,
    ) -> None:
        self._hf, self._jobs, self._lease_s = hf, jobs, lease_s
        self._ids = ids or RandomIds()
        self.holder = holder or f"{process_name()}:{self._ids.new()[-6:]}"
        self._leads = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader."""
        return self._leads.is_set()

    def start(self) -> None:
        """Start the jobs as tasks of the running event loop."""
        self._tasks = [asyncio.create_task(self._repeat(job), name=f"holdfast {job.name}") for job in self._jobs]
        if any(job.leader_only for job in self._jobs):
            self._tasks.append(asyncio.create_task(self._lead(), name="holdfast leader"))

    async def stop(self) -> None:
        """Cancel every job and give up leadership, so that another process can lead at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.is_leader:
            self._leads.clear()
            with suppress(HoldfastError):
                await self._hf.server_settings.resign(self.holder)

    async def _lead(self) -> None:
        """Acquire and renew leadership, or wait until the leader is gone."""
        while True:
            try:
                leads = await self._hf.server_settings.lead(self.holder, lease_s=self._lease_s)
            except HoldfastError as error:
                log.debug("%s could not acquire or renew leadership: %s", self.holder, error)
                leads = False
            if leads and not self.is_leader:
                log.info("%s became the leader", self.holder)
                self._leads.set()
            elif not leads and self.is_leader:
                log.info("%s is no longer the leader", self.holder)
                self._leads.clear()
            await asyncio.sleep(self._lease_s / RENEWALS)

    async def _repeat(self, job: PeriodicJob) -> None:
        while True:
            if job.leader_only:
                await self._leads.wait()
            try:
                await job.work()
            except Exception as error:  # a failed job is retried at the next interval and does not stop other jobs
                log.warning("job %s failed: %s: %s", job.name, type(error).__name__, error)
            jitter = int(self._ids.new()[-6:], 16) / 0xFFFFFF
            await asyncio.sleep(job.every_s * (1 + jitter / 2))


@asynccontextmanager
async def background(hf: AsyncHoldfast, options: BackgroundOptions | None) -> AsyncIterator[Background | None]:
    """Run the background jobs of a server while the block lasts; without options, run none.

    Raises:
        InvalidInput: a Redis is configured, and the package ``redis`` is not installed or cannot parse the address.
    """
    if options is None:
        yield None
        return
    jobs, close = jobs_of(hf, options)
    runner = Background(hf, jobs)
    runner.start()
    try:
        yield runner
    finally:
        await runner.stop()
        await close()


def jobs_of(hf: AsyncHoldfast, options: BackgroundOptions) -> tuple[list[PeriodicJob], Callable[[], Awaitable[None]]]:
    """Return the jobs of a server, and a function that releases their resources afterwards."""
    consumer = ErasureConsumer(hf, options.redis_url, stream=options.stream, event=options.event)
    jobs = []
    if options.erasures_every_s:
        jobs.append(PeriodicJob("erasures", options.erasures_every_s, consumer.once))
    if options.retention_every_s:
        worker = RetentionWorker(hf, every_s=options.retention_every_s)

        async def sweep() -> None:
            totals = await worker.round(idle_s=int(options.retention_every_s / 2))
            log.info("%s: %s", worker.holder, describe(totals))

        jobs.append(PeriodicJob("retention", options.retention_every_s, sweep))
    return jobs, consumer.close
