"""``kagent.crewai``: long-term memory and flow persistence, unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist
from crewai.memory import LongTermMemory
from kagent.crewai._memory import KagentMemoryStorage
from kagent.crewai._state import KagentFlowPersistence
from pydantic import BaseModel


@pytest.fixture(autouse=True)
def _nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crewai"))
    monkeypatch.chdir(tmp_path)
    assert os.environ["CREWAI_DISABLE_TELEMETRY"] == "true"


class Counted(BaseModel):
    id: str = ""
    n: int = 0


def flow_of(persistence: KagentFlowPersistence, fails: bool = False) -> Any:
    """A flow that counts, and fails in its second method if requested."""

    @persist(persistence)
    class Counting(Flow[Counted]):
        @start()
        def one(self) -> None:
            self.state.n += 1

        @listen(one)
        def two(self) -> None:
            if fails:
                raise RuntimeError("two")
            self.state.n += 10

    return Counting(persistence=persistence)


@pytest.mark.parametrize("ending", ["", "/"])
def test_memories_are_added_and_found(base: str, name: str, ending: str) -> None:
    memory = KagentMemoryStorage(thread_id=name, user_id="carol", base_url=base + ending)
    assert memory.load("write", 3) is None
    memory.save("write a poem", {"quality": 5}, "1700000000.0", 5.0)
    memory.save("write code", {"quality": 2}, "1700000001.0", 2.0)
    memory.save("sing 100%", {}, "1700000002.0", 1.0)
    assert [item["score"] for item in memory.load("write", 3)] == [2.0, 5.0]
    assert [item["score"] for item in memory.load("WRITE", 1)] == [2.0]
    assert memory.load("write code", 3)[0]["metadata"] == {"quality": 2}
    assert LongTermMemory(storage=memory).search("write", latest_n=3) != []
    assert KagentMemoryStorage(thread_id=name, user_id="eve", base_url=base).load("write", 3) is None
    assert KagentMemoryStorage(thread_id="other", user_id="carol", base_url=base).load("write", 3) is None
    memory.reset()
    assert memory.load("write", 3) is None


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_flow_continues_from_its_last_state(base: str, name: str, ending: str) -> None:
    kept = KagentFlowPersistence(thread_id=name, user_id="carol", base_url=base + ending)
    assert kept.load_state(name) is None
    for expected in (11, 22):
        flow = flow_of(kept)
        flow.kickoff(inputs={"id": name})
        assert flow.state.n == expected
    with pytest.raises(RuntimeError):
        flow_of(kept, fails=True).kickoff(inputs={"id": name})
    assert kept.load_state(name)["n"] == 23, "the last saved state, not that of the last method of the previous run"
    assert kept.load_state("another flow") is None
