"""PostgreSQL for synchronous callers, through psycopg 3 and its pool, from any number of threads."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ...clock import monotonic_s, pause
from ...drivers.psycopg import PsycopgConnection
from ...drivers.psycopg_states import translated
from ...errors import Closed, HoldfastError, InvalidInput, Unavailable
from .. import forks
from ..dialect import Dialect
from ..protocol import Call, Group
from .errors import ConnectionLost, Serialization
from .options import NOT_UNDERSTOOD, PoolOptions
from .retrying import AGAIN, TRIES, given_up, pause_s, run_alone

T = TypeVar("T")
Item = TypeVar("Item")
Raw = psycopg.Connection[Any]

RECONNECT_S = 2.0
"""How long one attempt of the pool to replace a connection goes on."""
ASK_AGAIN_S = 1.0
"""How long a call waits for a connection before it asks once more: a pool that has given up tries again only when it is asked."""


class _Stack(deque[Raw]):
    """What psycopg's pool keeps its connections in, which it adds at the one end and takes from the other."""

    def append(self, raw: Raw) -> None:
        self.appendleft(raw)


class _LastFirst(ConnectionPool[Raw]):
    """A pool that gives out the connection that was used last. psycopg's own gives the one that has rested longest: a lone
    caller would go through all of them in turn, and each prepares every statement and fills pages of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._pool = _Stack()


class PostgresEngine:
    """A blocking engine: its methods never suspend.

    Raises:
        InvalidInput: the address has options that nobody understands.
        Unavailable: the server cannot be reached.
    """

    dialect = Dialect.POSTGRES
    blocking = True
    joined = False

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._options = options
        self._used: WeakKeyDictionary[Raw, float] = WeakKeyDictionary()
        self._through_pooler = self._finds_pooler(url)
        self._pool = _LastFirst(
            url,
            # Behind a transaction pooler a prepared statement may be on another server connection next time.
            kwargs={"autocommit": True, "prepare_threshold": None if self._through_pooler else 2},
            min_size=options.kept,
            max_size=options.max_connections,
            max_lifetime=options.max_lifetime_s,
            max_idle=options.max_idle_s,
            timeout=options.connect_timeout_s,
            # Given up soon, so that the next call starts afresh, instead of pauses that double all through an outage.
            reconnect_timeout=RECONNECT_S,
            open=False,
        )
        self._pool.open()
        forks.opened(self)

    async def read(self, call: Call[T]) -> T:
        return await self._again(call, transaction=self._through_pooler)

    async def write(self, call: Call[T]) -> T:
        return await self._again(call, transaction=True)

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        for attempt in range(TRIES):
            try:
                with self._connection() as connection:
                    return await run_alone(group, connection, item, transaction=self._through_pooler)
            except Serialization as error:
                last: HoldfastError = error
                pause(pause_s(attempt))
        raise given_up(last)

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction; for migrations."""
        with self._connection() as connection:
            return await call(connection)

    async def close(self) -> None:
        """Close every connection. Closing twice is fine."""
        forks.closed(self)
        self._pool.close()

    def _finds_pooler(self, url: str) -> bool:
        timeout = max(2, round(self._options.connect_timeout_s))
        try:
            with psycopg.connect(url, connect_timeout=timeout, prepare_threshold=None) as raw:
                row = raw.execute("SELECT pg_backend_pid()").fetchone()
                # A pooler hands out a process id of its own invention.
                return row is not None and row[0] != raw.info.backend_pid
        except psycopg.ProgrammingError:
            raise InvalidInput(NOT_UNDERSTOOD) from None
        except psycopg.Error as error:
            said = str(error)
            if said.startswith("connection is bad") and "connection to server" not in said:  # the words of an option
                raise InvalidInput(NOT_UNDERSTOOD) from None
            raise Unavailable(f"cannot connect to PostgreSQL: {error}") from error

    async def _again(self, call: Call[T], *, transaction: bool) -> T:
        for attempt in range(TRIES):
            try:
                with self._connection() as connection:
                    if not transaction:
                        return await call(connection)
                    async with connection.savepoint():
                        return await call(connection)
            except AGAIN as error:
                last: HoldfastError = error
                if isinstance(error, ConnectionLost):
                    self._pool.check()  # after a restart the others are dead as well
                pause(pause_s(attempt))
        raise given_up(last)

    @contextmanager
    def _connection(self) -> Iterator[PsycopgConnection]:
        """A connection of the pool. One that was interrupted in the middle of an exchange is thrown away."""
        raw = self._healthy()
        try:
            yield PsycopgConnection(raw)
        except HoldfastError:
            raise
        except BaseException:
            raw.close()
            raise
        finally:
            self._used[raw] = monotonic_s()
            self._pool.putconn(raw)

    def _healthy(self) -> Raw:
        """A connection that, if it has been idle for long, still answers."""
        while True:
            raw = self._taken()
            now = monotonic_s()
            recent = now - self._used.get(raw, now) < self._options.health_check_s
            if (recent and not _has_something_to_say(raw)) or _answers(raw):
                return raw
            self._pool.putconn(raw)

    def _taken(self) -> Raw:
        until = monotonic_s() + self._options.connect_timeout_s
        while True:
            left = until - monotonic_s()
            try:
                return self._pool.getconn(timeout=max(0.0, min(left, ASK_AGAIN_S)))
            except PoolClosed:
                raise Closed from None
            except PoolTimeout as error:
                if left > ASK_AGAIN_S:
                    continue
                raise Unavailable(f"no connection within {self._options.connect_timeout_s} s: {error}") from error
            except psycopg.Error as error:
                raise translated(error) from error


def _has_something_to_say(raw: Raw) -> bool:
    """Whether something has arrived on an idle connection: most likely the server's farewell."""
    if raw.closed:
        return True
    waiting = select.poll()
    waiting.register(raw.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(waiting.poll(0))


def _answers(raw: Raw) -> bool:
    try:
        raw.execute("SELECT 1")
    except psycopg.Error:
        raw.close()
        return False
    return True
