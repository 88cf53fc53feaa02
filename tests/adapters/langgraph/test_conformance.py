"""LangGraph's own conformance suite, complete and on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langgraph.checkpoint.conformance import checkpointer_test, validate

from holdfast.adapters.langgraph import HoldfastSaver

PASSED = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


def test_all_81_promises_of_a_checkpointer_are_kept(address: str) -> None:
    @checkpointer_test(name="HoldfastSaver")
    async def opened() -> AsyncIterator[Any]:
        async with HoldfastSaver(address) as saver:
            yield saver

    report = asyncio.run(validate(opened))
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    # The number is checked, because the suite passes if a capability is missing.
    assert {name: result.tests_passed for name, result in report.results.items()} == PASSED
    assert sum(PASSED.values()) == 81
