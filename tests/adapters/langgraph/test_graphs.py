"""Real graphs behave the same with our saver and with LangGraph's own."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from holdfast import Holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import Trace, chat_graph, one_node, say, text, thread

BRANCH_WAITS_S = 60.0


def contents(graph: Any, config: Any = None) -> list[str]:
    return [message.content for message in graph.get_state(config or thread()).values.get("messages", [])]


def test_a_conversation_continues_in_another_process(savers: Savers) -> None:
    for turn in range(1, 6):
        chat_graph(savers()).invoke(say(turn), thread())
    assert contents(chat_graph(savers())) == [text(n) for n in range(1, 11)]


def test_one_saver_serves_invoke_and_ainvoke(saver: HoldfastSaver) -> None:
    graph = chat_graph(saver)
    for turn in range(1, 7):
        if turn % 2:
            graph.invoke(say(turn), thread())
        else:
            asyncio.run(graph.ainvoke(say(turn), thread()))
    assert contents(graph) == [text(n) for n in range(1, 13)]
    state = asyncio.run(graph.aget_state(thread()))
    assert state == graph.get_state(thread())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_has_the_same_final_state(savers: Savers, durability: str) -> None:
    graph = chat_graph(savers())
    for turn in range(1, 4):
        graph.invoke(say(turn), thread(), durability=durability)
    assert contents(chat_graph(savers())) == [text(n) for n in range(1, 7)]
    steps = len(list(graph.get_state_history(thread())))
    assert steps == (3 if durability == "exit" else 9)


def test_the_history_equals_that_of_langgraphs_own_saver(savers: Savers) -> None:
    def play(saver: Any) -> list[Any]:
        graph = chat_graph(saver)
        for turn in range(1, 5):
            graph.invoke(say(turn), thread())
        graph.update_state(thread(), {"notes": {"a": "b" * 300}})
        return [
            (state.values, state.next, state.metadata["source"], state.metadata["step"], len(state.tasks))
            for state in graph.get_state_history(thread())
        ]

    expected = play(InMemorySaver())
    assert play(savers()) == expected
    again = [
        (state.values, state.next, state.metadata["source"], state.metadata["step"], len(state.tasks))
        for state in chat_graph(savers()).get_state_history(thread())
    ]
    assert again == expected


def test_an_interrupted_graph_waits_and_resumes(savers: Savers) -> None:
    def ask(state: Trace) -> dict[str, Any]:
        first = interrupt({"question": "first?"})
        second = interrupt("second?")
        return {"seen": [first, second], "answer": "x" * 500}

    config = thread()
    stopped = one_node(Trace, ask, savers()).invoke({"seen": ["start"]}, config)
    assert stopped["__interrupt__"][0].value == {"question": "first?"}
    stopped = one_node(Trace, ask, savers()).invoke(Command(resume="one"), config)
    assert stopped["__interrupt__"][0].value == "second?"
    result = asyncio.run(one_node(Trace, ask, savers()).ainvoke(Command(resume="two"), config))
    assert result == {"seen": ["start", "one", "two"], "answer": "x" * 500}


def test_if_one_branch_fails_the_others_are_not_repeated(savers: Savers, monkeypatch: pytest.MonkeyPatch) -> None:
    """LangGraph drops the writes of a branch after another has failed, so this branch fails after the others were saved."""
    ran: list[str] = []
    kept: set[str] = set()
    both_kept = threading.Event()
    broken = [True]

    def branch(name: str) -> Any:
        def node(state: Trace) -> dict[str, Any]:
            ran.append(name)
            if name == "b" and broken[0]:
                assert both_kept.wait(BRANCH_WAITS_S), f"only {kept} were kept"
                raise RuntimeError("b is broken")
            return {"seen": [name * 100]}

        return node

    def build(saver: Any) -> Any:
        graph = StateGraph(Trace)
        for name in "abc":
            graph.add_node(name, branch(name))
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        return graph.compile(checkpointer=saver)

    saver = savers()
    put_writes = saver.put_writes

    def put_and_tell(config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        put_writes(config, writes, task_id, task_path)
        kept.update(value[0][0] for channel, value in writes if channel == "seen")
        if kept >= {"a", "c"}:
            both_kept.set()

    monkeypatch.setattr(saver, "put_writes", put_and_tell)
    with pytest.raises(RuntimeError, match="b is broken"):
        build(saver).invoke({"seen": ["start"]}, thread())
    assert sorted(ran) == ["a", "b", "c"]
    broken[0] = False
    ran.clear()
    result = build(savers()).invoke(None, thread())
    assert ran == ["b"]
    assert sorted(result["seen"]) == sorted(["start", "a" * 100, "b" * 100, "c" * 100])


def test_a_waiting_subgraph_keeps_its_state(savers: Savers) -> None:
    def inner(state: Trace) -> dict[str, Any]:
        return {"seen": ["inner"], "answer": interrupt("inside?")}

    def build(saver: Any) -> Any:
        below = StateGraph(Trace)
        below.add_node("inner", inner)
        below.add_edge(START, "inner")
        graph = StateGraph(Trace)
        graph.add_node("below", below.compile())
        graph.add_edge(START, "below")
        return graph.compile(checkpointer=saver)

    build(savers()).invoke({"seen": ["start"]}, thread())
    state = build(savers()).get_state(thread(), subgraphs=True)
    assert state.tasks[0].state.next == ("inner",)
    assert state.tasks[0].state.config["configurable"]["checkpoint_ns"].startswith("below:")
    result = build(savers()).invoke(Command(resume="yes"), thread())
    assert result["answer"] == "yes"
    assert result["seen"][-1] == "inner"


def test_the_results_of_many_parallel_tasks_are_ordered(savers: Savers) -> None:
    def fan(state: Trace) -> list[Send]:
        return [Send("work", {"answer": f"{number:03}"}) for number in range(25)]

    def work(state: Trace) -> dict[str, Any]:
        return {"seen": [state["answer"] * 40]}

    graph = StateGraph(Trace)
    graph.add_node("work", work)
    graph.add_conditional_edges(START, fan, ["work"])
    compiled = graph.compile(checkpointer=savers())
    compiled.invoke({"seen": []}, thread())
    assert compiled.get_state(thread()).values["seen"] == [f"{number:03}" * 40 for number in range(25)]


def test_continuing_from_an_older_checkpoint_forks_and_keeps_both_branches(savers: Savers) -> None:
    graph = chat_graph(savers())
    for turn in range(1, 4):
        graph.invoke(say(turn), thread())
    past = next(state for state in graph.get_state_history(thread()) if len(state.values.get("messages", [])) == 2)
    graph.invoke({"messages": [HumanMessage("another way", id="other")]}, past.config)
    assert contents(graph)[:3] == [text(1), text(2), "another way"]
    lengths = sorted(len(state.values.get("messages", [])) for state in graph.get_state_history(thread()))
    assert lengths[-1] == 6
    assert contents(chat_graph(savers()))[:3] == [text(1), text(2), "another way"]


def test_changed_replaced_and_removed_messages_are_saved(savers: Savers) -> None:
    saver = savers()
    graph = chat_graph(saver)
    for turn in range(1, 6):
        graph.invoke(say(turn), thread())
    graph.update_state(thread(), {"messages": [AIMessage("replaced " * 50, id="a2"), RemoveMessage(id="h3")]})
    expected = [text(n) for n in range(1, 11)]
    expected[3] = "replaced " * 50
    del expected[4]
    assert contents(graph) == expected
    assert contents(chat_graph(savers())) == expected
    graph.update_state(
        thread(), {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("replaced", id="n")]}
    )
    assert contents(chat_graph(savers())) == ["replaced"]


def test_a_message_changed_in_place_by_a_node_is_saved(savers: Savers) -> None:
    def mark(state: Any) -> dict[str, Any]:
        state["messages"][0].content += " read"
        state["messages"][0].additional_kwargs["seen"] = state.get("turns", 0) + 1
        return {"messages": [AIMessage(f"answer {state.get('turns', 0)}" * 20)], "turns": state.get("turns", 0) + 1}

    graph = chat_graph(savers(), mark)
    for turn in (1, 2, 3):
        graph.invoke(say(turn), thread())
    first = chat_graph(savers(), mark).get_state(thread()).values["messages"][0]
    assert first.content == text(1) + " read" * 3
    assert first.additional_kwargs == {"seen": 3}


def test_a_change_by_one_reader_is_invisible_to_others(saver: HoldfastSaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say(1), thread())
    for _ in range(3):
        state = graph.get_state(thread()).values
        assert [message.content for message in state["messages"]] == [text(1), text(2)]
        state["messages"][0].content = "changed"
        state["messages"][1].additional_kwargs["changed"] = True
        state["messages"].append("more")
    one, other = saver.get_tuple(thread()), saver.get_tuple(thread())
    assert one is not None
    assert other is not None
    pair = [state.checkpoint["channel_values"]["messages"][0] for state in (one, other)]
    assert pair[0] == pair[1]
    assert pair[0] is not pair[1]


def add_up(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(line for write in writes for line in write)]


class Delta(TypedDict, total=False):
    seen: Annotated[list[str], DeltaChannel(add_up, snapshot_frequency=5)]
    turns: int


def test_delta_channels_survive_pruning_copying_and_deleted_runs(savers: Savers) -> None:
    def step(state: Delta) -> dict[str, Any]:
        turn = state.get("turns", 0) + 1
        return {"seen": [f"{turn} " * 40], "turns": turn}

    def seen(saver: Any, name: str = "t") -> list[str]:
        return one_node(Delta, step, saver).get_state(thread(name)).values["seen"]

    expected: list[str] = []
    for turn in range(1, 9):
        saver = savers()
        one_node(Delta, step, saver).invoke({"seen": [f"in {turn}"]}, {**thread(), "metadata": {"run_id": f"r{turn}"}})
        expected += [f"in {turn}", f"{turn} " * 40]
        assert seen(savers()) == expected
        saver.copy_thread("t", f"copy {turn}")
        saver.prune(["t"])
        assert seen(savers()) == expected
        saver.delete_for_runs([f"r{turn - 1}"])
        assert seen(savers()) == expected
        assert seen(savers(), f"copy {turn}") == expected
    history = savers().get_delta_channel_history(config=thread(), channels=["seen", "nothing"])
    assert history["nothing"] == {"writes": []}
    assert history["seen"]["writes"]


def test_threads_of_users_and_tenants_are_apart(address: str, savers: Savers) -> None:
    for options in ({}, {"user": "ada"}, {"user": "grace"}, {"tenant": "acme"}, {"tenant": "acme", "user": "ada"}):
        graph = chat_graph(savers(**options))
        assert contents(graph) == []
        graph.invoke(say(1), thread())
        assert len(list(savers(**options).list(None))) == 3
    savers(user="ada").delete_thread("t")
    assert contents(chat_graph(savers(user="ada"))) == []
    assert len(contents(chat_graph(savers(user="grace")))) == 2
    with Holdfast(address) as holdfast:
        assert len(contents(chat_graph(HoldfastSaver(holdfast.tenant("acme"))))) == 2
