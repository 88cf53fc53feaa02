"""An asynchronous engine belongs to the event loop in which it was opened."""

from __future__ import annotations

import asyncio

from ..errors import InvalidInput


def refuse_other_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse a call from another loop before anything is queued: its answer could not reach the caller.

    Raises:
        InvalidInput: the running loop is not this one.
    """
    if asyncio.get_running_loop() is not loop:
        raise InvalidInput("this AsyncHoldfast was opened in another event loop; open one in each. Nothing was changed")
