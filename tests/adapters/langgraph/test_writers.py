"""Several writers on one thread, and a killed writer."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Command

from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import Conflict, InvalidInput
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import Trace, asking, chat_graph, one_node, say, text, thread
from tests.adapters.langgraph.graphs import run as run_graph
from tests.errors import raises

KILLED = """
    import os, signal, sys
    from tests.adapters.langgraph.graphs import Trace, thread
    from holdfast.adapters.langgraph import HoldfastSaver
    from langgraph.graph import START, StateGraph

    def step(name):
        def node(state):
            print(name, flush=True)
            if name == sys.argv[2]:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"seen": [name * 100]}
        return node

    graph = StateGraph(Trace)
    for name in "abcd":
        graph.add_node(name, step(name))
    graph.add_edge(START, "a")
    for one, other in ("ab", "bc", "cd"):
        graph.add_edge(one, other)
    compiled = graph.compile(checkpointer=HoldfastSaver(sys.argv[1]))
    again = compiled.get_state(thread()).next
    compiled.invoke(None if again else {"seen": ["start"]}, thread(), durability="sync")
"""


def run(address: str, killed_in: str) -> tuple[int, list[str]]:
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), address, killed_in],
        capture_output=True, text=True, timeout=120, check=False, env={"PYTHONPATH": ":".join(["src", ".", *sys.path])},
    )  # fmt: skip
    return process.returncode, process.stdout.split()


def test_another_process_continues_after_a_kill(address: str, savers: Savers) -> None:
    savers().setup()
    assert run(address, "c") == (-signal.SIGKILL, ["a", "b", "c"])
    assert run(address, "d") == (-signal.SIGKILL, ["c", "d"])
    assert run(address, "-") == (0, ["d"])
    values = one_node(Trace, lambda state: {}, savers()).get_state(thread()).values
    assert values["seen"] == ["start", *(name * 100 for name in "abcd")]


def test_with_single_writer_the_second_writer_gets_a_conflict(savers: Savers) -> None:
    one, other = savers(single_writer=True), savers(single_writer=True)
    chat_graph(one).invoke(say(1), thread(), durability="sync")

    def interrupted(state: Any) -> dict[str, Any]:
        chat_graph(other).invoke(say(2), thread(), durability="sync")
        return {"turns": 99}

    with raises(Conflict, reason="newer_checkpoint"):
        chat_graph(one, interrupted).invoke(say(3), thread(), durability="sync")
    head = other.get_tuple(thread())
    assert head is not None
    assert head.checkpoint["channel_values"]["turns"] == 2
    chat_graph(one).invoke(say(4), thread(), durability="sync")
    assert chat_graph(other).get_state(thread()).values["turns"] == 3


def test_a_deliberate_fork_is_allowed_with_single_writer(savers: Savers) -> None:
    saver = savers(single_writer=True)
    graph = chat_graph(saver)
    for turn in (1, 2, 3):
        graph.invoke(say(turn), thread())
    past = next(
        snapshot
        for snapshot in graph.get_state_history(thread())
        if snapshot.values.get("turns") == 1 and not snapshot.next
    )
    graph.invoke(say(9), past.config)
    state = graph.get_state(thread()).values
    assert [message.content for message in state["messages"]][:3] == [text(1), text(2), text(17)]
    graph.invoke(say(10), thread())
    assert graph.get_state(thread()).values["turns"] == 3


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_new_answer_to_an_interrupt_replaces_the_previous_one(savers: Savers, style: str) -> None:
    graph = asking(savers(single_writer=True))
    run_graph(style, graph, {"seen": ["begin"]}, thread())
    waiting = graph.get_state(thread()).config
    assert run_graph(style, graph, Command(resume="old"), thread())["answer"] == "old"
    for answer in ("new", "newer"):
        assert "__interrupt__" in run_graph(style, graph, None, waiting)
        assert run_graph(style, graph, Command(resume=answer), thread())["answer"] == answer
    assert graph.get_state(thread()).values["answer"] == "newer"


def test_copies_forks_and_updates_of_older_checkpoints_are_allowed_with_single_writer(savers: Savers) -> None:
    graph = chat_graph(savers(single_writer=True))
    for turn in (1, 2, 3):
        graph.invoke(say(turn), thread())
    past = next(
        snapshot
        for snapshot in graph.get_state_history(thread())
        if snapshot.values.get("turns") == 2 and not snapshot.next
    )
    graph.update_state(thread(), None, as_node="__copy__")
    graph.update_state(past.config, None, as_node="__copy__")
    graph.update_state(past.config, {"turns": 7}, as_node="node")
    assert graph.get_state(thread()).values["turns"] == 7
    before = next(
        snapshot
        for snapshot in graph.get_state_history(thread())
        if snapshot.next == ("node",) and not snapshot.values.get("turns")
    )
    assert graph.invoke(None, before.config)["turns"] == 1
    graph.invoke(say(9), thread())
    assert graph.get_state(thread()).values["turns"] == 2


def test_two_forks_from_one_checkpoint_conflict(savers: Savers) -> None:
    one, other = savers(single_writer=True), savers(single_writer=True)
    for turn in (1, 2):
        chat_graph(one).invoke(say(turn), thread(), durability="sync")
    past = next(
        snapshot for snapshot in chat_graph(one).get_state_history(thread()) if snapshot.values.get("turns") == 1
    )

    def interrupted(state: Any) -> dict[str, Any]:
        chat_graph(other).update_state(past.config, {"turns": 50}, as_node="node")
        return {"turns": 99}

    with raises(Conflict, reason="newer_checkpoint"):
        chat_graph(one, interrupted).invoke(say(3), past.config, durability="sync")
    assert chat_graph(one).get_state(thread()).values["turns"] == 50


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_conflict_in_a_subgraph_that_is_interrupted_is_raised(savers: Savers, style: str) -> None:
    """LangGraph drops the error of a background save if an interrupt occurs at the same time."""
    one, other = savers(single_writer=True), savers(single_writer=True)

    def meanwhile(state: Any) -> dict[str, Any]:
        asking(other).invoke({"seen": ["other"]}, thread())
        return {"seen": ["one"]}

    with raises(Conflict, reason="newer_checkpoint"):
        run_graph(style, asking(one, meanwhile), {"seen": ["begin"]}, thread())
    assert asking(other).invoke(Command(resume="theirs"), thread())["answer"] == "theirs"
    assert asking(one).get_state(thread()).values["answer"] == "theirs"


def test_reading_the_newest_checkpoint_by_its_id_does_not_allow_a_fork(savers: Savers) -> None:
    one, other = savers(single_writer=True), savers(single_writer=True)
    chat_graph(one).invoke(say(1), thread(), durability="sync")
    newest = chat_graph(one).get_state(thread()).config
    assert one.get_tuple(newest) is not None
    chat_graph(other).invoke(say(2), thread(), durability="sync")
    checkpoint = empty_checkpoint()
    with raises(Conflict, reason="newer_checkpoint"):
        one.put(newest, checkpoint, {"source": "update", "step": 9}, {})
    assert one.get_tuple(newest) is not None, "it is an older checkpoint now, so a fork is deliberate"
    one.put(newest, checkpoint, {"source": "update", "step": 9}, {})


def test_two_savers_with_the_same_cached_thread_stay_consistent(savers: Savers) -> None:
    one, other = savers(), savers()
    for turn in range(1, 5):
        chat_graph(one if turn % 2 else other).invoke(say(turn), thread())
    other.prune(["t"])
    chat_graph(one).invoke(say(5), thread())
    other.delete_thread("t")
    chat_graph(one).invoke(say(1), thread())
    chat_graph(other).invoke(say(2), thread())
    expected = [text(n) for n in range(1, 5)]
    for saver in (one, other, savers()):
        assert [message.content for message in chat_graph(saver).get_state(thread()).values["messages"]] == expected


def test_a_put_after_a_prune_by_another_saver_is_written_in_full(savers: Savers) -> None:
    """The store rejects the cached places, and the put is repeated without them."""
    one, other = savers(), savers()
    chat_graph(one).invoke(say(1), thread())
    newest = one.get_tuple(thread())
    assert newest is not None
    other.prune(["t"])
    checkpoint = {**newest.checkpoint, "id": f"{newest.checkpoint['id'][:-1]}z"}
    config = one.put(newest.config, checkpoint, {"source": "update", "step": 9}, {})
    again = other.get_tuple(config)
    assert again is not None
    assert again.checkpoint["channel_values"] == checkpoint["channel_values"]


def test_invalid_arguments_are_refused() -> None:
    wrong: list[Any] = [None, 7, object()]
    for where in wrong:
        with raises(InvalidInput, field="where"):
            HoldfastSaver(where)
    with HoldfastSaver(":memory:") as saver:
        with raises(InvalidInput, field="thread_id"):
            saver.get_tuple({"configurable": {}})
        with raises(InvalidInput, field="strategy"):
            saver.prune(["t"], strategy="keep everything")
        assert saver.get_next_version(None, None) == 1
        assert saver.get_next_version(7, None) == 8
        assert (
            saver.get_next_version("00000000000000000000000000000007.0.123", None)
            > "00000000000000000000000000000007.0.9"
        )
