"""A pool of asyncpg connections that are young, alive and never left in the middle of an exchange."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Any, TypeAlias

import asyncpg

from ...clock import monotonic_s
from ...drivers.asyncpg_connection import AsyncpgConnection, Savepoint, is_reported, translated
from ...errors import Closed, HoldfastError, InvalidInput, Unavailable
from ..protocol import Row
from .citus import is_distributed
from .errors import ConnectionLost, NoAnswer
from .options import NOT_UNDERSTOOD, PoolOptions
from .retries import SETTLED_COMMIT
from .urls import for_asyncpg

Raw: TypeAlias = Any
"""A connection of asyncpg, which has no types of its own."""

STATEMENTS = 256
"""Prepared statements a connection keeps."""
CLOSE_S = 10.0
"""How long closing waits for connections that are still busy before it cuts them."""
PING_S = 5.0
"""How long a connection that was idle may take to show that it is alive."""
CANCEL_S = 1.0
"""How long the server may take to hear that a statement is to be cancelled, before its connection is cut anyway."""
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class PooledConnection(AsyncpgConnection):
    """A connection of the pool. Statements go to asyncpg's connection itself: its stand-in, which the pool wants back, refuses
    every question once the connection has ended, even whether it is closed."""

    def __init__(self, stand_in: Raw, deadline_s: float, *, distributed: bool = False) -> None:
        super().__init__(stand_in._con)
        self.distributed = distributed
        self.stand_in = stand_in
        self.server_pid: int = self.raw.get_server_pid()
        self.deadline_s = deadline_s
        self.expired = False
        """Whether a statement was not answered within the deadline, so that the connection was cut."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        with _Deadline(self):
            return await super().fetch(sql, args)

    async def fetch_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> Sequence[Row]:
        with _Deadline(self):
            return await super().fetch_many(sql, rows)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with _Deadline(self):
            await super().many(sql, rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _OwnSavepoint(self)

    def expire(self) -> None:
        """Cut the connection. The server is not asked to cancel the statement: it does not answer."""
        self.expired = True
        self.raw.terminate()


class _OwnSavepoint(Savepoint):
    """A savepoint or transaction of our own."""

    commit = SETTLED_COMMIT

    def __init__(self, connection: PooledConnection) -> None:
        super().__init__(connection.raw)
        self._connection = connection

    async def _say(self, sql: str) -> None:
        with _Deadline(self._connection):
            await super()._say(sql)


class _Deadline:
    """Cuts a connection if a statement takes too long."""

    __slots__ = ("_connection", "_timer")

    def __init__(self, connection: PooledConnection) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        connection = self._connection
        if connection.deadline_s:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(connection.deadline_s, connection.expire)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


class AsyncPool:
    """asyncpg's pool, with an age limit, health checks and without the round trip that resets a connection."""

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._options = options
        self._dialing = for_asyncpg(url, options.connect_timeout_s)
        self._pool: Any = None
        self._closing = False
        self._distrusted_s = -inf
        """When a server did not answer: connections that are older are not used again."""
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self.behind_pooler = False
        """Whether a transaction pooler stands in between: then every statement needs a transaction around it."""
        self.distributed = False
        """Whether tables are distributed over several nodes: then a transaction must not hold several tenants."""

    async def open(self) -> None:
        """Connect.

        Raises:
            InvalidInput: the address has options that nobody understands.
            Unavailable: the server cannot be reached.
        """
        options = self._options
        try:
            await self._look_around()
            self._pool = await asyncpg.create_pool(
                min_size=options.kept,
                max_size=options.max_connections,
                max_inactive_connection_lifetime=options.max_idle_s,
                connect=self._connect,
                # Behind a transaction pooler a prepared statement may be on another server connection next time.
                statement_cache_size=0 if self.behind_pooler else STATEMENTS,
                reset=_leave_as_it_is,
            )
        except (asyncpg.exceptions.ClientConfigurationError, ValueError):
            raise InvalidInput(NOT_UNDERSTOOD) from None
        except _FAILURES as error:
            raise Unavailable(f"cannot connect to PostgreSQL: {error}") from error
        self._closing = False

    async def close(self) -> None:
        """Close every connection, once they have all been given back."""
        if self._pool is None:
            return
        self._closing = True  # from now on connections are only given back
        try:
            await asyncio.wait_for(self._pool.close(), CLOSE_S)
        except TimeoutError:
            self._pool.terminate()
        finally:
            self._pool = None
            self._born.clear()
            self._used.clear()

    @asynccontextmanager
    async def lend(self, *, deadline: bool = True) -> AsyncIterator[PooledConnection]:
        """A connection for as long as the block lasts.

        Raises:
            NoAnswer: the server did not answer a statement within the deadline.
        """
        connection = await self.take()
        if not deadline:
            connection.deadline_s = 0.0
        try:
            yield connection
        except HoldfastError as error:
            lost = isinstance(error, ConnectionLost)
            await self.give_back(connection, spoiled=lost and not is_reported(error.__cause__))
            if lost and connection.expired:
                raise NoAnswer from error
            raise
        except BaseException:
            # Interrupted, perhaps in the middle of an exchange: an answer may still be under way to it.
            await self.give_back(connection, spoiled=True)
            raise
        await self.give_back(connection)

    async def take(self) -> PooledConnection:
        """A healthy connection.

        Raises:
            Unavailable: the server cannot be reached, or every connection is busy.
        """
        while True:
            if self._pool is None or self._closing:
                raise Closed
            try:
                stand_in: Raw = await self._pool.acquire(timeout=self._options.connect_timeout_s)
            except TimeoutError as error:
                raise Unavailable(
                    f"no connection within {self._options.connect_timeout_s} s: all {self._options.max_connections} are busy, "
                    f"or PostgreSQL does not answer {error}".rstrip()
                ) from None
            except _FAILURES as error:
                raise translated(error) from error
            connection = PooledConnection(stand_in, self._options.statement_deadline_s, distributed=self.distributed)
            try:
                healthy = await self.healthy(connection)
            except BaseException:
                await self.give_back(connection, spoiled=True)
                raise
            if healthy:
                return connection
            await self.give_back(connection, spoiled=True)

    async def healthy(self, connection: PooledConnection) -> bool:
        """Whether a connection is not too old and, if it has been idle for long, still answers."""
        raw, now = connection.raw, monotonic_s()
        if raw.is_closed():
            return False
        key = connection.server_pid
        born = self._born.setdefault(key, now)
        if born < self._distrusted_s or now - born > self._options.max_lifetime_s:
            return False
        is_recent = now - self._used.get(key, now) < self._options.health_check_s
        return (is_recent and not _has_arrived(raw)) or await _answers(raw)

    def used(self, connection: PooledConnection) -> None:
        """Note that a connection has just answered."""
        self._used[connection.server_pid] = monotonic_s()

    async def give_back(self, connection: PooledConnection, *, spoiled: bool = False) -> None:
        """Return a connection; a spoiled one is thrown away and the pool makes another."""
        raw = connection.raw
        if connection.expired:
            self._distrusted_s = max(self._distrusted_s, monotonic_s() - self._options.statement_deadline_s)
        if spoiled or raw.is_closed():
            self._used.pop(connection.server_pid, None)
            self._born.pop(connection.server_pid, None)
            if raw._cancellations:
                # The caller was cancelled, and asyncpg is telling the server, which would not notice a cut connection before
                # the statement ends. To terminate the connection now would keep the server from being told.
                await asyncio.wait([*raw._cancellations], timeout=CANCEL_S)
            raw.terminate()
        else:
            self.used(connection)
        if self._pool is None:
            return
        try:
            await self._pool.release(connection.stand_in)
        except _FAILURES:
            return  # it was bad, and is gone

    async def _look_around(self) -> None:
        """See what is between us and the tables."""
        raw = await self._connect(statement_cache_size=0)
        try:
            async with raw.transaction(), asyncio.timeout(self._dialing.timeout_s):
                self.distributed = await is_distributed(AsyncpgConnection(raw))
                pid = await raw.fetchval("SELECT pg_backend_pid()")
                # A pooler hands out a process id of its own invention.
                self.behind_pooler = pid != raw.get_server_pid()
        finally:
            await raw.close(timeout=CLOSE_S)

    async def _connect(self, _: str | None = None, **options: Any) -> Raw:
        """A new connection to the first host that takes it, each within its own time."""
        dialing = self._dialing
        for attempt in dialing.attempts:
            try:
                raw: Raw = await asyncpg.connect(dialing.url, **options, **attempt, timeout=dialing.timeout_s)
            except (asyncpg.exceptions.ClientConfigurationError, ValueError):
                raise
            except TimeoutError:
                failed: Exception = TimeoutError(f"no answer within {dialing.timeout_s:g} s")
            except _FAILURES as error:
                failed = error
            else:
                dialing.set_socket(raw._transport.get_extra_info("socket"))
                self._born[raw.get_server_pid()] = monotonic_s()
                return raw
        raise failed


def _has_arrived(raw: Raw) -> bool:
    """Whether something has arrived on an idle connection: most likely the server's last message."""
    try:
        waiting = select.poll()
        waiting.register(
            raw._transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP | select.POLLERR
        )
        return bool(waiting.poll(0))
    except (AttributeError, OSError, ValueError):  # closed meanwhile
        return True


async def _answers(raw: Raw) -> bool:
    try:
        await raw.fetchval("SELECT 1", timeout=PING_S)
    except _FAILURES:
        return False
    return True


async def _leave_as_it_is(raw: Raw) -> None:
    """Our calls leave nothing behind in a connection, so the round trip that would reset it is saved."""
