"""The runner of coroutines on blocking engines."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.sync_runner import step


def test_a_coroutine_that_suspends_is_closed_and_reported() -> None:
    closed = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="a blocking call suspended"):
        step(waits())
    assert closed == [True]
