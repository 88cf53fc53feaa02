"""From an address to an engine. Each is imported when it is first opened: asyncio and the drivers take time to load."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ..address import Address
from ..extras import needs
from .postgres.options import PoolOptions, split_pool
from .protocol import Call, Engine
from .sqlite.engine import SqliteEngine
from .sqlite.file import Durability, SqliteFile

T = TypeVar("T")


class OwnEngine(Engine, Protocol):
    """An engine with connections of its own."""

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction; for migrations."""

    async def close(self) -> None:
        """Finish what was accepted and close every connection."""


class AsyncOwnEngine(OwnEngine, Protocol):
    """An engine that is opened inside the event loop."""

    async def open(self) -> bool:
        """Connect; ``False`` if that was done already."""


def blocking(address: Address, *, durability: Durability, pool: PoolOptions | None) -> OwnEngine:
    """An engine for synchronous callers, open."""
    if address.engine == "sqlite":
        return SqliteEngine(_file(address, durability))
    with needs("postgres"):
        from .postgres.engine import PostgresEngine
    return PostgresEngine(*split_pool(address.place, pool))


def asynchronous(address: Address, *, durability: Durability, pool: PoolOptions | None) -> AsyncOwnEngine:
    """An engine for asyncio, not yet open."""
    if address.engine == "sqlite":
        from .sqlite.engine_async import AsyncSqliteEngine

        return AsyncSqliteEngine(_file(address, durability))
    with needs("postgres"):
        from .postgres.engine_async import AsyncPostgresEngine
    return AsyncPostgresEngine(*split_pool(address.place, pool))


def _file(address: Address, durability: Durability) -> SqliteFile:
    return SqliteFile(address.place, durability=durability, read_only=address.read_only, library=address.library)
