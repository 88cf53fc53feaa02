"""Check that an asynchronous engine is used in the event loop in which it was opened."""

from __future__ import annotations

import asyncio

from ..errors import InvalidInput


def refuse_other_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse a call from another loop before anything is queued, because its result could not reach the caller.

    Raises:
        InvalidInput: ``loop`` is not the running loop.
    """
    if asyncio.get_running_loop() is not loop:
        raise InvalidInput(
            "this AsyncHoldfast was opened in another event loop; open one in each. Nothing was changed", field="loop"
        )
