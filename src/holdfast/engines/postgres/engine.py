"""Blocking PostgreSQL engine on psycopg 3 and its pool, for any number of threads."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ...clock import monotonic_s, pause
from ...drivers.psycopg import PsycopgConnection
from ...drivers.psycopg_shared import holdfast_error
from ...errors import Closed, HoldfastError, InvalidInput, Unavailable
from ...sync_runner import step
from .. import fork_safety
from ..dialect import Dialect
from ..protocol import Call, Group
from .citus import is_distributed
from .errors import ConnectionLost, NoAnswer
from .options import NOT_UNDERSTOOD, PoolOptions
from .retries import AGAIN, REPLICATED_COMMIT, TRIES, final_error, pause_s, run_alone
from .urls import for_libpq

T = TypeVar("T")
Item = TypeVar("Item")

RECONNECT_S = 2.0
"""Seconds for which the pool tries to replace a connection before it gives up."""
POOL_RETRY_S = 1.0
"""Seconds after which a call requests a connection from the pool again: a pool that has given up reconnects only on request."""
PING_S = 5.0
"""Timeout of the health check of an idle connection."""


class DeadlineConnection(psycopg.Connection[Any]):
    """psycopg connection with a deadline for each exchange with the server."""

    deadline_s = 0.0
    expired = False
    """Whether the connection was closed because the server did not answer within the deadline."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.born_s = monotonic_s()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        if not self.deadline_s:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(monotonic_s() + self.deadline_s, gen), *args, **kwargs)
        except _Expired:
            self.expired = True
            self.close()
            raise psycopg.OperationalError(f"no answer within {self.deadline_s:g} s") from None


class _Expired(Exception):
    """The deadline of an exchange has passed."""


