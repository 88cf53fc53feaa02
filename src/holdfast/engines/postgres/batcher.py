"""Batching of grouped writes on PostgreSQL: queued items share one commit, and each succeeds or fails alone.

Appends of several tenants share a round trip, too. The items of one tenant are one statement; those of different
tenants have statements of their own, which are pipelined, so that a statement never writes for two tenants. If a batch
fails, its items are written one by one. Items that wait behind a lost connection are sent on the next one; only the
outcome of items that were sent can be unknown. If Citus distributes the tables (``citus``), each tenant's items are sent
by themselves, and more lanes run instead.

A lane is a task that sends batches until the queue is empty. It keeps its connection between batches, because acquiring
one from the pool costs about as much as the statement. Callers wait only for their own future, so a cancelled caller
does not affect the others. A single caller sends its item itself, because starting a task and waiting for it would take
two more iterations of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from ...drivers.asyncpg_connection import is_reported
from ...errors import AlreadyExists, HoldfastError, OutcomeUnknown
from ..protocol import Group
from .errors import ConnectionLost, NodeLost, NotSent, Serialization
from .pool import AsyncPool, PooledConnection
from .retries import TRIES, final_error, outcome_unknown, pause_s, run_alone

T = TypeVar("T")
Item = TypeVar("Item")

MAX_GROUP = 256
"""Items sent in one batch; further items wait for the next one."""
MAX_LANES = 2
"""Batches in flight at once: while the server flushes one, the next can be sent."""
MAX_LANES_APART = 8
"""The same while the queue has items that cannot share a batch: steps of different tenants, or items of distributed tables."""
SPLIT_FROM = 16
"""Queued items from which on the idle lanes share the queue. If all callers waited for the same statement, they would all
return at once: the server would be idle while the next statement is built, and the callers idle while it runs."""


class Batcher:
    """The queue and the lanes of one engine."""

    def __init__(self, pool: AsyncPool, connections: int) -> None:
        self._pool = pool
        # Other calls need connections too, so lanes may use only a part of the pool.
        self._max_busy = max(1, connections // 2)
        self._max_kept = min(MAX_LANES_APART, connections // 4)
        self._waiting: deque[_QueuedItem] = deque()
        self._running: set[asyncio.Future[None]] = set()
        self._kept: list[PooledConnection] = []
        self._apart = False
        """Whether the queue has items that cannot share a batch."""
        self._last_share = 1
        """Size of the last batch."""
        self._sending = 0
        """Lanes with a batch in flight."""

    async def submit(self, group: Group[Item, T], item: Item) -> T:
        """Write one item, in one batch with the other queued items, and return its result."""
        key = (group, None if group.mixes_keys and not self._pool.distributed else group.key(item))
        queued = _QueuedItem(group, item, key)
        if self._last_share == 1 and not self._running:
            await self._send_alone(queued)
        else:
            if self._waiting and key != self._waiting[-1].key:
                self._apart = True
            self._waiting.append(queued)
            self._start_lane()
        result: T = await queued.future
        return result

    async def close(self) -> None:
        """Finish accepted items and return the connections to the pool."""
        while self._running:  # a lane that loses its connection leaves unsent items to another lane
            await asyncio.gather(*self._running, return_exceptions=True)
        while self._kept:
            await self._pool.give_back(self._kept.pop())

    async def _send_alone(self, queued: _QueuedItem) -> None:
        """Send one item in the caller's own task. If that task is cancelled, only this item and the connection are lost."""
        running = asyncio.get_running_loop().create_future()
        self._running.add(running)
        try:
            try:
                connection = await self._connect()
            except Exception as error:  # the item was not sent
                queued.fail(error)
            else:
                await self._send_one(connection, queued)
        except BaseException:
            queued.abandon()
            raise
        finally:
            self._running.discard(running)
            running.set_result(None)
            if self._waiting:
                self._start_lane()

    @property
    def _max_lanes(self) -> int:
        return min(MAX_LANES_APART if self._apart else MAX_LANES, self._max_busy)

    def _start_lane(self) -> None:
        if len(self._running) < self._max_lanes:
            self._running.add(asyncio.create_task(self._run_lane()))

    async def _run_lane(self) -> None:
        try:
            while self._waiting:
                try:
                    connection = await self._connect()
                except Exception as error:  # none of the queued items was sent
                    self._fail_all(error)
                    return
                await self._send_batches(connection)
        finally:
            # No await since the last check of the queue: the next caller must not mistake this lane for a running one.
            task = asyncio.current_task()
            assert task is not None
            self._running.discard(task)
            self._apart = self._apart and bool(self._waiting)

    async def _connect(self) -> PooledConnection:
        while self._kept:
            connection = self._kept.pop()
            if await self._pool.healthy(connection):
                return connection
            await self._pool.give_back(connection, spoiled=True)
        return await self._pool.take()

    async def _send_one(self, connection: PooledConnection, queued: _QueuedItem) -> None:
        spoiled = True
        try:
            await self._send_batch(connection, [queued])
            spoiled = connection.raw.is_closed()
        finally:
            await self._keep_or_return(connection, spoiled)

    async def _send_batches(self, connection: PooledConnection) -> None:
        """Send batches on one connection until the queue is empty or the connection is lost."""
        spoiled = True
        try:
            while self._waiting and not connection.raw.is_closed():
                batch = [self._waiting.popleft() for _ in range(self._share())]
                self._last_share = len(batch)
                self._sending += 1
                try:
                    await self._send_batch(connection, batch)
                finally:
                    self._sending -= 1
            spoiled = connection.raw.is_closed()
        finally:
            await self._keep_or_return(connection, spoiled)

    async def _keep_or_return(self, connection: PooledConnection, spoiled: bool) -> None:
        """Keep a connection for the next batch, or return it to the pool."""
        if spoiled or len(self._kept) >= self._max_kept:
            await self._pool.give_back(connection, spoiled=spoiled)
        else:
            self._pool.mark_used(connection)
            self._kept.append(connection)

    async def _send_batch(self, connection: PooledConnection, batch: Sequence[_QueuedItem]) -> None:
        units = deque(_units(batch))
        while units:
            if connection.raw.is_closed():
                self._waiting.extendleft(queued for unit in reversed(units) for queued in reversed(unit))
                return
            unit = units.popleft()
            try:
                await self._settle(connection, unit)
            except BaseException:  # cancelled: every caller must get an answer
                for queued in unit:
                    queued.fail(outcome_unknown(queued.group, queued.item))
                for queued in [queued for unit in units for queued in unit]:
                    queued.fail(NotSent())
                raise

    def _share(self) -> int:
        """Return how many queued items a lane takes: all of them, or an equal share for each idle lane."""
        waiting, free = len(self._waiting), max(1, self._max_lanes - self._sending)
        return min(waiting if waiting < SPLIT_FROM and not self._apart else -(-waiting // free), MAX_GROUP)

    async def _settle(self, connection: PooledConnection, unit: Sequence[_QueuedItem]) -> None:
        """Settle every item of a unit: together if possible, otherwise one by one. Unsent items return to the queue."""
        try:
            outcomes = await self._run_together(connection, unit)
        except (ConnectionLost, OutcomeUnknown) as error:
            await self._settle_lost(connection, unit, error)
        except Exception as error:
            if isinstance(error, NodeLost) and self._pool.distributed:
                for queued in unit:  # all of them are stored on the node that failed
                    queued.fail(NodeLost(str(error)), cause=error)
            elif len(unit) == 1 and not isinstance(error, AlreadyExists):
                unit[0].fail(error)
            else:
                await self._run_one_by_one(connection, unit)
        else:
            for queued, outcome in zip(unit, outcomes, strict=True):
                queued.settle(outcome)

    async def _settle_lost(
        self, connection: PooledConnection, unit: Sequence[_QueuedItem], error: ConnectionLost | OutcomeUnknown
    ) -> None:
        """Settle a unit whose result was lost."""
        self._drop_if_lost(connection, error)
        # A transaction whose COMMIT was not sent has certainly not committed.
        if isinstance(error, NotSent) or (self._pool.behind_pooler and isinstance(error, ConnectionLost)):
            self._requeue(unit, error)
        elif len(unit) > 1 and not connection.raw.is_closed() and not self._pool.distributed:
            # The error was reported by the only server, which has rolled back the whole statement.
            await self._run_one_by_one(connection, unit)
        else:
            for queued in unit:
                queued.fail(outcome_unknown(queued.group, queued.item), cause=error)

    async def _run_together(self, connection: PooledConnection, unit: Sequence[_QueuedItem]) -> Sequence[Any]:
        group, items = unit[0].group, [queued.item for queued in unit]
        for attempt in range(TRIES):
            try:
                if not self._pool.behind_pooler:
                    return await group.run(connection, items, careful=False)
                async with connection.savepoint():
                    return await group.run(connection, items, careful=False)
            except Serialization as error:
                last: HoldfastError = error
                await asyncio.sleep(pause_s(attempt))
        raise final_error(last)

    async def _run_one_by_one(self, connection: PooledConnection, unit: Sequence[_QueuedItem]) -> None:
        for index, queued in enumerate(unit):
            try:
                queued.settle(
                    await run_alone(queued.group, connection, queued.item, transaction=self._pool.behind_pooler)
                )
            except ConnectionLost as error:
                self._drop_if_lost(connection, error)
                self._requeue(unit[index:], error)
                return
            except Exception as error:
                self._drop_if_lost(connection, error)
                queued.fail(error)

    def _drop_if_lost(self, connection: PooledConnection, error: Exception) -> None:
        """Close a lost connection. An error reported by the server, even about another node, does not count as a loss."""
        cause: BaseException | None = error
        while isinstance(cause, (ConnectionLost, OutcomeUnknown)):
            cause = cause.__cause__
        if isinstance(error, (ConnectionLost, OutcomeUnknown)) and not is_reported(cause):
            connection.raw.terminate()

    def _requeue(self, unit: Sequence[_QueuedItem], error: ConnectionLost) -> None:
        """Queue items that changed nothing again for the next connection, each up to ``TRIES`` times."""
        for queued in reversed(unit):
            queued.tries += 1
            if queued.tries < TRIES:
                self._waiting.appendleft(queued)
            else:
                queued.fail(final_error(error), cause=error)

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)


class _QueuedItem:
    """An item of a group and the future of its caller."""

    __slots__ = ("future", "group", "item", "key", "tries")

    def __init__(self, group: Group[Any, Any], item: Any, key: object) -> None:
        self.group, self.item, self.key, self.tries = group, item, key, 0
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.fail(outcome)
        elif not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: Exception, *, cause: Exception | None = None) -> None:
        if not self.future.done():
            error.__cause__ = cause or error.__cause__
            self.future.set_exception(error)

    def abandon(self) -> None:
        """Cancel the future: the caller no longer waits for it."""
        if not self.future.cancel():
            self.future.exception()


def _units(items: Sequence[_QueuedItem]) -> list[list[_QueuedItem]]:
    """Return the items grouped into units that are sent together."""
    units: dict[object, list[_QueuedItem]] = {}
    for item in items:
        units.setdefault(item.key, []).append(item)
    return list(units.values())
