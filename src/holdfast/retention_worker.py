"""The retention worker: sweeps every tenant periodically, and carries out erasures.

Several workers may run. Each tenant is swept under a lease, so two workers never sweep it at once, and a worker skips a tenant
that was swept recently. The pauses are randomized, so that workers that were started together do not stay in lockstep.
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
"""Tenants or erasures in one page."""

log = logging.getLogger("holdfast.sweeper")


class Round(Struct, frozen=True):
    """The totals of one round over the tenants."""

    tenants: int = 0
    """Tenants that were swept."""
    skipped: int = 0
    """Tenants that another worker is sweeping or has just swept."""
    failed: int = 0
    snapshots: int = 0
    """Snapshots removed."""
    erased: int = 0
    """Tenants that were erased."""


class RetentionWorker:
    """Sweeps tenants until it is stopped.

    Args:
        hf: the database.
        every_s: seconds between two sweeps of a tenant, plus a random delay of up to half as much.
        tenants: sweep only these tenants.
        holder: the name of this worker.
        ids: the source of randomness.

    Raises:
        InvalidInput: an argument is invalid.
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
            raise InvalidInput(f"every_s must be a positive number of seconds, not {every_s!r}", field="every_s")
        self._hf, self._every_s, self._tenants = hf, every_s, tenants
        self._ids = ids or RandomIds()
        self.holder = holder or f"{process_name()}:{self._ids.new()[-6:]}"
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Stop after the current tenant."""
        self._stopping.set()

    async def work(self) -> None:
        """Run rounds until stopped."""
        log.info("%s sweeps every %g s", self.holder, self._every_s)
        while not self._stopping.is_set():
            began_s = monotonic_s()
            totals = await self.round(idle_s=int(self._every_s / 2))
            log.info("%s: %s in %.1f s", self.holder, describe(totals), monotonic_s() - began_s)
            await self._rest()
        log.info("%s has stopped", self.holder)

    async def round(self, *, idle_s: int = 0) -> Round:
        """Carry out open erasures, then sweep every tenant that is not being swept and was not swept in ``idle_s`` seconds.

        Tenants with an open erasure are not swept: the erasure removes everything that a sweep would, and another worker may be
        carrying it out.
        """
        to_erase = await self._tenants_to_erase()
        totals = await self._erase(to_erase)
        async for tenant in self._names():
            if self._stopping.is_set():
                break
            if tenant in to_erase:
                continue
            totals = await self._sweep(tenant, totals, idle_s)
        return totals

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

    async def _sweep(self, tenant: str, totals: Round, idle_s: int) -> Round:
        """Sweep a tenant, and return the totals with its result added."""
        try:
            swept = await self._hf.tenant(tenant).retention.sweep(holder=self.holder, idle_s=idle_s)
        except Conflict:
            return structs.replace(totals, skipped=totals.skipped + 1)
        except HoldfastError as error:
            log.warning("tenant %s could not be swept: %s: %s", tenant, type(error).__name__, error)
            return structs.replace(totals, failed=totals.failed + 1)
        return structs.replace(totals, tenants=totals.tenants + 1, snapshots=totals.snapshots + swept.count)

    async def _tenants_to_erase(self) -> list[str]:
        names = await tenants_to_erase(self._hf)
        return [name for name in names if self._tenants is None or name in self._tenants]

    async def _erase(self, tenants: Sequence[str]) -> Round:
        results = await erase_tenants(self._hf, tenants, holder=self.holder, log=log)
        return Round(
            erased=sum(result.is_finished for result in results),
            snapshots=sum(result.swept.count for result in results),
        )

    async def _rest(self) -> None:
        jitter = int(self._ids.new()[-6:], 16) / 0xFFFFFF
        try:
            await asyncio.wait_for(self._stopping.wait(), self._every_s * (1 + jitter / 2))
        except TimeoutError:
            pass


async def tenants_to_erase(hf: AsyncHoldfast) -> list[str]:
    """Return the tenants with an open erasure, the most urgent first."""
    names: dict[str, None] = {}
    cursor: str | None = None
    while True:
        page = await hf.erasures.list(only_open=True, limit=hf.limits.page(PAGE), cursor=cursor)
        names |= dict.fromkeys(erasure.tenant for erasure in page)
        cursor = page.next
        if cursor is None:
            return [*names]


async def overdue_erasures(hf: AsyncHoldfast, now_us: int) -> int:
    """Return the number of overdue erasures, at most one page."""
    page = await hf.erasures.list(only_open=True, limit=hf.limits.page(PAGE))
    return sum(to_us(erasure.due_at) < now_us for erasure in page)


async def erase_tenants(
    hf: AsyncHoldfast, tenants: Sequence[str], *, holder: str, log: logging.Logger
) -> list[ErasureResult]:
    """Carry out the erasures of some tenants. An erasure that fails or that another worker carries out is logged and skipped."""
    results = []
    for tenant in tenants:
        try:
            results.append(await hf.erasures.carry_out(tenant, holder=holder))
        except (Conflict, NotFound) as error:  # not a failure: another worker was first
            log.info("the erasure of tenant %s is left to another worker: %s", tenant, error)
        except HoldfastError as error:
            log.warning("tenant %s could not be erased yet: %s: %s", tenant, type(error).__name__, error)
    return results


def describe(totals: Round) -> str:
    """Return the totals of a round as one line of text."""
    words = f"{totals.tenants:,} tenants swept, {totals.snapshots:,} snapshots removed"
    more = [(totals.erased, "erased"), (totals.skipped, "left to other workers"), (totals.failed, "failed")]
    return ", ".join([words, *(f"{count:,} {what}" for count, what in more if count)])
