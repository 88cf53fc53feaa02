"""Work in the background that every server and every worker does: indexing messages for search, and finishing deletions.

Any number of processes may do it at once. Each piece is small and is a transaction of its own, and others write in between.
"""

from __future__ import annotations

import asyncio
import logging

from .errors import HoldfastError, ReadOnly
from .handles import AsyncHoldfast
from .ids import IdSource, RandomIds

EVERY_S = 60.0
"""Seconds between two rounds over all tenants; up to half of it more, so that many processes do not work at the same moments."""
FIRST_S = 5.0
"""Seconds until the first round."""
PAUSE_S = 0.05
"""Seconds between two pieces, for those who wait to write."""

log = logging.getLogger("holdfast.maintenance")


async def keep_up(hf: AsyncHoldfast, *, ids: IdSource | None = None) -> None:
    """Do what there is to do, round after round, until cancelled."""
    ids = ids or RandomIds()
    pause_s = FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = EVERY_S * (1 + int(ids.new()[-6:], 16) / 0xFFFFFF / 2)
        try:
            await _one_round(hf)
        except ReadOnly:
            log.info("the database cannot be written, so nothing is done in the background")
            return
        except HoldfastError as error:
            log.warning("the work in the background goes on later: %s: %s", type(error).__name__, error)


async def _one_round(hf: AsyncHoldfast) -> None:
    while True:
        piece = await hf.tenants.maintain()
        if piece.is_done:
            return
        await asyncio.sleep(PAUSE_S)
