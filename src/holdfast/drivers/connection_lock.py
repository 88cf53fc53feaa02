"""Taking turns on a connection that several threads or tasks share.

Savepoints are a stack: of two calls that interleave on one connection, each would end the other's. So our calls on one
connection, through however many handles, go one after the other. The caller's own statements are the caller's to order.
"""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    import asyncio

Turn = AbstractAsyncContextManager[None]


class ThreadTurn:
    """A turn that a thread waits for; it never suspends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._lock.release()


# By the connection's identity: whoever holds the turn holds the connection too, so no other object can come by it.
_of_threads: WeakValueDictionary[int, ThreadTurn] = WeakValueDictionary()
_of_tasks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()


def of_threads(connection: Any) -> Turn:
    """The turn on a blocking connection, to be kept together with it."""
    return _of_threads.setdefault(id(connection), ThreadTurn())


def of_tasks(connection: Any) -> Turn:
    """The turn on an asynchronous connection, to be kept together with it."""
    import asyncio  # not for those who never use it

    return _of_tasks.setdefault(id(connection), asyncio.Lock())
