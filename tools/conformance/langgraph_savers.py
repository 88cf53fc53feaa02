"""Pytest plugin: LangGraph's tests get a `HoldfastSaver` where they ask for a SQLite saver, and nothing else of them runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

# The checkout's own folder of tests: pytest runs there.
import tests.conftest_checkpointer as savers
from holdfast.adapters.langgraph import HoldfastSaver

OURS = {"sync_checkpointer": "sqlite", "async_checkpointer": "sqlite_aio"}
"""Fixtures, each with the parameter under which our saver is handed out."""
STORES = {"sync_store": "in_memory", "async_store": "in_memory"}
"""The same for what else a test may ask for: the only kinds that need no server."""
OPTIONS: dict[str, Any] = {"single_writer": True} if os.environ.get("HOLDFAST_SAVER") == "single_writer" else {}
WHERE = os.environ.get("HOLDFAST_DATABASE") or ":memory:"


def _saver() -> HoldfastSaver:
    """A saver that sees nothing of other tests: each has a tenant of its own."""
    return HoldfastSaver(WHERE, tenant=f"t{uuid4().hex}", **OPTIONS)


@contextmanager
def _blocking() -> Iterator[HoldfastSaver]:
    with _saver() as saver:
        yield saver


@asynccontextmanager
async def _asynchronous() -> AsyncIterator[HoldfastSaver]:
    async with _saver() as saver:
        yield saver


savers._checkpointer_sqlite = _blocking
savers._checkpointer_sqlite_aio = _asynchronous


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the tests that use our saver."""
    ours, others = [], []
    for item in items:
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        is_ours = any(arguments.get(name) == kind for name, kind in OURS.items())
        needs_server = any(arguments.get(name, kind) != kind for name, kind in STORES.items())
        (ours if is_ours and not needs_server else others).append(item)
    items[:] = ours
    config.hook.pytest_deselected(items=others)
