"""Records every refused request in the activity log of the key's tenant, or of ``_server`` if there is none.

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
"""The tenant of refusals that concern no other."""
MAX_WAITING = 10_000
TOGETHER = 100
COUNTED_S = 10.0
"""Seconds until a count is noted, if nothing else is by then."""
_SHOWN = 200
"""Characters of a path that are noted."""
_REASON = 500
"""Characters of a reason that are noted."""
_SECRET = re.compile(r"hf_[0-9a-f]{9,}|(?<![0-9a-f])[0-9a-f]{48}(?![0-9a-f])", re.IGNORECASE)
"""An API key, or the token of a share link, in a path."""

log = logging.getLogger("holdfast.api.auth")


class Denial(Struct, frozen=True):
    """One refusal. It holds nothing of a key but its id."""

    tenant: str
    reason: str
    key_id: str
    address: str
    method: str
    path: str


class AuditLog:
    """Refusals that are not written yet."""

    def __init__(self) -> None:
        self._waiting: deque[Denial] = deque()
        self._lost = 0
        self._woken = asyncio.Event()

    def note(self, denial: Denial) -> None:
        """Have a refusal written down soon, in one line. What opens something is left out of its path."""
        path, reason = _in_one_line(_SECRET.sub("...", denial.path)), _in_one_line(denial.reason)
        denial = replace(denial, path=path, reason=reason[:_REASON])
        log.warning("refused %s %s from %s: %s", denial.method, denial.path[:_SHOWN], denial.address, denial.reason)
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(denial)
        else:
            self._lost += 1
        self._woken.set()

    def count(self) -> None:
        """Have a refusal counted: one entry for many of them, soon enough."""
        if not self._lost:
            asyncio.get_running_loop().call_later(COUNTED_S, self._woken.set)
        self._lost += 1

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
                log.warning("%d more refusals than could be noted", self._lost)
                self._lost = 0
            await asyncio.gather(*(_record(holdfast, each) for each in some))


def _in_one_line(text: str) -> str:
    """The same with what cannot be printed spelled out: a path is decoded, and must not write lines of its own into a log."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


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
