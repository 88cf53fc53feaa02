"""A search over large memories does not block the event loop, and stops when its caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, NewAgentMemory, NewCrewMemory
from holdfast.stores.memory import similarity

DIMENSIONS, COUNT = 8_192, 100
SLICES = -(-COUNT // (similarity.SLICE_BYTES // (4 * DIMENSIONS)))


def embedding(number: int) -> list[float]:
    return [1.0, number / COUNT, *[0.0] * (DIMENSIONS - 2)]


async def fill(tenant: Any) -> None:
    made = [embedding(number) for number in range(COUNT)]
    await tenant.agent_memories.add([NewAgentMemory(content="x", embedding=item) for item in made], agent="a")
    await tenant.crew_memories.save([NewCrewMemory(content="x", embedding=item) for item in made])


async def search(tenant: Any, store: str) -> list[float]:
    if store == "agent_memories":
        actual = await tenant.agent_memories.search(embedding(0), agent="a", limit=3)
    else:
        actual = await tenant.crew_memories.search(embedding(0), limit=3)
    return [round(item.score, 6) for item in actual]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the thread and the number of bytes of each comparison."""
    seen: list[tuple[int, int]] = []
    real = similarity.cosines

    def counted(query: bytes, others: Any) -> list[float]:
        seen.append((threading.get_ident(), sum(map(len, others))))
        return real(query, others)

    monkeypatch.setattr(similarity, "cosines", counted)
    return seen


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("store", ["agent_memories", "crew_memories"])
def test_embeddings_are_compared_in_slices_outside_of_the_event_loop(
    engine: str, store: str, tmp_path: Path, request: pytest.FixtureRequest, compared: list[tuple[int, int]]
) -> None:
    url = str(tmp_path / "agents.db") if engine == "sqlite" else request.getfixturevalue("postgres_url")

    async def run() -> list[float]:
        async with AsyncHoldfast(url) as hf:
            await fill(hf.tenant("acme"))
            return await search(hf.tenant("acme"), store)

    assert asyncio.run(run()) == [1.0, 0.99995, 0.9998]
    assert len(compared) == SLICES
    assert threading.get_ident() not in {thread for thread, _ in compared}
    assert max(size for _, size in compared) <= similarity.SLICE_BYTES


@pytest.mark.parametrize("store", ["agent_memories", "crew_memories"])
def test_a_cancelled_search_stops_after_its_current_slice(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: list[tuple[int, int]]
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    counted = similarity.cosines

    def waiting(query: bytes, others: Any) -> list[float]:
        begun.set()
        assert may_go_on.wait(60)
        return counted(query, others)

    monkeypatch.setattr(similarity, "cosines", waiting)

    async def run() -> None:
        async with AsyncHoldfast(str(tmp_path / "agents.db")) as hf:
            await fill(hf.tenant("acme"))
            searching = asyncio.ensure_future(search(hf.tenant("acme"), store))
            assert await asyncio.to_thread(begun.wait, 60)
            searching.cancel()
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await searching

    asyncio.run(run())
    assert len(compared) == 1
    assert SLICES > 2
