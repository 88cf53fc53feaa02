"""Locks for connections that several threads or tasks share.

Savepoints form a stack: if two calls interleaved on one connection, each would release the other's savepoints. So our calls
on one connection run one at a time, through any number of handles. The caller orders its own statements.
"""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    import asyncio

ConnectionLock = AbstractAsyncContextManager[None]


class ThreadLock:
    """A lock for threads, as an asynchronous context manager that never suspends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._lock.release()


# By id(): the owner of a lock keeps the connection alive too, so no other object can get the same id.
_thread_locks: WeakValueDictionary[int, ThreadLock] = WeakValueDictionary()
_task_locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()


def for_threads(connection: Any) -> ConnectionLock:
    """Return the lock of a blocking connection. The caller must keep it together with the connection."""
    return _thread_locks.setdefault(id(connection), ThreadLock())


def for_tasks(connection: Any) -> ConnectionLock:
    """Return the lock of an asynchronous connection. The caller must keep it together with the connection."""
    import asyncio  # imported lazily: synchronous programs do not need it

    return _task_locks.setdefault(id(connection), asyncio.Lock())
