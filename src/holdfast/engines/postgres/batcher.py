"""Grouped work on PostgreSQL: whatever has queued up is sent in one exchange, each item failing or succeeding alone.

A lane is a task that sends groups until nothing waits. It keeps its connection between groups: a trip through the pool would
cost as much again as the statement. Callers only wait for their own future, so one that is cancelled disturbs nobody. A caller
who seems to be the only one sends its item itself: to start a task for it and to wait for that are two turns of the event loop.
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
from .retries import TRIES, given_up, pause_s, run_alone, unknown

T = TypeVar("T")
Item = TypeVar("Item")

MAX_GROUP = 256
"""Items sent in one statement at most; more wait for the next."""
LANES = 2
"""Groups under way at once: while one is being flushed, the next can already be sent."""
LANES_APART = 8
"""The same while items wait that cannot be sent together: steps of different tenants, or any items of distributed tables."""
SPLIT_FROM = 16
"""Items waiting that are shared out among the lanes that are free. Callers that all wait for one statement all come back at
once, and then the server has nothing to do while their next statement is made, and they nothing while it runs."""


class Lanes:
    """The lanes of one engine."""

    def __init__(self, pool: AsyncPool, connections: int) -> None:
        self._pool = pool
        # Calls need connections as well: of a small pool, lanes take their turn like everybody else.
        self._most_of_all = max(1, connections // 2)
        self._most_kept = min(LANES_APART, connections // 4)
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Future[None]] = set()
        self._kept: list[PooledConnection] = []
        self._apart = False
        """Whether items wait that cannot be sent together."""
        self._last_share = 1
        """Items that were sent together last."""
        self._sending = 0
        """Lanes whose group is on its way."""

    async def do(self, group: Group[Item, T], item: Item) -> T:
        """Do one item, together with whatever else is waiting."""
        key = (group, None if group.mixes_keys and not self._pool.distributed else group.key(item))
        waiting = _Waiting(group, item, key)
        if self._last_share == 1 and not self._running:
            await self._send_alone(waiting)
        else:
            if self._waiting and key != self._waiting[-1].key:
                self._apart = True
            self._waiting.append(waiting)
            self._start_lane()
        result: T = await waiting.future
        return result

    async def close(self) -> None:
        """Finish what was accepted and give the connections back."""
        while self._running:  # one that loses its connection leaves what it did not send to another
            await asyncio.gather(*self._running, return_exceptions=True)
        while self._kept:
            await self._pool.give_back(self._kept.pop())

    async def _send_alone(self, waiting: _Waiting) -> None:
        """A lane in the caller's own task. One that is cancelled meanwhile takes along only itself, and the connection."""
        running = asyncio.get_running_loop().create_future()
        self._running.add(running)
        try:
            try:
                connection = await self._connect()
            except Exception as error:  # it was not sent
                waiting.fail(error)
            else:
                await self._send_one(connection, waiting)
        except BaseException:
            waiting.give_up()
            raise
        finally:
            self._running.discard(running)
            running.set_result(None)
            if self._waiting:
                self._start_lane()

    @property
    def _most(self) -> int:
        return min(LANES_APART if self._apart else LANES, self._most_of_all)

    def _start_lane(self) -> None:
        if len(self._running) < self._most:
            self._running.add(asyncio.create_task(self._run_lane()))

    async def _run_lane(self) -> None:
        try:
            while self._waiting:
                try:
                    connection = await self._connect()
                except Exception as error:  # nothing of what waits was sent
                    self._fail_all(error)
                    return
                await self._send_groups(connection)
        finally:
            # In the same breath as the last look at what waits: whoever comes next must not take this lane for a running one.
            this = asyncio.current_task()
            assert this is not None
            self._running.discard(this)
            self._apart = self._apart and bool(self._waiting)

    async def _connect(self) -> PooledConnection:
        while self._kept:
            connection = self._kept.pop()
            if await self._pool.healthy(connection):
                return connection
            await self._pool.give_back(connection, spoiled=True)
        return await self._pool.take()

    async def _send_one(self, connection: PooledConnection, waiting: _Waiting) -> None:
        spoiled = True
        try:
            await self._send_group(connection, [waiting])
            spoiled = connection.raw.is_closed()
        finally:
            await self._leave(connection, spoiled)

    async def _send_groups(self, connection: PooledConnection) -> None:
        """Send groups on one connection until nothing waits or the connection is lost."""
        spoiled = True
        try:
            while self._waiting and not connection.raw.is_closed():
                taken = [self._waiting.popleft() for _ in range(self._share())]
                self._last_share = len(taken)
                self._sending += 1
                try:
                    await self._send_group(connection, taken)
                finally:
                    self._sending -= 1
            spoiled = connection.raw.is_closed()
        finally:
            await self._leave(connection, spoiled)

    async def _leave(self, connection: PooledConnection, spoiled: bool) -> None:
        """Keep a connection for the next group, or give it back."""
        if spoiled or len(self._kept) >= self._most_kept:
            await self._pool.give_back(connection, spoiled=spoiled)
        else:
            self._pool.used(connection)
            self._kept.append(connection)

    async def _send_group(self, connection: PooledConnection, taken: Sequence[_Waiting]) -> None:
        units = deque(_units(taken))
        while units:
            if connection.raw.is_closed():
                self._waiting.extendleft(each for unit in reversed(units) for each in reversed(unit))
                return
            unit = units.popleft()
            try:
                await self._settle(connection, unit)
            except BaseException:  # cancelled: nobody may wait for ever
                for each in unit:
                    each.fail(unknown(each.group, each.item))
                for each in [each for unit in units for each in unit]:
                    each.fail(NotSent())
                raise

    def _share(self) -> int:
        """How many of those who wait a lane takes: all, or enough to leave as many for each lane that has nothing to send."""
        waiting, free = len(self._waiting), max(1, self._most - self._sending)
        return min(waiting if waiting < SPLIT_FROM and not self._apart else -(-waiting // free), MAX_GROUP)

    async def _settle(self, connection: PooledConnection, unit: Sequence[_Waiting]) -> None:
        """Settle every item of a unit: together if that works, otherwise one by one. What was not sent is put back."""
        try:
            outcomes = await self._together(connection, unit)
        except (ConnectionLost, OutcomeUnknown) as error:
            await self._settle_lost(connection, unit, error)
        except Exception as error:
            if isinstance(error, NodeLost) and self._pool.distributed:
                for each in unit:  # all are on the machine that failed
                    each.fail(NodeLost(str(error)), cause=error)
            elif len(unit) == 1 and not isinstance(error, AlreadyExists):
                unit[0].fail(error)
            else:
                await self._one_by_one(connection, unit)
        else:
            for each, outcome in zip(unit, outcomes, strict=True):
                each.settle(outcome)

    async def _settle_lost(
        self, connection: PooledConnection, unit: Sequence[_Waiting], error: ConnectionLost | OutcomeUnknown
    ) -> None:
        """Settle a unit whose answer was lost."""
        self._drop_if_lost(connection, error)
        # Before the commit of a transaction is sent, nothing is in doubt.
        if isinstance(error, NotSent) or (self._pool.behind_pooler and isinstance(error, ConnectionLost)):
            self._put_back(unit, error)
        elif len(unit) > 1 and not connection.raw.is_closed() and not self._pool.distributed:
            # Reported by the one server there is, which has undone all of it.
            await self._one_by_one(connection, unit)
        else:
            for each in unit:
                each.fail(unknown(each.group, each.item), cause=error)

    async def _together(self, connection: PooledConnection, unit: Sequence[_Waiting]) -> Sequence[Any]:
        group, items = unit[0].group, [each.item for each in unit]
        for attempt in range(TRIES):
            try:
                if not self._pool.behind_pooler:
                    return await group.run(connection, items, careful=False)
                async with connection.savepoint():
                    return await group.run(connection, items, careful=False)
            except Serialization as error:
                last: HoldfastError = error
                await asyncio.sleep(pause_s(attempt))
        raise given_up(last)

    async def _one_by_one(self, connection: PooledConnection, unit: Sequence[_Waiting]) -> None:
        for place, each in enumerate(unit):
            try:
                each.settle(await run_alone(each.group, connection, each.item, transaction=self._pool.behind_pooler))
            except ConnectionLost as error:
                self._drop_if_lost(connection, error)
                self._put_back(unit[place:], error)
                return
            except Exception as error:
                self._drop_if_lost(connection, error)
                each.fail(error)

    def _drop_if_lost(self, connection: PooledConnection, error: Exception) -> None:
        """Close a connection after its loss. An error that the server itself reports, be it about another server, is no loss."""
        cause: BaseException | None = error
        while isinstance(cause, (ConnectionLost, OutcomeUnknown)):
            cause = cause.__cause__
        if isinstance(error, (ConnectionLost, OutcomeUnknown)) and not is_reported(cause):
            connection.raw.terminate()

    def _put_back(self, unit: Sequence[_Waiting], error: ConnectionLost) -> None:
        """Queue items of which nothing was changed for the next connection, each only so many times."""
        for each in reversed(unit):
            each.tries += 1
            if each.tries < TRIES:
                self._waiting.appendleft(each)
            else:
                each.fail(given_up(error), cause=error)

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)


class _Waiting:
    """One item of a group, and the future of its caller."""

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

    def give_up(self) -> None:
        """Nobody asks any longer."""
        if not self.future.cancel():
            self.future.exception()


def _units(items: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """The items that are sent together."""
    units: dict[object, list[_Waiting]] = {}
    for item in items:
        units.setdefault(item.key, []).append(item)
    return list(units.values())
