"""Statements that must not be cut short: those that begin, keep and undo a transaction or a savepoint.

A task that is cancelled cancels its statement on the server too, which fails the transaction around it. Where that is a
savepoint of ours it is undone; where it is the statement that sets or ends one, the caller's transaction would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MAX_UNDOING = 3
"""How often a savepoint is undone anew: the cancellation of the statement before may arrive late and hit this one."""


async def to_its_end(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call, even when cancelled meanwhile.

    Raises:
        CancelledError: the call is over, and the task was to be cancelled.
    """
    running = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()  # looked at, so that nobody complains that nobody did
    raise cancelled
