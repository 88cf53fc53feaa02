"""Grouped work on PostgreSQL: whatever has queued up is sent as one statement, each item failing or succeeding alone.

A lane is a task that sends groups until nothing waits. It keeps its connection between groups: a trip through the pool would
cost as much again as the statement. Callers only wait for their own future, so one that is cancelled disturbs nobody. A caller
who seems to be the only one sends its item itself: to start a task for it and to wait for that are two turns of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from ...errors import AlreadyExists, HoldfastError, OutcomeUnknown
from ..protocol import Group
from .errors import ConnectionLost, Serialization
from .pool import AsyncPool, PooledConnection
from .retrying import TRIES, given_up, pause_s, run_alone, unknown

T = TypeVar("T")
Item = TypeVar("Item")

GROUP_MOST = 256
"""Items sent in one statement at most; more wait for the next."""
LANES = 2
"""Groups under way at once: while one is being flushed, the next can already be sent."""
SPLIT_FROM = 16
"""Items waiting that are shared out among the lanes that are free. Callers that all wait for one statement all come back at
once, and then the server has nothing to do while their next statement is made, and they nothing while it runs."""


class Lanes:
    """The lanes of one engine."""

    def __init__(self, pool: AsyncPool, connections: int) -> None:
        self._pool = pool
        # Calls need connections as well: of a small pool, lanes take their turn like everybody else.
        self._most = max(1, min(LANES, connections // 2))
        self._most_kept = min(LANES, connections // 4)
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Future[None]] = set()
        self._kept: list[PooledConnection] = []
        self._last_share = 1
        """Items that were sent together last."""
        self._sending = 0
        """Lanes whose group is on its way."""

    async def do(self, group: Group[Item, T], item: Item) -> T:
        """Do one item, together with whatever else is waiting."""
        waiting = _Waiting(group, item)
        if self._last_share == 1 and not self._running:
            await self._send_alone(waiting)
        else:
            self._waiting.append(waiting)
            self._start_lane()
        result: T = await waiting.future
        return result

    async def close(self) -> None:
        """Finish what was accepted and give the connections back."""
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
        try:
            for unit in _units(taken):
                await self._settle(connection, unit)
        finally:
            for each in taken:  # whatever happens, nobody waits for ever
                if not each.future.done():
                    each.fail(unknown(each.group, each.item))

    def _share(self) -> int:
        """How many of those who wait a lane takes: all, or enough to leave as many for each lane that has nothing to send."""
        waiting, free = len(self._waiting), self._most - self._sending
        return min(waiting if waiting < SPLIT_FROM else -(-waiting // free), GROUP_MOST)

    async def _settle(self, connection: PooledConnection, unit: Sequence[_Waiting]) -> None:
        """Settle every item of a unit: together if that works, otherwise one by one."""
        try:
            outcomes = await self._together(connection, unit)
        except (ConnectionLost, OutcomeUnknown) as error:
            connection.raw.terminate()
            for each in unit:
                each.fail(unknown(each.group, each.item), cause=error)
        except Exception as error:
            if len(unit) == 1 and not isinstance(error, AlreadyExists):
                unit[0].fail(error)
            else:
                await self._one_by_one(connection, unit)
        else:
            for each, outcome in zip(unit, outcomes, strict=True):
                each.settle(outcome)

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
        for each in unit:
            try:
                each.settle(await run_alone(each.group, connection, each.item, transaction=self._pool.behind_pooler))
            except Exception as error:
                each.fail(error)

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)


class _Waiting:
    """One item of a group, and the future of its caller."""

    __slots__ = ("future", "group", "item")

    def __init__(self, group: Group[Any, Any], item: Any) -> None:
        self.group, self.item = group, item
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
    units: dict[object, list[_Waiting]] = {}
    for item in items:
        units.setdefault((item.group, item.group.key(item.item)), []).append(item)
    return list(units.values())
