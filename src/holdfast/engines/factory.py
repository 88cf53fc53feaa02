"""Create the engine for an address. Engines are imported on first use, because asyncio and the drivers take time to load."""

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
    """An engine that owns its connections."""

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on one connection, outside any transaction. Used by migrations."""

    async def close(self) -> None:
        """Finish accepted calls and close every connection."""


class AsyncOwnEngine(OwnEngine, Protocol):
    """An asynchronous engine; it is opened inside the event loop."""

    async def open(self) -> bool:
        """Connect. Return ``False`` if the engine was already open."""


def blocking(address: Address, *, durability: Durability, pool: PoolOptions | None) -> OwnEngine:
    """Return an open engine for synchronous callers."""
    if address.engine == "sqlite":
        return SqliteEngine(_file(address, durability))
    with needs("postgres"):
        from .postgres.engine import PostgresEngine
    return PostgresEngine(*split_pool(address.place, pool))


def asynchronous(address: Address, *, durability: Durability, pool: PoolOptions | None) -> AsyncOwnEngine:
    """Return an engine for asyncio that is not open yet."""
    if address.engine == "sqlite":
        from .sqlite.engine_async import AsyncSqliteEngine

        return AsyncSqliteEngine(_file(address, durability))
    with needs("postgres"):
        from .postgres.engine_async import AsyncPostgresEngine
    return AsyncPostgresEngine(*split_pool(address.place, pool))


def _file(address: Address, durability: Durability) -> SqliteFile:
    return SqliteFile(address.place, durability=durability, read_only=address.read_only, library=address.library)
