"""The retention worker: sweeps every tenant again and again, and carries out erasures.

Several may run. Each tenant is swept under a lease, so never by two at once, and not again by the next who comes by shortly
after. The pauses are of uneven length, so that workers that were started together do not stay together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct, structs

from .clock import monotonic_s, to_us
from .errors import Conflict, HoldfastError, InvalidInput, NotFound
from .handles import AsyncHoldfast
from .ids import IdSource, RandomIds
from .loop.loop import process_name
from .stores.lifecycle.erasures import ErasureResult

EVERY_S = 3_600.0
"""Seconds between two sweeps of a tenant."""
PAGE = 100
"""Tenants or erasures asked for at once."""

log = logging.getLogger("holdfast.sweeper")


class Round(Struct, frozen=True):
    """What one round over the tenants came to."""

    tenants: int = 0
    """Tenants that were swept."""
    skipped: int = 0
    """Tenants that somebody else is sweeping or has just swept."""
    failed: int = 0
    snapshots: int = 0
    """Snapshots removed."""
    erased: int = 0
    """Tenants that were forgotten."""


class RetentionWorker:
    """Sweeps tenants until told to stop.

    Args:
        hf: where they are.
        every_s: seconds between two sweeps of a tenant; up to half of it more, by chance.
        tenants: only these.
        holder: the name of this worker.
        ids: where the chance comes from.

    Raises:
        InvalidInput: an argument cannot be used.
    """

    def __init__(
        self,
        hf: AsyncHoldfast,
        *,
        every_s: float = EVERY_S,
        tenants: Sequence[str] | None = None,
        holder: str | None = None,
        ids: IdSource | None = None,
    ) -> None:
        if not isinstance(every_s, (int, float)) or isinstance(every_s, bool) or not 0 < every_s < 2**31:
            raise InvalidInput(f"every_s must be a number of seconds, not {every_s!r}")
        self._hf, self._every_s, self._tenants = hf, every_s, tenants
        self._ids = ids or RandomIds()
        self.holder = holder or f"{process_name()}:{self._ids.new()[-6:]}"
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Come to an end after the tenant in hand."""
        self._stopping.set()

    async def work(self) -> None:
        """Make one round after the other until told to stop."""
        log.info("%s sweeps every %g s", self.holder, self._every_s)
        while not self._stopping.is_set():
            began_s = monotonic_s()
            done = await self.round(idle_s=int(self._every_s / 2))
            log.info("%s: %s in %.1f s", self.holder, describe(done), monotonic_s() - began_s)
            await self._rest()
        log.info("%s has stopped", self.holder)

    async def round(self, *, idle_s: int = 0) -> Round:
        """Carry out erasures that are open, then sweep every tenant that nobody sweeps or has swept in ``idle_s`` seconds.

        A tenant that is to be forgotten is not swept: an erasure removes all that a sweep would, and somebody may be at it.
        """
        forgotten = await self._to_be_forgotten()
        done = await self._erase(forgotten)
        async for tenant in self._names():
            if self._stopping.is_set():
                break
            if tenant in forgotten:
                continue
            done = await self._sweep(tenant, done, idle_s)
        return done

    async def _names(self) -> AsyncIterator[str]:
        if self._tenants is not None:
            for name in self._tenants:
                yield name
            return
        cursor: str | None = None
        while True:
            page = await self._hf.tenants.list(limit=self._hf.limits.page(PAGE), cursor=cursor)
            for tenant in page:
                yield tenant.id
            cursor = page.next
            if cursor is None:
                return

    async def _sweep(self, tenant: str, done: Round, idle_s: int) -> Round:
        try:
            swept = await self._hf.tenant(tenant).retention.sweep(holder=self.holder, idle_s=idle_s)
        except Conflict:
            return structs.replace(done, skipped=done.skipped + 1)
        except HoldfastError as error:
            log.warning("%s could not be swept: %s: %s", tenant, type(error).__name__, error)
            return structs.replace(done, failed=done.failed + 1)
        return structs.replace(done, tenants=done.tenants + 1, snapshots=done.snapshots + swept.count)

    async def _to_be_forgotten(self) -> list[str]:
        names = await to_be_forgotten(self._hf)
        return [name for name in names if self._tenants is None or name in self._tenants]

    async def _erase(self, tenants: Sequence[str]) -> Round:
        erased = await forget(self._hf, tenants, holder=self.holder, log=log)
        return Round(
            erased=sum(each.is_finished for each in erased), snapshots=sum(each.swept.count for each in erased)
        )

    async def _rest(self) -> None:
        jitter = int(self._ids.new()[-6:], 16) / 0xFFFFFF
        try:
            await asyncio.wait_for(self._stopping.wait(), self._every_s * (1 + jitter / 2))
        except TimeoutError:
            pass


async def to_be_forgotten(hf: AsyncHoldfast) -> list[str]:
    """The tenants with an erasure that is open, the most urgent first."""
    names: dict[str, None] = {}
    cursor: str | None = None
    while True:
        page = await hf.erasures.list(only_open=True, limit=hf.limits.page(PAGE), cursor=cursor)
        names |= dict.fromkeys(each.tenant for each in page)
        cursor = page.next
        if cursor is None:
            return [*names]


async def overdue_erasures(hf: AsyncHoldfast, now_us: int) -> int:
    """How many erasures should have been carried out by now and are not; of more than a page, a page."""
    page = await hf.erasures.list(only_open=True, limit=hf.limits.page(PAGE))
    return sum(to_us(each.due_at) < now_us for each in page)


async def forget(hf: AsyncHoldfast, tenants: Sequence[str], *, holder: str, log: logging.Logger) -> list[ErasureResult]:
    """Carry out the erasures of some tenants. What cannot be done now, or somebody else does, is left and logged."""
    done = []
    for tenant in tenants:
        try:
            done.append(await hf.erasures.carry_out(tenant, holder=holder))
        except (Conflict, NotFound) as error:  # nothing is wrong: somebody else got there first
            log.info("%s is left to somebody else: %s", tenant, error)
        except HoldfastError as error:
            log.warning("%s is not yet forgotten: %s: %s", tenant, type(error).__name__, error)
    return done


def describe(done: Round) -> str:
    """A round in a few words."""
    words = f"{done.tenants:,} tenants swept, {done.snapshots:,} snapshots removed"
    more = [(done.erased, "forgotten"), (done.skipped, "left to others"), (done.failed, "failed")]
    return ", ".join([words, *(f"{count:,} {what}" for count, what in more if count)])
