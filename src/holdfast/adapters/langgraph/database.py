"""The handles of a saver: a synchronous one, and an asynchronous one for each event loop, all on the same database.

An asynchronous handle belongs to the event loop that opened it. A program may call ``asyncio.run`` many times with one saver, so
each loop gets its own handle. The handle is opened inside an async generator: ``asyncio.run`` closes async generators before it
closes the loop, which closes the handle.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from threading import Lock
from typing import Any

from holdfast import AsyncHoldfast, AsyncTenantHandle, Holdfast, Limits, TenantHandle
from holdfast.address import is_in_memory
from holdfast.errors import InvalidInput

Store = Any
"""A checkpoint store, synchronous or awaitable."""


class Database:
    """The database that a saver shares with its clones; LangGraph clones a saver to allow the types of a graph's schemas."""

    def __init__(self, where: str | TenantHandle | AsyncTenantHandle, tenant: str) -> None:
        if not isinstance(where, (str, TenantHandle, AsyncTenantHandle)):
            raise InvalidInput(
                f"where must be a path, a URL or hf.tenant(name), not {type(where).__name__}", field="where"
            )
        self._where, self._tenant = where, tenant
        self._lock = Lock()
        self._sync: TenantHandle | None = where if isinstance(where, TenantHandle) else None
        self._opened: AbstractContextManager[TenantHandle] | None = None
        self._loops: dict[AbstractEventLoop, _LoopHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> Limits:
        """The limits of the handles."""
        return Limits() if isinstance(self._where, str) else self._where.limits

    def sync_store(self) -> Store:
        """Return the checkpoint store of the synchronous handle, which the first call opens.

        Raises:
            InvalidInput: the saver was given an asynchronous handle of a database that cannot be opened a second time.
        """
        handle = self._sync
        if handle is None:
            with self._lock:
                handle = self._sync
                if handle is None:
                    opened = self._open_sync()
                    handle = self._sync = opened.__enter__()
                    self._opened = opened
        return handle.checkpoints

    async def async_store(self) -> Store:
        """Return the checkpoint store of the running event loop's asynchronous handle, which the first call opens."""
        if isinstance(self._where, AsyncTenantHandle):
            return self._where.checkpoints
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            opened = self._loops[loop] = _LoopHandle()
            opened.stores = self._stores(loop, opened)
            opened.opening = loop.create_task(_first(opened.stores))
        return await asyncio.shield(opened.opening) if opened.store is None else opened.store

    def close(self) -> None:
        """Close the handles that were opened here. A running event loop closes its own handle shortly afterwards."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                self._sync = None
                opened.__exit__(None, None, None)
        for loop in list(self._loops):
            if loop.is_running():
                loop.call_soon_threadsafe(self._close_soon)

    async def aclose(self) -> None:
        """Close the asynchronous handle of the running event loop."""
        opened = self._loops.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await asyncio.wait([opened.opening])
            await opened.stores.aclose()

    def _close_soon(self) -> None:
        closing = asyncio.ensure_future(self.aclose())
        self._closing.add(closing)  # the event loop itself does not keep a task alive
        closing.add_done_callback(self._closing.discard)

    async def _stores(self, loop: AbstractEventLoop, opened: _LoopHandle) -> AsyncGenerator[Store, None]:
        """Open the handle of an event loop, yield its store once, and close the handle."""
        handle = self._open_async()
        try:
            if handle is None:
                opened.store = _ThreadedStore(await asyncio.to_thread(self.sync_store))
                yield opened.store
            else:
                async with handle as tenant:
                    opened.store = tenant.checkpoints
                    yield opened.store
        finally:
            if self._loops.get(loop) is opened:  # ``aclose`` did not close it, or it could not be opened
                del self._loops[loop]

    def _open_sync(self) -> AbstractContextManager[TenantHandle]:
        if isinstance(self._where, AsyncTenantHandle):
            return self._where.as_sync()
        return _open(str(self._where), self._tenant)

    def _open_async(self) -> AbstractAsyncContextManager[AsyncTenantHandle] | None:
        """Open an asynchronous handle; ``None`` if the database has only one connection, which the synchronous handle uses."""
        if isinstance(self._where, str):
            return None if is_in_memory(self._where) else _open_tenant_async(self._where, self._tenant)
        try:
            return self._where.as_async()  # type: ignore[union-attr]
        except InvalidInput:
            return None


class _LoopHandle:
    """The asynchronous handle of one event loop. It may still be opening."""

    __slots__ = ("opening", "store", "stores")
    opening: asyncio.Task[Store]
    stores: AsyncGenerator[Store, None]

    def __init__(self) -> None:
        self.store: Store = None


class _ThreadedStore:
    """A synchronous store with awaitable methods: each call runs in a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self._store, name))


async def _first(stores: AsyncGenerator[Store, None]) -> Store:
    return await anext(stores)


@contextmanager
def _open(url: str, tenant: str) -> Iterator[TenantHandle]:
    with Holdfast(url, auto_migrate=True) as hf:
        yield hf.tenant(tenant)


@asynccontextmanager
async def _open_tenant_async(url: str, tenant: str) -> AsyncIterator[AsyncTenantHandle]:
    async with AsyncHoldfast(url, auto_migrate=True) as hf:
        yield hf.tenant(tenant)
