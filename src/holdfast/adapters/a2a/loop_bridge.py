"""Stores for callers that await them, whichever event loop they are in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import AsyncTenantHandle, TenantHandle
from holdfast.errors import InvalidInput

from ..lazy_handle import Place


def awaited(where: str | TenantHandle | AsyncTenantHandle, tenant: str, store: str) -> Any:
    """The store of that name, with methods to await.

    An asynchronous handle belongs to one event loop and answers there without a thread. An address or a synchronous handle
    works from every event loop: each call runs in a worker thread.
    """
    if isinstance(where, AsyncTenantHandle):
        return getattr(where, store)
    if not isinstance(where, str | TenantHandle):
        raise InvalidInput(f"give a path, a URL or the handle of a tenant, not {type(where).__name__}")
    return _InThreads(Place(where, tenant), store)


class _InThreads:
    """Runs each call of a synchronous store in a worker thread. The database is opened by the first call."""

    def __init__(self, place: Place, store: str) -> None:
        self._place, self._store = place, store

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any, **options: Any) -> Any:
            return getattr(getattr(self._place.handle, self._store), method)(*args, **options)

        return lambda *args, **options: asyncio.to_thread(call, *args, **options)
