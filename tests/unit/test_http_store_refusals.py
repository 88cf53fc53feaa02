"""What the stores over HTTP refuse, each with an error that says what to do; nothing is changed by it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Limits, NewAgentMemory, TenantHandle
from holdfast.clock import from_us
from holdfast.errors import InvalidInput, InvalidText, LimitExceeded


def tenant_with(**limits: int) -> TenantHandle:
    """A tenant in memory, with limits of its own."""
    return Holdfast(":memory:", limits=Limits(**limits)).tenant("acme")


def new(content: str, *embedding: float, ttl_days: int | None = None) -> NewAgentMemory:
    """A memory to add."""
    return NewAgentMemory(content=content, embedding=embedding, ttl_days=ttl_days)


def test_what_is_no_task_is_refused() -> None:
    tasks = tenant_with(content_bytes=100, json_depth=5, batch_rows=10).a2a_tasks
    bad: Any
    for bad in (None, [1], "text", {1: 2}):
        with pytest.raises(InvalidInput, match="a task is a dictionary"):
            tasks.save("t", bad)
    for bad in ({"history": {}}, {"artifacts": 3}, {"artifacts": [{"parts": "x"}]}):
        with pytest.raises(InvalidInput, match="list"):
            tasks.save("t", bad)
    with pytest.raises(InvalidText):
        tasks.save("t", {"x": object()})
    with pytest.raises(LimitExceeded, match="content_bytes"):
        tasks.save("t", {"history": ["y" * 100]})
    with pytest.raises(LimitExceeded, match="batch_rows"):
        tasks.save("t", {"history": [1] * 11})
    with pytest.raises(InvalidInput, match="task id"):
        tasks.save("", {})
    with pytest.raises(InvalidInput, match="time zone"):
        tasks.list(since=from_us(0).replace(tzinfo=None))
    assert tasks.list() == []


def test_what_is_no_agent_memory_is_refused() -> None:
    memories = tenant_with(batch_rows=2, embedding_floats=3).agent_memories
    bad: Any
    for bad in ([{"content": "x"}], "text"):
        with pytest.raises(InvalidInput, match="NewAgentMemory"):
            memories.add(bad, agent="a")
    with pytest.raises(InvalidInput, match="needs an embedding"):
        memories.add([new("x")], agent="a")
    for bad in (True, "7", 10**6):
        with pytest.raises(InvalidInput, match="ttl_days"):
            memories.add([new("x", 1, ttl_days=bad)], agent="a")
    with pytest.raises(LimitExceeded, match="batch_rows"):
        memories.add([new("x", 1)] * 3, agent="a")
    with pytest.raises(LimitExceeded, match="embedding_floats"):
        memories.search([1, 2, 3, 4], agent="a")
    with pytest.raises(InvalidInput, match="agent"):
        memories.list(agent="")
    assert memories.list(agent="a") == []
