"""Awaitable stores for callers in any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import AsyncTenantHandle, TenantHandle
from holdfast.errors import InvalidInput

from ..lazy_handle import LazyHandle


def awaitable_store(where: str | TenantHandle | AsyncTenantHandle, tenant: str, store: str) -> Any:
    """Return the store of that name with awaitable methods.

    An asynchronous handle belongs to one event loop and needs no thread. An address or a synchronous handle works from every
    event loop: each call runs in a worker thread.
    """
    if isinstance(where, AsyncTenantHandle):
        return getattr(where, store)
    if not isinstance(where, str | TenantHandle):
        raise InvalidInput(
            f"where must be a path, a URL or the handle of a tenant, not {type(where).__name__}", field="where"
        )
    return _ThreadedStore(LazyHandle(where, tenant), store)


class _ThreadedStore:
    """Runs each call of a synchronous store in a worker thread. The first call opens the database."""

    def __init__(self, lazy: LazyHandle, store: str) -> None:
        self._lazy, self._store = lazy, store

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any, **options: Any) -> Any:
            return getattr(getattr(self._lazy.handle, self._store), method)(*args, **options)

        return lambda *args, **options: asyncio.to_thread(call, *args, **options)
