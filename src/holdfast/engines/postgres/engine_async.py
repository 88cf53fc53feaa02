"""Asynchronous PostgreSQL engine on asyncpg: calls run on pooled connections, grouped writes go through a batcher."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ...errors import Closed, HoldfastError
from .. import fork_safety
from ..dialect import Dialect
from ..loop_affinity import refuse_other_loop
from ..protocol import Call, Group
from .batcher import Batcher
from .options import PoolOptions
from .pool import AsyncPool
from .retries import AGAIN, TRIES, final_error, pause_s

T = TypeVar("T")
Item = TypeVar("Item")


class AsyncPostgresEngine:
    """Asynchronous engine for one event loop."""

    dialect = Dialect.POSTGRES
    blocking = False
    joined = False
    distributed: bool | None = None

    def __init__(self, url: str, options: PoolOptions) -> None:
        self._pool = AsyncPool(url, options)
        self._batcher = Batcher(self._pool, options.max_connections)
        self._closed = True
        self._opening = asyncio.Lock()  # held while the engine is opened or closed

    async def open(self) -> bool:
        """Connect. Return ``False`` if the engine was already open.

        Raises:
            Unavailable: the server cannot be reached.
        """
        async with self._opening:
            if not self._closed:
                return False
            self._loop = asyncio.get_running_loop()
            await self._pool.open()
            self.distributed = self._pool.distributed
            self._closed = False
            fork_safety.register(self)
            return True

    async def read(self, call: Call[T]) -> T:
        return await self._again(call, transaction=self._pool.behind_pooler)

    async def write(self, call: Call[T]) -> T:
        return await self._again(call, transaction=True)

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        if self._closed:
            raise Closed
        refuse_other_loop(self._loop)
        return await self._batcher.submit(group, item)

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction. Used by migrations."""
        async with self._pool.lend(deadline=False) as connection:
            return await call(connection)

    async def close(self) -> None:
        """Finish accepted calls and close every connection. Closing again has no effect."""
        async with self._opening:
            if self._closed:
                return
            self._closed = True
            await self._batcher.close()
            await self._pool.close()
            fork_safety.unregister(self)

    async def _again(self, call: Call[T], *, transaction: bool) -> T:
        if self._closed:
            raise Closed
        refuse_other_loop(self._loop)
        for attempt in range(TRIES):
            try:
                async with self._pool.lend() as connection:
                    if not transaction:
                        return await call(connection)
                    async with connection.savepoint():
                        return await call(connection)
            except AGAIN as error:
                last: HoldfastError = error
                await asyncio.sleep(pause_s(attempt))
        raise final_error(last)
