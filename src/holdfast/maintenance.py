"""Background maintenance in every server and worker: indexes messages for search, and finishes deletions.

Any number of processes may do it at once. Each batch is small and is a transaction of its own, so other writers can proceed.
"""

from __future__ import annotations

import asyncio
import logging

from .errors import HoldfastError, ReadOnly
from .handles import AsyncHoldfast
from .ids import IdSource, RandomIds

EVERY_S = 60.0
"""Seconds between two rounds over all tenants, plus up to half as much again, so that processes do not work in lockstep."""
FIRST_S = 5.0
"""Seconds until the first round."""
PAUSE_S = 0.05
"""Seconds between two batches, so that waiting writers can proceed."""

log = logging.getLogger("holdfast.maintenance")


async def keep_up(hf: AsyncHoldfast, *, ids: IdSource | None = None) -> None:
    """Run maintenance rounds until cancelled."""
    ids = ids or RandomIds()
    pause_s = FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = EVERY_S * (1 + int(ids.new()[-6:], 16) / 0xFFFFFF / 2)
        try:
            await _one_round(hf)
        except ReadOnly:
            log.info("maintenance is disabled: the database is read-only")
            return
        except HoldfastError as error:
            log.warning("maintenance failed and is retried later: %s: %s", type(error).__name__, error)


async def _one_round(hf: AsyncHoldfast) -> None:
    while True:
        batch = await hf.tenants.maintain()
        if batch.is_done:
            return
        await asyncio.sleep(PAUSE_S)
