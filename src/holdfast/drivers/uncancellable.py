"""Protect statements that begin, commit and roll back a transaction or savepoint from cancellation.

Cancelling a task also cancels its statement on the server, which aborts the surrounding transaction. Inside one of our
savepoints we roll back to the savepoint; but if the cancelled statement sets or ends a savepoint, the caller's transaction
would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MAX_ROLLBACK_TRIES = 3
"""Attempts to roll back to a savepoint: the cancellation of the previous statement may arrive late and hit the rollback."""


async def run_to_completion(call: Coroutine[Any, Any, T]) -> T:
    """Await a call to its end, even if the task is cancelled.

    Raises:
        CancelledError: the task was cancelled while the call ran; the call has ended.
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
        running.exception()  # retrieved, so that asyncio does not log "exception was never retrieved"
    raise cancelled
