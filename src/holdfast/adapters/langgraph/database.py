"""The handles of a saver: a synchronous one, and an asynchronous one for each event loop, all on the same database.

An asynchronous handle belongs to the event loop that opened it. A program may call ``asyncio.run`` many times with one saver, so
each loop gets a handle of its own. It is opened inside an async generator: ``asyncio.run`` closes those before it closes
the loop, and the handle with it.
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
"""The checkpoint store of a handle, or one whose calls are awaited."""


class Database:
    """The database of a saver and its clones: LangGraph clones a saver to allow the types of a graph's schemas."""

    def __init__(self, where: str | TenantHandle | AsyncTenantHandle, tenant: str) -> None:
        if not isinstance(where, (str, TenantHandle, AsyncTenantHandle)):
            raise InvalidInput(f"HoldfastSaver takes a path, a URL or hf.tenant(name), not {type(where).__name__}")
        self._where, self._tenant = where, tenant
        self._lock = Lock()
        self._sync: TenantHandle | None = where if isinstance(where, TenantHandle) else None
        self._opened: AbstractContextManager[TenantHandle] | None = None
        self._loops: dict[AbstractEventLoop, _OfLoop] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> Limits:
        """The limits of the handles."""
        return Limits() if isinstance(self._where, str) else self._where.limits

    def sync_store(self) -> Store:
        """The checkpoint store of the synchronous handle, which is opened by the first call.

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
        """The checkpoint store of the asynchronous handle of the running event loop, which is opened by the first call."""
        if isinstance(self._where, AsyncTenantHandle):
            return self._where.checkpoints
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            opened = self._loops[loop] = _OfLoop()
            opened.stores = self._stores(loop, opened)
            opened.opening = loop.create_task(_first(opened.stores))
        return await asyncio.shield(opened.opening) if opened.store is None else opened.store

    def close(self) -> None:
        """Close what was opened here. Event loops that are running close their own handles, a moment later."""
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

    async def _stores(self, loop: AbstractEventLoop, opened: _OfLoop) -> AsyncGenerator[Store, None]:
        """Opens the handle of an event loop, yields its store once, and closes it."""
        handle = self._open_async()
        try:
            if handle is None:
                opened.store = _InThreads(await asyncio.to_thread(self.sync_store))
                yield opened.store
            else:
                async with handle as tenant:
                    opened.store = tenant.checkpoints
                    yield opened.store
        finally:
            if self._loops.get(loop) is opened:  # it was not closed by ``aclose``, or could not be opened
                del self._loops[loop]

    def _open_sync(self) -> AbstractContextManager[TenantHandle]:
        if isinstance(self._where, AsyncTenantHandle):
            return self._where.as_sync()
        return _opened(str(self._where), self._tenant)

    def _open_async(self) -> AbstractAsyncContextManager[AsyncTenantHandle] | None:
        """An asynchronous handle; ``None`` if there is only one connection, which the synchronous handle has."""
        if isinstance(self._where, str):
            return None if is_in_memory(self._where) else _opened_async(self._where, self._tenant)
        try:
            return self._where.as_async()  # type: ignore[union-attr]
        except InvalidInput:
            return None


class _OfLoop:
    """The asynchronous handle of one event loop, which may still be opening."""

    __slots__ = ("opening", "store", "stores")
    opening: asyncio.Task[Store]
    stores: AsyncGenerator[Store, None]

    def __init__(self) -> None:
        self.store: Store = None


class _InThreads:
    """A synchronous store whose calls are awaited: each runs in a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self._store, name))


async def _first(stores: AsyncGenerator[Store, None]) -> Store:
    return await anext(stores)


@contextmanager
def _opened(url: str, tenant: str) -> Iterator[TenantHandle]:
    with Holdfast(url, auto_migrate=True) as hf:
        yield hf.tenant(tenant)


@asynccontextmanager
async def _opened_async(url: str, tenant: str) -> AsyncIterator[AsyncTenantHandle]:
    async with AsyncHoldfast(url, auto_migrate=True) as hf:
        yield hf.tenant(tenant)
