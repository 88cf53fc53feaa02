"""Retention, lists, delta channel queries and leases of a saver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from typing_extensions import TypedDict

from holdfast import FixedClock, Holdfast, Limits
from holdfast.adapters.langgraph import HoldfastSaver, ThreadRetention, operations
from holdfast.core.queries import Query
from holdfast.errors import Conflict, Fenced, InvalidInput
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import Trace, chat_graph, one_node, say, text, thread
from tests.adapters.langgraph.test_graphs import Delta
from tests.errors import raises


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "RETAIN_EVERY", 4)


def talk(saver: Any, first: int, last: int, **config: Any) -> None:
    for turn in range(first, last + 1):
        chat_graph(saver).invoke(say(turn), {**thread(), **config})


def test_nothing_is_removed_without_a_retention(savers: Savers) -> None:
    saver = savers()
    talk(saver, 1, 8)
    assert saver.retain(["t"]) == 0
    assert len(list(saver.list(thread()))) == 24


def test_lists_continue_over_small_pages(address: str) -> None:
    with Holdfast(address, limits=Limits(page_rows=5), auto_migrate=True) as holdfast:
        saver = HoldfastSaver(holdfast.tenant("acme"))
        talk(saver, 1, 4)
        whole = [checkpoint.config["configurable"]["checkpoint_id"] for checkpoint in saver.list(thread())]
        assert (len(whole), len(set(whole))) == (12, 12)
        assert len(list(saver.list(thread(), limit=7))) == 7


def test_the_last_checkpoints_are_kept(savers: Savers) -> None:
    saver = savers(retention=ThreadRetention(last=5))
    talk(saver, 1, 8)
    assert 5 <= len(list(saver.list(thread()))) <= 9
    assert asyncio.run(saver.aretain(["t"])) > 0
    assert len(list(saver.list(thread()))) == 5
    state = chat_graph(savers()).get_state(thread()).values
    assert [message.content for message in state["messages"]] == [text(n) for n in range(1, 17)]


def test_young_checkpoints_are_kept(address: str) -> None:
    clock = FixedClock()
    with Holdfast(address, clock=clock, auto_migrate=True) as holdfast:
        saver = HoldfastSaver(holdfast.tenant("acme"), retention=ThreadRetention(age=timedelta(hours=1)))
        for turn in (1, 2, 3):
            talk(saver, turn, turn)
            clock.advance(1_800)
        saver.retain(["t"])
        assert len(list(saver.list(thread()))) == 3, "those of the last turn; the previous turn is an hour old"
        clock.advance(10_000)
        saver.retain(["t"])
        assert len(list(saver.list(thread()))) == 1


def test_the_checkpoints_of_the_last_runs_are_kept(savers: Savers) -> None:
    saver = savers(retention=ThreadRetention(runs=2))
    for turn in range(1, 6):
        talk(saver, turn, turn, metadata={"run_id": f"r{turn}"})
    saver.retain(["t"])
    assert {checkpoint.metadata["run_id"] for checkpoint in saver.list(thread())} == {"r4", "r5"}
    assert chat_graph(savers()).get_state(thread()).values["turns"] == 5


def test_a_waiting_graph_and_delta_channels_survive_retention(savers: Savers) -> None:
    from langgraph.types import Command, interrupt

    def step(state: Any) -> dict[str, Any]:
        turn = state.get("turns", 0) + 1
        if turn == 12:
            return {"seen": [interrupt("go on?")], "turns": turn}
        return {"seen": [f"{turn} " * 30], "turns": turn}

    saver = savers(retention=ThreadRetention(last=1))
    for turn in range(1, 13):
        one_node(Delta, step, saver).invoke({"seen": [f"in {turn}"]}, thread())
    saver.retain(["t"])
    result = one_node(Delta, step, savers(retention=ThreadRetention(last=1))).invoke(Command(resume="yes"), thread())
    expected = [word for turn in range(1, 12) for word in (f"in {turn}", f"{turn} " * 30)]
    assert result["seen"] == [*expected, "in 12", "yes"]


@pytest.mark.parametrize("wrong", [{"last": 0}, {"last": True}, {"runs": -1}, {"age": 5}, {"age": timedelta(-1)}])
def test_an_invalid_retention_is_refused(wrong: dict[str, Any]) -> None:
    with raises(InvalidInput, field=next(iter(wrong))):
        ThreadRetention(**wrong)


def test_a_list_is_limited_by_before_and_filter(savers: Savers) -> None:
    saver = savers()
    talk(saver, 1, 3)
    everything = list(saver.list(thread()))
    fifth = everything[4]
    assert [checkpoint.config for checkpoint in saver.list(thread(), before=fifth.config)] == [
        checkpoint.config for checkpoint in everything[5:]
    ]
    assert [checkpoint.config for checkpoint in saver.list(thread(), before=fifth.config, limit=2)] == [
        checkpoint.config for checkpoint in everything[5:7]
    ]
    inputs = list(saver.list(thread(), filter={"source": "input"}))
    assert len(inputs) == 3
    assert [checkpoint.metadata["step"] for checkpoint in saver.list(None, filter={"source": "loop", "step": 0})] == [0]
    assert list(saver.list(thread(), filter={"step": "0"})) == []
    assert list(saver.list(thread("absent"))) == []


@contextmanager
def statements() -> Iterator[list[str]]:
    """Record the queries that run in the block."""
    made: list[str] = []
    run = Query.all

    async def all(self: Query, *args: Any, **kwargs: Any) -> Any:
        made.append(self.name)
        return await run(self, *args, **kwargs)

    Query.all = all  # type: ignore[method-assign]
    try:
        yield made
    finally:
        Query.all = run  # type: ignore[method-assign]


@pytest.mark.parametrize("turns", [3, 12])
def test_the_history_of_delta_channels_takes_two_queries(savers: Savers, turns: int) -> None:
    def step(state: Any) -> dict[str, Any]:
        turn = state.get("turns", 0) + 1
        return {"seen": [f"{turn} " * 40], "turns": turn}

    saver = savers()
    for _ in range(turns):
        one_node(Delta, step, saver).invoke({"seen": ["in"]}, thread())
    fresh = savers()
    fresh.setup()
    with statements() as made:
        history = fresh.get_delta_channel_history(config=thread(), channels=["seen"])
    assert history["seen"]["writes"]
    assert len(made) <= 2, made
    with statements() as made:
        fresh.get_tuple(thread())
    assert len(made) <= 2, made


def test_a_lease_in_the_config_allows_one_process_to_write(address: str) -> None:
    with Holdfast(address, auto_migrate=True) as holdfast:
        acme = holdfast.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id)
        held = acme.leases.claim("one", run_id=run.id)
        assert held is not None
        saver, other = HoldfastSaver(acme), HoldfastSaver(acme)
        chat_graph(saver).invoke(say(1), thread(lease=held), durability="sync")

        def overtaken(state: Any) -> dict[str, Any]:
            acme.leases.release(run.id, epoch=held.epoch)
            again = acme.leases.claim("other", run_id=run.id)
            assert again is not None
            chat_graph(other).invoke(say(2), thread(lease=(run.id, again.epoch)), durability="sync")
            return {"turns": 99}

        with raises(Fenced) as caught:
            chat_graph(saver, overtaken).invoke(say(3), thread(lease=held), durability="sync")
        newest = chat_graph(other).get_state(thread())
        assert newest.values["turns"] == 2
        assert newest.config["configurable"]["checkpoint_id"] in str(caught.value)
        with pytest.raises(Conflict):
            saver.put_writes(saver.get_tuple(thread()).config | thread(lease=held, checkpoint_id="x"), [("a", 1)], "t")  # type: ignore[union-attr]
        with raises(InvalidInput, field="lease"):
            chat_graph(saver).invoke(say(4), thread(lease="mine"), durability="sync")


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_the_completed_part_of_a_failed_step_is_not_repeated(savers: Savers, durability: str) -> None:
    ran: list[str] = []

    def node(state: Trace) -> dict[str, Any]:
        ran.append("node")
        if len(ran) == 1:
            raise RuntimeError("broken")
        return {"seen": ["done"], "answer": "a" * 300}

    with pytest.raises(RuntimeError, match="broken"):
        one_node(Trace, node, savers()).invoke({"seen": ["start"]}, thread(), durability=durability)
    result = one_node(Trace, node, savers()).invoke(None, thread(), durability=durability)
    assert (ran, result["seen"]) == (["node", "node"], ["start", "done"])


class Said(TypedDict):
    """A state with one message."""

    said: str


def test_checkpoints_of_past_subgraph_calls_are_removed(savers: Savers) -> None:
    saver = savers(retention=ThreadRetention(last=2))
    inner = one_node(Said, lambda state: {"said": state["said"] + "."}, None)
    graph = one_node(Said, inner, saver)
    counts = []
    for _ in range(3):
        for _ in range(8):
            graph.invoke({"said": "asked"}, thread())
        saver.retain(["t"])
        counts.append(len(list(saver.list(thread()))))
    assert counts[0] == counts[1] == counts[2] < 8
    assert graph.get_state(thread()).values["said"] == "asked."
