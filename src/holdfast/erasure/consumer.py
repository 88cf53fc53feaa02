"""The consumer of the stream: each request is written down in the database, then acknowledged, then carried out.

An entry is acknowledged only when the database has it, so it is handled at least once; handling it again changes nothing. What
a consumer left behind that died is taken over when it has been idle for long enough. What was written down is carried out by
whoever comes to it first, this consumer or a retention worker, and again until it is done: neither needs the other to live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from holdfast import AsyncHoldfast, IdSource, RandomIds
from holdfast.compatibility import ERASURE_STREAM
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.extras import needs
from holdfast.loop.loop import this_process
from holdfast.retention_worker import erase_tenants, tenants_to_erase

from .events import read_event

EVENT = "identity.user.erased"
GROUP = "holdfast"
BATCH = 100
"""Entries read at once."""
IDLE_MS = 60_000
"""Milliseconds after which what another consumer left is taken over."""
BLOCK_MS = 1_000
"""Milliseconds to wait for the next entry before looking at what is still to be carried out."""
ANSWER_S = 10.0
"""Seconds within which Redis must answer, beside those it was told to wait."""
RETRY_S = 5.0
"""Seconds to wait when Redis or the database cannot be reached."""

log = logging.getLogger("holdfast.erasure")
Entries = Sequence[tuple[str, dict[str, str] | None]]


class ErasureConsumer:
    """Reads requests to be forgotten from a Redis stream and carries them out.

    Args:
        hf: where the tenants are.
        url: the address of a Redis; without one, nothing is read and what was requested before is still carried out.
        stream: the key of the stream.
        event: the kind of event that asks for it.
        group: the consumer group; all consumers of one Holdfast share it.
        consumer: the name of this consumer.
        whole: whether everything of a tenant goes, or only its snapshots.
        idle_ms: when what another consumer left is taken over.
        block_ms: how long to wait for the next entry.

    Raises:
        InvalidInput: the package ``redis`` does not understand the address.
        MissingExtra: the package ``redis`` is not installed.
    """

    def __init__(
        self,
        hf: AsyncHoldfast,
        url: str | None,
        *,
        stream: str = ERASURE_STREAM,
        event: str = EVENT,
        group: str = GROUP,
        consumer: str | None = None,
        whole: bool = True,
        idle_ms: int = IDLE_MS,
        block_ms: int = BLOCK_MS,
        ids: IdSource | None = None,
    ) -> None:
        self._hf, self._stream, self._event, self._group = hf, stream, event, group
        self.consumer = consumer or f"{this_process()}:{(ids or RandomIds()).new()[-6:]}"
        self._whole, self._idle_ms, self._block_ms = whole, idle_ms, block_ms
        self._stopping = asyncio.Event()
        self._redis: Any = _client(url, block_ms) if url else None

    def stop(self) -> None:
        """Come to an end after what is in hand."""
        self._stopping.set()

    async def work(self) -> None:
        """Read and carry out until told to stop. Without an address, this ends at once."""
        if self._redis is None:
            log.info("no Redis is named: nobody can ask to be forgotten by an event")
            return
        log.info("%s reads %s for %s", self.consumer, self._stream, self._event)
        try:
            while not self._stopping.is_set():
                await self._turn()
        finally:
            await self._redis.aclose()

    async def close(self) -> None:
        """Let go of Redis, where ``work`` was never begun."""
        if self._redis is not None:
            await self._redis.aclose()

    async def once(self) -> int:
        """Take over what others left, read what is there without waiting, carry out what is open; how many entries were handled.

        Raises:
            redis.RedisError: Redis cannot be reached; what is open was carried out all the same.
        """
        try:
            count = await self.receive()
        except Exception:
            await self.carry_out()
            raise
        await self.carry_out()
        return count

    async def receive(self) -> int:
        """Take over what others left and write down all that the stream asks for by now, without waiting; how many entries that
        were. Nothing is carried out.

        Raises:
            redis.RedisError: Redis cannot be reached.
        """
        total = 0
        while self._redis is not None and (count := await self._receive(block_ms=None)):
            total += count
        return total

    async def carry_out(self) -> int:
        """Carry out what was requested and is open, the most urgent first; how many tenants were forgotten.

        What cannot be done now, because something is held or somebody else is at it, stays open.
        """
        erased = await erase_tenants(self._hf, await tenants_to_erase(self._hf), holder=self.consumer, log=log)
        return sum(each.is_finished for each in erased)

    async def _turn(self) -> None:
        try:
            await self._receive(block_ms=self._block_ms)
            await self.carry_out()
        except (HoldfastError, OSError, _redis_error()) as error:
            log.warning("requests cannot be read now: %s: %s", type(error).__name__, error)
            try:
                await asyncio.wait_for(self._stopping.wait(), RETRY_S)
            except TimeoutError:
                pass

    async def _receive(self, *, block_ms: int | None) -> int:
        await self._ensure_group()
        count = await self._take_over()
        found = await self._redis.xreadgroup(
            self._group, self.consumer, {self._stream: ">"}, count=BATCH, block=block_ms
        )
        for _, entries in _listed(found):
            count += await self._handle(entries)
        return count

    async def _ensure_group(self) -> None:
        """The group, from the first entry on: a request that came before us counts."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except _response_error() as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _take_over(self) -> int:
        """Handle what others read and never acknowledged."""
        count, start = 0, "0-0"
        while True:
            start, entries, *_ = await self._redis.xautoclaim(
                self._stream, self._group, self.consumer, min_idle_time=self._idle_ms, start_id=start, count=BATCH
            )
            count += await self._handle(entries)
            if start == "0-0":
                return count

    async def _handle(self, entries: Entries) -> int:
        for entry_id, fields in entries:
            await self._note(entry_id, fields or {})
            await self._redis.xack(self._stream, self._group, entry_id)
        return len(entries)

    async def _note(self, entry_id: str, fields: dict[str, str]) -> None:
        """Write down what an entry asks for. What cannot be read is said once, loudly, and not tried for ever."""
        try:
            asked = read_event(entry_id, fields, self._event)
            if asked is not None:
                await self._hf.erasures.request(
                    asked.tenant, event_id=asked.event_id, whole=self._whole, requested_at=asked.requested_at
                )
        except (ValueError, InvalidInput) as error:
            log.error("the entry %s of %s is not understood: %s", entry_id, self._stream, error)


def _client(url: str, block_ms: int) -> Any:
    with needs("erasure"):
        import redis.asyncio
    try:
        return redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=block_ms / 1_000 + ANSWER_S)
    except ValueError as error:
        raise InvalidInput(f"that is no address of a Redis: {error}") from error


def _redis_error() -> type[Exception]:
    import redis

    return redis.RedisError


def _response_error() -> type[Exception]:
    import redis

    return redis.ResponseError


def _listed(found: Any) -> Sequence[tuple[str, Entries]]:
    """What was read, in whichever form the protocol has it."""
    if isinstance(found, dict):
        return [(stream, entries[0] if entries else []) for stream, entries in found.items()]
    return found or []
