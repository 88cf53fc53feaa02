"""Run a coroutine that never suspends, by hand, in the thread that is here.

Every store method is written once, as ``async def``. On a blocking connection the awaited methods block instead of
suspending, so one ``send`` runs the whole call to its end: no event loop, no thread, a normal traceback. The
synchronous API, the SQLite writer and the simulator all stand on this.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that must not suspend.

    Raises:
        RuntimeError: it did suspend, so something asynchronous was awaited on a blocking connection.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call suspended: something asynchronous was awaited on a blocking connection")
