"""What a server does beside answering: a short list of periodic jobs.

Several servers may run on one database. Jobs that need to be done by only one of them are done by the leader: the process that
holds a lease in the database and renews it. If it dies, another takes over when the lease has lapsed. Leading only saves work:
what a job does is safe with two leaders, because sweeps have epochs and requests are carried out at least once.

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
"""How often a lease is renewed while it lasts."""
ERASURES_EVERY_S = 5.0
"""Seconds between two looks for requests to be erased, in the stream and in the database."""

log = logging.getLogger("holdfast.background")


class BackgroundOptions(Struct, frozen=True, kw_only=True):
    """What a server does beside answering."""

    retention_every_s: float = EVERY_S
    """Seconds between two sweeps of a tenant; 0 for none."""
    erasures_every_s: float = ERASURES_EVERY_S
    """Seconds between two looks for requests to be erased; 0 for none."""
    redis_url: str | None = None
    """A Redis whose stream says who is to be erased; without it, only what is requested by other ways is carried out."""
    stream: str = ERASURE_STREAM
    event: str = EVENT


class Job(Struct, frozen=True):
    """Something to do again and again."""

    name: str
    every_s: float
    work: Callable[[], Awaitable[object]]
    leader_only: bool = True


class Background:
    """Does periodic jobs until it is stopped.

    Args:
        hf: where the processes meet.
        jobs: what to do.
        holder: the name of this process.
        lease_s: seconds after its last renewal until another process may lead.
    """

    def __init__(
        self,
        hf: AsyncHoldfast,
        jobs: Sequence[Job],
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
        """Whether this process does the jobs of the leader."""
        return self._leads.is_set()

    def start(self) -> None:
        """Begin with the jobs, in tasks of the running event loop."""
        self._tasks = [asyncio.create_task(self._repeat(job), name=f"holdfast {job.name}") for job in self._jobs]
        if any(job.leader_only for job in self._jobs):
            self._tasks.append(asyncio.create_task(self._lead(), name="holdfast leader"))

    async def stop(self) -> None:
        """Stop every job where it is, and let another process lead at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.is_leader:
            self._leads.clear()
            with suppress(HoldfastError):
                await self._hf.server_settings.resign(self.holder)

    async def _lead(self) -> None:
        """Lead, or wait until the leader is gone."""
        while True:
            try:
                leads = await self._hf.server_settings.lead(self.holder, lease_s=self._lease_s)
            except HoldfastError as error:
                log.debug("%s cannot lead now: %s", self.holder, error)
                leads = False
            if leads and not self.is_leader:
                log.info("%s leads", self.holder)
                self._leads.set()
            elif not leads and self.is_leader:
                log.info("%s leads no longer", self.holder)
                self._leads.clear()
            await asyncio.sleep(self._lease_s / RENEWALS)

    async def _repeat(self, job: Job) -> None:
        while True:
            if job.leader_only:
                await self._leads.wait()
            try:
                await job.work()
            except Exception as error:  # whatever it was, the next turn may do better, and other jobs go on
                log.warning("%s failed: %s: %s", job.name, type(error).__name__, error)
            jitter = int(self._ids.new()[-6:], 16) / 0xFFFFFF
            await asyncio.sleep(job.every_s * (1 + jitter / 2))


@asynccontextmanager
async def background(hf: AsyncHoldfast, options: BackgroundOptions | None) -> AsyncIterator[Background | None]:
    """Do the jobs of a server while the block lasts; without options, none.

    Raises:
        InvalidInput: a Redis is named and the package ``redis`` is not installed, or does not understand the address.
    """
    if options is None:
        yield None
        return
    jobs, close = jobs_of(hf, options)
    doing = Background(hf, jobs)
    doing.start()
    try:
        yield doing
    finally:
        await doing.stop()
        await close()


def jobs_of(hf: AsyncHoldfast, options: BackgroundOptions) -> tuple[list[Job], Callable[[], Awaitable[None]]]:
    """The jobs of a server, and what to call when they are over."""
    consumer = ErasureConsumer(hf, options.redis_url, stream=options.stream, event=options.event)
    jobs = []
    if options.erasures_every_s:
        jobs.append(Job("erasures", options.erasures_every_s, consumer.once))
    if options.retention_every_s:
        worker = RetentionWorker(hf, every_s=options.retention_every_s)

        async def sweep() -> None:
            done = await worker.round(idle_s=int(options.retention_every_s / 2))
            log.info("%s: %s", worker.holder, describe(done))

        jobs.append(Job("retention", options.retention_every_s, sweep))
    return jobs, consumer.close
