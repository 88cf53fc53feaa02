"""The SQLite engine of a simulation, which suspends before every reading statement and before every commit.

It is the real engine with the real writer; coroutines take the place of threads, and the simulation decides which one
continues. Calls of one process that wait at the same time share one commit, as in production.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from ...engines.dialect import Dialect
from ...engines.protocol import Call, Group, Row
from ...engines.sqlite.engine import SqliteEngine, _WaitingJob
from ...engines.sqlite.file import SqliteConnection
from ...errors import Closed

T = TypeVar("T")
Item = TypeVar("Item")


class Suspension:
    """Awaited by a coroutine to let others run, until the simulation resumes it or until a point in time."""

    __slots__ = ("until_us",)

    def __init__(self, until_us: int = 0) -> None:
        self.until_us = until_us

    def __await__(self) -> Generator[Suspension, None, None]:
        yield self


class SimulatedEngine(SqliteEngine):
    """The engine of one simulated process."""

    blocking = False

    async def read(self, call: Call[T]) -> T:
        if self._closed:
            raise Closed
        reader = self._take_reader()
        try:
            return await call(_SuspendingConnection(reader))
        finally:
            self._give_back(reader)

    async def write(self, call: Call[T]) -> T:
        result: T = await self._queue(_WaitingJob(call=call))
        return result

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        result: T = await self._queue(_WaitingJob(group=group, item=item))
        return result

    async def _queue(self, job: _WaitingJob) -> Any:
        """Wait with the other writes; the first coroutine to continue commits for all of them."""
        self._waiting.append(job)
        await Suspension()
        if not job.settled:
            with self._leadership():
                self._lead()
        if job.error is not None:
            raise job.error
        return job.result


class _SuspendingConnection:
    """A reading connection that suspends before each statement."""

    dialect = Dialect.SQLITE
    distributed = False

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        await Suspension()
        return self._connection.execute(sql, args)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await Suspension()
        await self._connection.many(sql, rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._connection.savepoint()
