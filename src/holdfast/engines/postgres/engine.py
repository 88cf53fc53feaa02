"""PostgreSQL for synchronous callers, through psycopg 3 and its pool, from any number of threads."""

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
from ...drivers.psycopg_states import translated
from ...errors import Closed, HoldfastError, InvalidInput, Unavailable
from ...sync_runner import step
from .. import fork_safety
from ..dialect import Dialect
from ..protocol import Call, Group
from .citus import is_distributed
from .errors import ConnectionLost, NoAnswer
from .options import NOT_UNDERSTOOD, PoolOptions
from .retries import AGAIN, SETTLED_COMMIT, TRIES, given_up, pause_s, run_alone
from .urls import for_libpq

T = TypeVar("T")
Item = TypeVar("Item")

RECONNECT_S = 2.0
"""How long one attempt of the pool to replace a connection goes on."""
ASK_AGAIN_S = 1.0
"""How long a call waits for a connection before it asks once more: a pool that has given up tries again only when it is asked."""


PING_S = 5.0
"""How long a connection that was idle may take to show that it is alive."""


class Raw(psycopg.Connection[Any]):
    """psycopg's connection, with a deadline for each exchange with the server."""

    deadline_s = 0.0
    expired = False
    """Whether an answer did not come within the deadline, so that the connection was closed."""

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
    """The deadline has passed."""


def _until(deadline_s: float, exchange: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """An exchange that is given up after its deadline. psycopg resumes it every tenth of a second, with 0 for nothing new."""
    ready: int | None = None
    while True:
        try:
            wanted = exchange.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer
        ready = yield wanted
        if not ready and monotonic_s() > deadline_s:
            raise _Expired


class OwnConnection(PsycopgConnection):
    """A connection of the pool."""

    raw: Raw
    commit = SETTLED_COMMIT


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
    distributed: bool | None = None

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._options = options
        self._used: WeakKeyDictionary[Raw, float] = WeakKeyDictionary()
        self._distrusted_s = -inf
        """When a server did not answer: connections that are older are not used again."""
        dialing = for_libpq(url, options.connect_timeout_s)
        self._through_pooler = self._finds_pooler(url, dialing)
        self._pool = _LastFirst(
            url,
            # Behind a transaction pooler a prepared statement may be on another server connection next time.
            kwargs={**dialing, "autocommit": True, "prepare_threshold": None if self._through_pooler else 2},
            connection_class=Raw,
            configure=self._set_deadline,
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
        fork_safety.opened(self)

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
        raise given_up(last)

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction and without a deadline; for migrations."""
        with self._connection() as connection:
            connection.raw.deadline_s = 0.0
            try:
                return await call(connection)
            finally:
                self._set_deadline(connection.raw)

    async def close(self) -> None:
        """Close every connection. Closing twice is fine."""
        fork_safety.closed(self)
        self._pool.close()

    def _set_deadline(self, raw: Raw) -> None:
        raw.deadline_s = self._options.statement_deadline_s

    def _finds_pooler(self, url: str, dialing: dict[str, Any]) -> bool:
        try:
            with Raw.connect(url, **dialing, prepare_threshold=None) as raw:
                self._set_deadline(raw)
                self.distributed = step(is_distributed(PsycopgConnection(raw)))
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
    def _connection(self) -> Iterator[OwnConnection]:
        """A connection of the pool. One that was interrupted in the middle of an exchange is thrown away."""
        raw = self._healthy()
        try:
            connection = OwnConnection(raw)
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

    def _healthy(self) -> Raw:
        """A connection that, if it has been idle for long, still answers."""
        while True:
            raw = self._taken()
            now = monotonic_s()
            recent = now - self._used.get(raw, now) < self._options.health_check_s
            if raw.born_s < self._distrusted_s:
                raw.close()
            elif (recent and not _has_something_to_say(raw)) or self._answers(raw):
                return raw
            self._pool.putconn(raw)

    def _answers(self, raw: Raw) -> bool:
        raw.deadline_s = PING_S
        try:
            raw.execute("SELECT 1")
        except psycopg.Error:
            raw.close()
            return False
        self._set_deadline(raw)
        return True

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
