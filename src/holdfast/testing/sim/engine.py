"""The SQLite engine, suspended at every statement it reads with and before every commit.

It is the real engine with the real writer. Where threads would wait for their turn, coroutines do: who goes on is decided by the
simulation. Calls of one process that wait together are committed together, as they are in production.
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


class Turn:
    """What a coroutine awaits to let others go on: until there is time for it, or until a moment."""

    __slots__ = ("until_us",)

    def __init__(self, until_us: int = 0) -> None:
        self.until_us = until_us

    def __await__(self) -> Generator[Turn, None, None]:
        yield self


class SimulatedEngine(SqliteEngine):
    """The engine of one simulated process."""

    blocking = False

    async def read(self, call: Call[T]) -> T:
        if self._closed:
            raise Closed
        reader = self._take_reader()
        try:
            return await call(_Suspending(reader))
        finally:
            self._give_back(reader)

    async def write(self, call: Call[T]) -> T:
        result: T = await self._queue(_WaitingJob(call=call))
        return result

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        result: T = await self._queue(_WaitingJob(group=group, item=item))
        return result

    async def _queue(self, job: _WaitingJob) -> Any:
        """Wait with the others; whoever goes on first commits for all of them."""
        self._waiting.append(job)
        await Turn()
        if not job.settled:
            with self._leadership():
                self._lead()
        if job.error is not None:
            raise job.error
        return job.result


class _Suspending:
    """A reading connection that lets others go on before each statement."""

    dialect = Dialect.SQLITE
    distributed = False

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        await Turn()
        return self._connection.execute(sql, args)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await Turn()
        await self._connection.many(sql, rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._connection.savepoint()
