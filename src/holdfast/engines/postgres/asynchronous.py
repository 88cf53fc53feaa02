"""PostgreSQL for asyncio, through asyncpg.

Calls take a connection from a pool. Grouped work (appends) does not: whatever has queued up is sent as one statement on a
connection that is kept for it, because a round trip through the pool costs as much again as the statement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg

from ...clock import monotonic_s
from ...drivers.asyncpg import AsyncpgConnection, translated
from ...errors import AlreadyExists, Closed, HoldfastError, Unavailable
from ..dialect import Dialect
from ..protocol import Call, Group
from .errors import ConnectionLost, Serialization
from .options import PoolOptions
from .retrying import AGAIN, TRIES, given_up, pause_s, run_alone, unknown

T = TypeVar("T")
Item = TypeVar("Item")
Raw: TypeAlias = Any
"""A connection of asyncpg, which has no types of its own."""

GROUP_MOST = 256
"""Items sent in one statement at most; more wait for the next."""
LANES = 2
"""Groups under way at once: while one is being flushed, the next is already being sent."""


class AsyncPostgresEngine:
    """An asynchronous engine for one event loop."""

    dialect = Dialect.POSTGRES

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._url, self._options = url, options
        self._pool: asyncpg.Pool | None = None
        self._through_pooler = False
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._waiting: deque[_Item] = deque()
        self._lanes: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect, and find out whether a transaction pooler stands in between.

        Raises:
            Unavailable: the server cannot be reached.
        """
        options = self._options
        try:
            self._through_pooler = await self._finds_pooler()
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=options.min_connections,
                max_size=options.max_connections,
                max_inactive_connection_lifetime=options.max_idle_s,
                timeout=options.connect_timeout_s,
                # Behind a transaction pooler a prepared statement may be on another server connection next time.
                statement_cache_size=0 if self._through_pooler else 256,
                reset=_leave_as_it_is,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError) as error:
            raise Unavailable(f"cannot connect to PostgreSQL: {error}") from error

    async def read(self, call: Call[T]) -> T:
        return await self._again(call, transaction=self._through_pooler)

    async def write(self, call: Call[T]) -> T:
        return await self._again(call, transaction=True)

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        if self._pool is None:
            raise Closed
        waiting = _Item(group, item)
        self._waiting.append(waiting)
        if len(self._lanes) < LANES:
            lane = asyncio.create_task(self._drain())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        result: T = await waiting.future
        return result

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction; for migrations."""
        async with self._connection() as connection:
            return await call(connection)

    async def close(self) -> None:
        """Finish what was accepted and close every connection. Closing twice is fine."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.gather(*self._lanes, return_exceptions=True)
            await pool.close()

    async def _finds_pooler(self) -> bool:
        raw: Raw = await asyncpg.connect(self._url, statement_cache_size=0, timeout=self._options.connect_timeout_s)
        try:
            async with raw.transaction():
                # A pooler hands out a process id of its own invention.
                return bool(await raw.fetchval("SELECT pg_backend_pid()") != raw.get_server_pid())
        finally:
            await raw.close()

    async def _again(self, call: Call[T], *, transaction: bool) -> T:
        for attempt in range(TRIES):
            try:
                async with self._connection() as connection:
                    if not transaction:
                        return await call(connection)
                    async with connection.savepoint():
                        return await call(connection)
            except AGAIN as error:
                last: HoldfastError = error
                await asyncio.sleep(pause_s(attempt))
        raise given_up(last)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncpgConnection]:
        """A connection of the pool. One that was interrupted in the middle of an exchange is thrown away."""
        if self._pool is None:
            raise Closed
        raw = await self._healthy(self._pool)
        try:
            yield AsyncpgConnection(raw)
        except HoldfastError as error:
            if isinstance(error, ConnectionLost):
                raw.terminate()
            raise
        except BaseException:
            raw.terminate()
            raise
        finally:
            await self._release(raw)

    async def _healthy(self, pool: asyncpg.Pool) -> Raw:
        """A connection that is not too old and, if it has been idle for long, still answers."""
        while True:
            try:
                raw: Raw = await pool.acquire(timeout=self._options.connect_timeout_s)
            except TimeoutError:
                raise Unavailable(f"all {self._options.max_connections} connections are busy") from None
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                raise translated(error) from error
            now, key = monotonic_s(), raw.get_server_pid()
            idle_s = now - self._used.get(key, now)
            if now - self._born.setdefault(key, now) > self._options.max_lifetime_s:
                self._born.pop(key, None)
                raw.terminate()
            elif idle_s < self._options.health_check_s or await _answers(raw):
                return raw
            await pool.release(raw)

    async def _release(self, raw: Raw) -> None:
        key = raw.get_server_pid()
        self._used[key] = monotonic_s()
        if raw.is_closed():
            self._used.pop(key, None)
            self._born.pop(key, None)
        await _quietly(raw, self._pool)

    async def _drain(self) -> None:
        """Send groups until nothing waits; the connection is given back only then."""
        try:
            async with self._connection() as connection:
                while self._waiting:
                    items = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MOST))]
                    for unit in _units(items):
                        await _run_unit(connection, unit)
                    if connection.raw.is_closed():
                        break
        except Exception as error:
            # Nothing of what still waits was sent.
            for item in self._take_all():
                item.fail(error)
            return
        if self._waiting:
            await self._drain()

    def _take_all(self) -> list[_Item]:
        items = [*self._waiting]
        self._waiting.clear()
        return items


class _Item:
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

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _units(items: Sequence[_Item]) -> list[list[_Item]]:
    units: dict[object, list[_Item]] = {}
    for item in items:
        units.setdefault((item.group, item.group.key(item.item)), []).append(item)
    return list(units.values())


async def _run_unit(connection: AsyncpgConnection, unit: Sequence[_Item]) -> None:
    """Settle every item of a unit: together if that works, otherwise one by one."""
    group = unit[0].group
    for attempt in range(TRIES):
        try:
            outcomes = await group.run(connection, [each.item for each in unit], careful=False)
        except Serialization as error:
            await asyncio.sleep(pause_s(attempt))
            last: Exception = error
        except ConnectionLost as error:
            for each in unit:
                lost = unknown(group, each.item)
                lost.__cause__ = error
                each.fail(lost)
            return
        except Exception as error:
            if len(unit) == 1 and not isinstance(error, AlreadyExists):
                unit[0].fail(error)
            else:
                await _one_by_one(connection, unit)
            return
        else:
            for each, outcome in zip(unit, outcomes, strict=True):
                each.settle(outcome)
            return
    for each in unit:
        each.fail(last)


async def _one_by_one(connection: AsyncpgConnection, unit: Sequence[_Item]) -> None:
    for each in unit:
        try:
            each.settle(await run_alone(each.group, connection, each.item))
        except Exception as error:
            each.fail(error)


async def _answers(raw: Raw) -> bool:
    try:
        await raw.fetchval("SELECT 1", timeout=5)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        raw.terminate()
        return False
    return True


async def _quietly(raw: Raw, pool: asyncpg.Pool | None) -> None:
    """Give a connection back; if that fails, the connection was bad and the pool makes another."""
    try:
        if pool is not None:
            await pool.release(raw)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return


async def _leave_as_it_is(raw: Raw) -> None:
    """Our calls leave nothing behind in a connection, so the round trip that would reset it is saved."""