def _until(deadline_s: float, exchange: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run an exchange until its deadline. psycopg resumes the generator every 0.1 s and sends 0 if nothing has arrived."""
    ready: int | None = None
    while True:
        try:
            wait_for = exchange.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer
        ready = yield wait_for
        if not ready and monotonic_s() > deadline_s:
            raise _Expired


class PooledPsycopgConnection(PsycopgConnection):
    """A connection from the pool."""

    raw: DeadlineConnection
    commit = REPLICATED_COMMIT


class _LifoDeque(deque[DeadlineConnection]):
    """Container for the connections of psycopg's pool, which appends to the right and pops from the left."""

    def append(self, raw: DeadlineConnection) -> None:
        self.appendleft(raw)


class _LifoPool(ConnectionPool[DeadlineConnection]):
    """Pool that returns the most recently used connection. psycopg's own returns the least recently used one: a single
    caller would cycle through all of them, and each would prepare every statement and fill its own caches."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._pool = _LifoDeque()


class PostgresEngine:
    """Blocking engine: its methods never suspend.

    Raises:
        InvalidInput: the address has unknown options.
        Unavailable: the server cannot be reached.
    """

    dialect = Dialect.POSTGRES
    blocking = True
    joined = False
    distributed: bool | None = None

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._options = options
        self._used: WeakKeyDictionary[DeadlineConnection, float] = WeakKeyDictionary()
        self._distrusted_s = -inf
        """Time at which a server last failed to answer: connections opened before it are not used again."""
        connect_options = for_libpq(url, options.connect_timeout_s)
        self._through_pooler = self._detect_pooler(url, connect_options)
        self._pool = _LifoPool(
            url,
            # A transaction pooler may use another server connection next time, which lacks the prepared statement.
            kwargs={**connect_options, "autocommit": True, "prepare_threshold": None if self._through_pooler else 2},
            connection_class=DeadlineConnection,
            configure=self._set_deadline,
            min_size=options.kept,
            max_size=options.max_connections,
            max_lifetime=options.max_lifetime_s,
            max_idle=options.max_idle_s,
            timeout=options.connect_timeout_s,
            # Short, so that the next call makes a new attempt; otherwise the pauses would keep doubling during an outage.
            reconnect_timeout=RECONNECT_S,
            open=False,
        )
        self._pool.open()
        fork_safety.register(self)

    async def read(self, call: Call[T]) -> T:
        return await self._again(call, transaction=self._through_pooler)

    async def write(self, call: Call[T]) -> T:
        return await self._again(call, transaction=True)

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        for attempt in range(TRIES):
            try:
                with self._connection() as connection:
                    return await run_alone(group, connection, item, transaction=self._through_pooler)
            except AGAIN as error:
                last: HoldfastError = error
                pause(pause_s(attempt))
        raise final_error(last)

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction and without a deadline. Used by migrations."""
        with self._connection() as connection:
            connection.raw.deadline_s = 0.0
            try:
                return await call(connection)
            finally:
                self._set_deadline(connection.raw)

    async def close(self) -> None:
        """Close every connection. Closing again has no effect."""
        fork_safety.unregister(self)
        self._pool.close()

    def _set_deadline(self, raw: DeadlineConnection) -> None:
        raw.deadline_s = self._options.statement_deadline_s

    def _detect_pooler(self, url: str, connect_options: dict[str, Any]) -> bool:
        """Return whether a pooler is in front of the server; also detect whether the tables are distributed."""
        try:
            with DeadlineConnection.connect(url, **connect_options, prepare_threshold=None) as raw:
                self._set_deadline(raw)
                self.distributed = step(is_distributed(PsycopgConnection(raw)))
                row = raw.execute("SELECT pg_backend_pid()").fetchone()
                # A pooler reports a process id that it made up.
                return row is not None and row[0] != raw.info.backend_pid
        except psycopg.ProgrammingError:
            raise InvalidInput(NOT_UNDERSTOOD) from None
        except psycopg.Error as error:
            text = str(error)
            if text.startswith("connection is bad") and "connection to server" not in text:  # libpq rejects an option
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
                    self._pool.check()  # after a server restart the other connections are dead too
                pause(pause_s(attempt))
        raise final_error(last)

    @contextmanager
    def _connection(self) -> Iterator[PooledPsycopgConnection]:
        """Lend a connection from the pool. A connection that was interrupted during an exchange is closed."""
        raw = self._take_healthy()
        try:
            connection = PooledPsycopgConnection(raw)
            connection.distributed = bool(self.distributed)
            yield connection
        except ConnectionLost as error:
            if raw.expired:
                raise NoAnswer from error
            raise
        except HoldfastError:
            raise
        except BaseException:
            raw.close()
            raise
        finally:
            self._used[raw] = monotonic_s()
            if raw.expired:
                self._distrusted_s = max(self._distrusted_s, monotonic_s() - self._options.statement_deadline_s)
            self._pool.putconn(raw)

    def _take_healthy(self) -> DeadlineConnection:
        """Take a connection from the pool; one that was idle for long is checked first."""
        while True:
            raw = self._take()
            now = monotonic_s()
            recent = now - self._used.get(raw, now) < self._options.health_check_s
            if raw.born_s < self._distrusted_s:
                raw.close()
            elif (recent and not _has_input(raw)) or self._answers(raw):
                return raw
            self._pool.putconn(raw)

    def _answers(self, raw: DeadlineConnection) -> bool:
        raw.deadline_s = PING_S
        try:
            raw.execute("SELECT 1")
        except psycopg.Error:
            raw.close()
            return False
        self._set_deadline(raw)
        return True

    def _take(self) -> DeadlineConnection:
        deadline_s = monotonic_s() + self._options.connect_timeout_s
        while True:
            left_s = deadline_s - monotonic_s()
            try:
                return self._pool.getconn(timeout=max(0.0, min(left_s, POOL_RETRY_S)))
            except PoolClosed:
                raise Closed from None
            except PoolTimeout as error:
                if left_s > POOL_RETRY_S:
                    continue
                raise Unavailable(
                    f"got no connection to PostgreSQL within {self._options.connect_timeout_s} s: {error}"
                ) from error
            except psycopg.Error as error:
                raise holdfast_error(error) from error


def _has_input(raw: DeadlineConnection) -> bool:
    """Return whether an idle connection has unread input, which is most likely the server's message that it shuts down."""
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
