"""Pool of asyncpg connections with an age limit and health checks; one interrupted in an exchange is not reused.

If a caller is cancelled, asyncpg sends a cancel request, so that the server stops the statement as well.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Any, TypeAlias

import asyncpg

from ...clock import monotonic_s
from ...drivers.asyncpg_connection import AsyncpgConnection, AsyncpgSavepoint, holdfast_error, is_reported
from ...errors import Closed, HoldfastError, InvalidInput, Unavailable
from ..protocol import Row
from .citus import is_distributed
from .errors import ConnectionLost, NoAnswer
from .options import NOT_UNDERSTOOD, PoolOptions
from .retries import REPLICATED_COMMIT
from .urls import for_asyncpg

Raw: TypeAlias = Any
"""An asyncpg connection; asyncpg ships no type hints."""

STATEMENTS = 256
"""Prepared statements cached by a connection."""
CLOSE_S = 10.0
"""Time that ``close`` waits for busy connections before it terminates them."""
PING_S = 5.0
"""Timeout of the health check of an idle connection."""
CANCEL_S = 1.0
"""Time to deliver a cancel request to the server before the connection is terminated anyway."""
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class PooledConnection(AsyncpgConnection):
    """A connection from the pool. Statements go to asyncpg's connection itself, not to the proxy, which must be returned to
    the pool: once the connection has ended, the proxy refuses every call, even ``is_closed``."""

    def __init__(self, proxy: Raw, deadline_s: float, *, distributed: bool = False) -> None:
        super().__init__(proxy._con)
        self.distributed = distributed
        self.proxy = proxy
        self.server_pid: int = self.raw.get_server_pid()
        self.deadline_s = deadline_s
        self.expired = False
        """Whether the connection was terminated because a statement exceeded its deadline."""

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
        return _PooledSavepoint(self)

    def expire(self) -> None:
        """Terminate the connection, without a cancel request: the server does not respond."""
        self.expired = True
        self.raw.terminate()


class _PooledSavepoint(AsyncpgSavepoint):
    """A savepoint or transaction on a pooled connection."""

    commit = REPLICATED_COMMIT

    def __init__(self, connection: PooledConnection) -> None:
        super().__init__(connection.raw)
        self._connection = connection

    async def _execute(self, sql: str) -> None:
        with _Deadline(self._connection):
            await super()._execute(sql)


class _Deadline:
    """Terminates a connection whose statement exceeds its deadline."""

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
    """asyncpg's pool with an age limit and health checks, and without the round trip that resets a connection."""

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._options = options
        self._connect_settings = for_asyncpg(url, options.connect_timeout_s)
        self._pool: Any = None
        self._closing = False
        self._distrusted_s = -inf
        """Time at which a server last failed to answer: connections opened before it are not used again."""
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self.behind_pooler = False
        """Whether a transaction pooler is in front of the server: then every statement needs an explicit transaction."""
        self.distributed = False
        """Whether tables are distributed over several nodes: then a transaction must not contain several tenants."""

    async def open(self) -> None:
        """Connect.

        Raises:
            InvalidInput: the address has unknown options.
            Unavailable: the server cannot be reached.
        """
        options = self._options
        try:
            await self._detect_server()
            self._pool = await asyncpg.create_pool(
                min_size=options.kept,
                max_size=options.max_connections,
                max_inactive_connection_lifetime=options.max_idle_s,
                connect=self._connect,
                # A transaction pooler may use another server connection next time, which lacks the prepared statement.
                statement_cache_size=0 if self.behind_pooler else STATEMENTS,
                reset=_skip_reset,
            )
        except (asyncpg.exceptions.ClientConfigurationError, ValueError):
            raise InvalidInput(NOT_UNDERSTOOD) from None
        except _FAILURES as error:
            raise Unavailable(f"cannot connect to PostgreSQL: {error}") from error
        self._closing = False

    async def close(self) -> None:
        """Close every connection after all have been returned."""
        if self._pool is None:
            return
        self._closing = True  # no more connections are lent
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
        """Lend a connection for the duration of the block.

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
            # Interrupted, possibly during an exchange: a response may still arrive on the connection.
            await self.give_back(connection, spoiled=True)
            raise
        await self.give_back(connection)

    async def take(self) -> PooledConnection:
        """Take a healthy connection from the pool.

        Raises:
            Unavailable: the server cannot be reached, or every connection is busy.
        """
        while True:
            if self._pool is None or self._closing:
                raise Closed
            try:
                proxy: Raw = await self._pool.acquire(timeout=self._options.connect_timeout_s)
            except TimeoutError as error:
                raise Unavailable(
                    f"got no connection to PostgreSQL within {self._options.connect_timeout_s} s: all "
                    f"{self._options.max_connections} are busy, or the server does not answer {error}".rstrip()
                ) from None
            except _FAILURES as error:
                raise holdfast_error(error) from error
            connection = PooledConnection(proxy, self._options.statement_deadline_s, distributed=self.distributed)
            try:
                healthy = await self.healthy(connection)
            except BaseException:
                await self.give_back(connection, spoiled=True)
                raise
            if healthy:
                return connection
            await self.give_back(connection, spoiled=True)

    async def healthy(self, connection: PooledConnection) -> bool:
        """Return whether a connection is not too old and, if it was idle for long, still answers."""
        raw, now = connection.raw, monotonic_s()
        if raw.is_closed():
            return False
        key = connection.server_pid
        born = self._born.setdefault(key, now)
        if born < self._distrusted_s or now - born > self._options.max_lifetime_s:
            return False
        is_recent = now - self._used.get(key, now) < self._options.health_check_s
        return (is_recent and not _has_input(raw)) or await _answers(raw)

    def mark_used(self, connection: PooledConnection) -> None:
        """Record that a connection has just answered."""
        self._used[connection.server_pid] = monotonic_s()

    async def give_back(self, connection: PooledConnection, *, spoiled: bool = False) -> None:
        """Return a connection. A spoiled one is closed, and the pool replaces it."""
        raw = connection.raw
        if connection.expired:
            self._distrusted_s = max(self._distrusted_s, monotonic_s() - self._options.statement_deadline_s)
        if spoiled or raw.is_closed():
            self._used.pop(connection.server_pid, None)
            self._born.pop(connection.server_pid, None)
            if raw._cancellations:
                # The caller was cancelled and asyncpg is sending a cancel request. Terminating the connection now would stop
                # that request, and the server would only notice the closed connection when the statement ends.
                await asyncio.wait([*raw._cancellations], timeout=CANCEL_S)
            raw.terminate()
        else:
            self.mark_used(connection)
        if self._pool is None:
            return
        try:
            await self._pool.release(connection.proxy)
        except _FAILURES:
            return  # the connection was broken and has been dropped

    async def _detect_server(self) -> None:
        """Detect whether a pooler is in front of the server and whether the tables are distributed."""
        raw = await self._connect(statement_cache_size=0)
        try:
            async with raw.transaction(), asyncio.timeout(self._connect_settings.timeout_s):
                self.distributed = await is_distributed(AsyncpgConnection(raw))
                pid = await raw.fetchval("SELECT pg_backend_pid()")
                # A pooler reports a process id that it made up.
                self.behind_pooler = pid != raw.get_server_pid()
        finally:
            await raw.close(timeout=CLOSE_S)

    async def _connect(self, _: str | None = None, **options: Any) -> Raw:
        """Connect to the first host that accepts, with a timeout for each host."""
        settings = self._connect_settings
        for attempt in settings.attempts:
            try:
                raw: Raw = await asyncpg.connect(settings.url, **options, **attempt, timeout=settings.timeout_s)
            except (asyncpg.exceptions.ClientConfigurationError, ValueError):
                raise
            except TimeoutError:
                last_error: Exception = TimeoutError(f"no answer within {settings.timeout_s:g} s")
            except _FAILURES as error:
                last_error = error
            else:
                settings.set_socket_options(raw._transport.get_extra_info("socket"))
                self._born[raw.get_server_pid()] = monotonic_s()
                return raw
        raise last_error


def _has_input(raw: Raw) -> bool:
    """Return whether an idle connection has unread input, which is most likely the server's message that it shuts down."""
    try:
        poll = select.poll()
        poll.register(raw._transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # the connection was closed in between
        return True


async def _answers(raw: Raw) -> bool:
    try:
        await raw.fetchval("SELECT 1", timeout=PING_S)
    except _FAILURES:
        return False
    return True


async def _skip_reset(raw: Raw) -> None:
    """Skip the round trip that resets a connection: our calls leave no state in it."""
