"""Every refusal, in the activity log of the tenant whose key it was, or under ``_server`` where no tenant is to be told.

A refusal does not wait for the database: what is noted is written behind, several in one commit. What waits is bounded; what does
not fit is counted, and the count is noted instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from msgspec import Struct

from holdfast import AsyncHoldfast
from holdfast.errors import HoldfastError

SERVER = "_server"
"""The tenant under which is noted what concerns no other."""
WAITING_MOST = 10_000
TOGETHER = 100
_SHOWN = 200
"""Characters of a path that are noted."""

log = logging.getLogger("holdfast.api.access")


class Denial(Struct, frozen=True):
    """One refusal. It holds nothing of a key but its id."""

    tenant: str
    reason: str
    key_id: str
    address: str
    method: str
    path: str


class Denials:
    """What was refused and is still to be written down."""

    def __init__(self) -> None:
        self._waiting: deque[Denial] = deque()
        self._lost = 0
        self._woken = asyncio.Event()

    def note(self, denial: Denial) -> None:
        """Have a refusal written down soon."""
        log.warning("refused %s %s from %s: %s", denial.method, denial.path[:_SHOWN], denial.address, denial.reason)
        if len(self._waiting) < WAITING_MOST:
            self._waiting.append(denial)
        else:
            self._lost += 1
        self._woken.set()

    async def run(self, holdfast: AsyncHoldfast) -> None:
        """Write down what comes, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.flush(holdfast)

    async def flush(self, holdfast: AsyncHoldfast) -> None:
        """Write down what has come. What cannot be written stays in the server's own log."""
        while self._waiting or self._lost:
            some = [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]
            if self._lost:
                some.append(Denial("", f"{self._lost} more refusals than could be noted", "", "", "", ""))
                self._lost = 0
            await asyncio.gather(*(_record(holdfast, each) for each in some))


async def _record(holdfast: AsyncHoldfast, denial: Denial) -> None:
    try:
        await holdfast.tenant(denial.tenant or SERVER).activity.record(
            "access.denied",
            actor=denial.key_id or denial.address,
            subject_kind="route",
            subject_id=f"{denial.method} {denial.path}"[:_SHOWN],
            reason=denial.reason,
            details={"address": denial.address, "key_id": denial.key_id},
        )
    except HoldfastError as error:
        log.error("a refusal could not be noted: %s", type(error).__name__)
