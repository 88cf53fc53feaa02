"""Run a coroutine that never suspends, in the current thread and without an event loop.

Every store method is written once, as ``async def``. On a blocking connection the awaited methods block instead of
suspending, so one ``send`` runs the whole call to completion: no event loop, no thread, a normal traceback. The
synchronous API, the SQLite writer and the simulator are based on this.

It costs about two microseconds for each call. Unlike a call in a background event loop, a call that runs this way can
join the caller's own synchronous transaction.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that must not suspend, and return its result.

    Raises:
        RuntimeError: the coroutine suspended, because it awaited an asynchronous operation on a blocking connection.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call suspended: an asynchronous operation was awaited on a blocking connection")
