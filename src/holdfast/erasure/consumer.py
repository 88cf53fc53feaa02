"""The consumer of the stream: each request is recorded in the database, then acknowledged, then carried out.

An entry is acknowledged only after it is in the database, so it is handled at least once; handling it again changes nothing.
Entries that a dead consumer read but did not acknowledge are claimed after an idle time. A recorded request is carried out by
this consumer or by a retention worker, whichever comes first, and retried until it is finished: neither needs the other.
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
from holdfast.loop.loop import process_name
from holdfast.retention_worker import erase_tenants, tenants_to_erase

from .events import read_event

EVENT = "identity.user.erased"
GROUP = "holdfast"
BATCH = 100
"""Maximum entries read at once."""
IDLE_MS = 60_000
"""Milliseconds after which the unacknowledged entries of another consumer are claimed."""
BLOCK_MS = 1_000
"""Milliseconds to wait for the next entry before carrying out open requests."""
ANSWER_S = 10.0
"""Seconds within which Redis must answer, in addition to the time it was told to wait."""
RETRY_S = 5.0
"""Seconds to wait when Redis or the database cannot be reached."""

log = logging.getLogger("holdfast.erasure")
Entries = Sequence[tuple[str, dict[str, str] | None]]


class ErasureConsumer:
    """Reads erasure requests from a Redis stream and carries them out.

    Args:
        hf: the Holdfast of the tenants.
        url: the address of a Redis; without one, nothing is read and requests recorded earlier are still carried out.
        stream: the key of the stream.
        event: the kind of event that requests an erasure.
        group: the consumer group; all consumers of one Holdfast share it.
        consumer: the name of this consumer.
        whole: whether all data of a tenant is erased, or only its snapshots.
        idle_ms: milliseconds after which the unacknowledged entries of another consumer are claimed.
        block_ms: milliseconds to wait for the next entry.
        ids: the source of the suffix of the consumer's name.

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
        self.consumer = consumer or f"{process_name()}:{(ids or RandomIds()).new()[-6:]}"
        self._whole, self._idle_ms, self._block_ms = whole, idle_ms, block_ms
        self._stopping = asyncio.Event()
        self._redis: Any = _client(url, block_ms) if url else None

    def stop(self) -> None:
        """Stop after the entries that are being handled."""
        self._stopping.set()

    async def work(self) -> None:
        """Read and carry out requests until stopped. Without an address, return at once."""
        if self._redis is None:
            log.info("no Redis address is configured: erasure events are not read")
            return
        log.info("%s reads %s for %s", self.consumer, self._stream, self._event)
        try:
            while not self._stopping.is_set():
                await self._poll()
        finally:
            await self._redis.aclose()

    async def close(self) -> None:
        """Close the Redis connection, if ``work`` was never called."""
        if self._redis is not None:
            await self._redis.aclose()

    async def once(self) -> int:
        """Claim the entries of dead consumers, read the available ones, carry out open requests; return the number of entries."""
        try:
            count = await self.receive()
        except Exception:
            await self.carry_out()
            raise
        await self.carry_out()
        return count

    async def receive(self) -> int:
        """Claim the entries of dead consumers, record all available entries without waiting, and return how many were handled.

        No request is carried out.

        Raises:
            redis.RedisError: Redis cannot be reached.
        """
        total = 0
        while self._redis is not None and (count := await self._receive(block_ms=None)):
            total += count
        return total

    async def carry_out(self) -> int:
        """Carry out the open requests, the most urgent first, and return how many tenants were erased.

        A request that cannot be carried out yet, because of a hold or because another process works on it, stays open.
        """
        erased = await erase_tenants(self._hf, await tenants_to_erase(self._hf), holder=self.consumer, log=log)
        return sum(erasure.is_finished for erasure in erased)

    async def _poll(self) -> None:
        try:
            await self._receive(block_ms=self._block_ms)
            await self.carry_out()
        except (HoldfastError, OSError, _redis_error()) as error:
            log.warning("cannot read or carry out erasure requests: %s: %s", type(error).__name__, error)
            try:
                await asyncio.wait_for(self._stopping.wait(), RETRY_S)
            except TimeoutError:
                pass

    async def _receive(self, *, block_ms: int | None) -> int:
        await self._ensure_group()
        count = await self._claim_idle()
        response = await self._redis.xreadgroup(
            self._group, self.consumer, {self._stream: ">"}, count=BATCH, block=block_ms
        )
        for _, entries in _by_stream(response):
            count += await self._handle(entries)
        return count

    async def _ensure_group(self) -> None:
        """Create the group if it does not exist, from the first entry on: requests that are older than the group count."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except _response_error() as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _claim_idle(self) -> int:
        """Handle the entries that other consumers read and did not acknowledge."""
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
            await self._record(entry_id, fields or {})
            await self._redis.xack(self._stream, self._group, entry_id)
        return len(entries)

    async def _record(self, entry_id: str, fields: dict[str, str]) -> None:
        """Record the request of an entry. An invalid entry is logged as an error once and not retried."""
        try:
            request = read_event(entry_id, fields, self._event)
            if request is not None:
                await self._hf.erasures.request(
                    request.tenant, event_id=request.event_id, whole=self._whole, requested_at=request.requested_at
                )
        except (ValueError, InvalidInput) as error:
            log.error("entry %s of stream %s is invalid: %s", entry_id, self._stream, error)


def _client(url: str, block_ms: int) -> Any:
    with needs("erasure"):
        import redis.asyncio
    try:
        return redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=block_ms / 1_000 + ANSWER_S)
    except ValueError as error:
        raise InvalidInput(f"the address of Redis is invalid: {error}", field="url") from error


def _redis_error() -> type[Exception]:
    import redis

    return redis.RedisError


def _response_error() -> type[Exception]:
    import redis

    return redis.ResponseError


def _by_stream(response: Any) -> Sequence[tuple[str, Entries]]:
    """Return the entries of a response with their stream; RESP3 returns a map, RESP2 a list."""
    if isinstance(response, dict):
        return [(stream, entries[0] if entries else []) for stream, entries in response.items()]
    return response or []
