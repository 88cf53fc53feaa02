"""Records every refused request in the activity log of the key's tenant, or of ``_server`` if the request had no key.

A refusal does not wait for the database: entries are written in the background, several in one commit. The queue is bounded.
Refusals that do not fit, and those of a caller over its rate limit, are counted, and the count is recorded instead.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque

from msgspec import Struct
from msgspec.structs import replace

from holdfast import AsyncHoldfast
from holdfast.errors import HoldfastError

SERVER = "_server"
"""The tenant of refusals that concern no other tenant."""
MAX_WAITING = 10_000
BATCH_SIZE = 100
COUNTED_S = 10.0
"""Seconds after which a count is recorded if no other refusal is written before."""
_PATH_CHARS = 200
"""Characters of a path that are recorded."""
_REASON_CHARS = 500
"""Characters of a reason that are recorded."""
_SECRET = re.compile(r"hf_[0-9a-f]{9,}|(?<![0-9a-f])[0-9a-f]{48}(?![0-9a-f])", re.IGNORECASE)
"""An API key, or the token of a share link, in a path."""

log = logging.getLogger("holdfast.api.auth")


class Denial(Struct, frozen=True):
    """One refusal. It contains the id of a key, never the key."""

    tenant: str
    reason: str
    key_id: str
    address: str
    method: str
    path: str


class AuditLog:
    """A queue of refusals that are not written yet."""

    def __init__(self) -> None:
        self._waiting: deque[Denial] = deque()
        self._lost = 0
        self._woken = asyncio.Event()

    def note(self, denial: Denial) -> None:
        """Log a refusal in one line and queue it for the activity log, with keys and share tokens removed from its path."""
        path, reason = _in_one_line(_SECRET.sub("...", denial.path)), _in_one_line(denial.reason)
        denial = replace(denial, path=path, reason=reason[:_REASON_CHARS])
        log.warning(
            "refused %s %s from %s: %s", denial.method, denial.path[:_PATH_CHARS], denial.address, denial.reason
        )
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(denial)
        else:
            self._lost += 1
        self._woken.set()

    def count(self) -> None:
        """Count a refusal. The count is recorded in one entry."""
        if not self._lost:
            asyncio.get_running_loop().call_later(COUNTED_S, self._woken.set)
        self._lost += 1

    async def run(self, holdfast: AsyncHoldfast) -> None:
        """Write queued refusals until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.flush(holdfast)

    async def flush(self, holdfast: AsyncHoldfast) -> None:
        """Write all queued refusals. Those that cannot be written remain in the server's own log."""
        while self._waiting or self._lost:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_SIZE, len(self._waiting)))]
            if self._lost:
                batch.append(Denial("", f"{self._lost} more refusals were not recorded individually", "", "", "", ""))
                log.warning("%d more refusals were not recorded individually", self._lost)
                self._lost = 0
            await asyncio.gather(*(_record(holdfast, denial) for denial in batch))


def _in_one_line(text: str) -> str:
    """Escape unprintable characters: a decoded path must not be able to add lines to a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


async def _record(holdfast: AsyncHoldfast, denial: Denial) -> None:
    try:
        await holdfast.tenant(denial.tenant or SERVER).activity.record(
            "access.denied",
            actor=denial.key_id or denial.address,
            actor_type="api_key" if denial.key_id else "address",
            subject_kind="route",
            subject_id=f"{denial.method} {denial.path}"[:_PATH_CHARS],
            reason=denial.reason,
            details={"key_id": denial.key_id},
            address=denial.address,
        )
    except HoldfastError as error:
        log.error("a refusal could not be recorded: %s", type(error).__name__)
