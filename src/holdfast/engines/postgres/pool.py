"""A pool of asyncpg connections that are young, alive and never left in the middle of an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg

from ...clock import monotonic_s
from ...drivers.asyncpg_own import AsyncpgConnection, translated
from ...errors import Closed, HoldfastError, InvalidInput, Unavailable
from .errors import ConnectionLost
from .options import NOT_UNDERSTOOD, PoolOptions
from .urls import for_asyncpg

Raw: TypeAlias = Any
"""A connection of asyncpg, which has no types of its own."""

STATEMENTS = 256
"""Prepared statements a connection keeps."""
CLOSE_S = 10.0
"""How long closing waits for connections that are still busy before it cuts them."""
PING_S = 5.0
"""How long a connection that was idle may take to show that it is alive."""
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class PooledConnection(AsyncpgConnection):
    """A connection of the pool. Statements go to asyncpg's connection itself: its stand-in, which the pool wants back, refuses
    every question once the connection has ended, even whether it is closed."""

    def __init__(self, stand_in: Raw) -> None:
        super().__init__(stand_in._con)
        self.stand_in = stand_in
        self.server_pid: int = self.raw.get_server_pid()


class AsyncPool:
    """asyncpg's pool, with an age limit, health checks and without the round trip that resets a connection."""

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._options = options
        self._url, self._timeout_s = for_asyncpg(url, options.connect_timeout_s)
        self._pool: Any = None
        self._closing = False
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self.behind_pooler = False
        """Whether a transaction pooler stands in between: then every statement needs a transaction around it."""

    async def open(self) -> None:
        """Connect.

        Raises:
            InvalidInput: the address has options that nobody understands.
            Unavailable: the server cannot be reached.
        """
        options = self._options
        try:
            self.behind_pooler = await self._finds_pooler()
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=options.kept,
                max_size=options.max_connections,
                max_inactive_connection_lifetime=options.max_idle_s,
                timeout=self._timeout_s,
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
    async def lend(self) -> AsyncIterator[PooledConnection]:
        """A connection for as long as the block lasts."""
        connection = await self.take()
        try:
            yield connection
        except HoldfastError as error:
            await self.give_back(connection, spoiled=isinstance(error, ConnectionLost))
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
            except TimeoutError:
                raise Unavailable(f"all {self._options.max_connections} connections are busy") from None
            except _FAILURES as error:
                raise translated(error) from error
            connection = PooledConnection(stand_in)
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
        if now - self._born.setdefault(key, now) > self._options.max_lifetime_s:
            return False
        return now - self._used.get(key, now) < self._options.health_check_s or await _answers(raw)

    def used(self, connection: PooledConnection) -> None:
        """Note that a connection has just answered."""
        self._used[connection.server_pid] = monotonic_s()

    async def give_back(self, connection: PooledConnection, *, spoiled: bool = False) -> None:
        """Return a connection; a spoiled one is thrown away and the pool makes another."""
        raw = connection.raw
        if spoiled or raw.is_closed():
            self._used.pop(connection.server_pid, None)
            self._born.pop(connection.server_pid, None)
            raw.terminate()
        else:
            self.used(connection)
        if self._pool is None:
            return
        try:
            await self._pool.release(connection.stand_in)
        except _FAILURES:
            return  # it was bad, and is gone

    async def _finds_pooler(self) -> bool:
        raw: Raw = await asyncpg.connect(self._url, statement_cache_size=0, timeout=self._timeout_s)
        try:
            async with raw.transaction():
                # A pooler hands out a process id of its own invention.
                return bool(await raw.fetchval("SELECT pg_backend_pid()") != raw.get_server_pid())
        finally:
            await raw.close()


async def _answers(raw: Raw) -> bool:
    try:
        await raw.fetchval("SELECT 1", timeout=PING_S)
    except _FAILURES:
        return False
    return True


async def _leave_as_it_is(raw: Raw) -> None:
    """Our calls leave nothing behind in a connection, so the round trip that would reset it is saved."""
