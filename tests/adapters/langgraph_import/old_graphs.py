"""Graphs that create every kind of data in an old database: turns, forks, interrupts, subgraphs, failures, early writes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict


class Chat(TypedDict, total=False):
    """A conversation with a number and notes."""

    messages: Annotated[list[Any], add_messages]
    turns: int
    notes: dict[str, Any]


class Trace(TypedDict, total=False):
    """The events, in order."""

    seen: Annotated[list[str], operator.add]


def add_up(values: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(values or []), *(line for write in writes for line in write)]


class Delta(TypedDict, total=False):
    """A list of which most checkpoints contain only the new elements."""

    seen: Annotated[list[str], DeltaChannel(add_up, snapshot_frequency=5)]
    turns: int


def delta(saver: Any) -> Any:
    """Return a graph that appends one line."""
    return _one(Delta, lambda state: {"seen": ["more"], "turns": state.get("turns", 0) + 1}, saver)


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def chat(saver: Any) -> Any:
    """Return a graph that answers each message."""

    def answer(state: Chat) -> dict[str, Any]:
        turn = state.get("turns", 0) + 1
        reply = f"answer {turn} " + "word " * 40
        return {"messages": [AIMessage(reply, id=f"a{turn}")], "turns": turn, "notes": {"é": [turn, None, b"\x00"]}}

    return _one(Chat, answer, saver)


def asking(saver: Any) -> Any:
    """Return a graph with a subgraph that interrupts, and a parallel node that fails the first time."""

    def ask(state: Trace) -> dict[str, Any]:
        return {"seen": [f"asked: {interrupt({'question': 'ok?'})}"]}

    def fail(state: Trace) -> dict[str, Any]:
        raise RuntimeError("no power")

    graph = StateGraph(Trace)
    graph.add_node("below", _one(Trace, ask, None))
    graph.add_node("quick", lambda state: {"seen": ["quick"]})
    graph.add_node("failing", fail)
    graph.add_edge(START, "below")
    graph.add_edge(START, "quick")
    graph.add_edge("below", "failing")
    return graph.compile(checkpointer=saver)


def _one(state: Any, node: Any, saver: Any) -> Any:
    graph = StateGraph(state)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(checkpointer=saver)


def fill(saver: Any, *, threads: int = 3, turns: int = 3) -> None:
    """Create threads with turns, a fork, an interrupt, a failure, and early writes."""
    for number in range(threads):
        for turn in range(turns):
            chat(saver).invoke({"messages": [HumanMessage(f"hello {turn}", id=f"h{turn}")]}, config(f"chat-{number}"))
    first = [*saver.list(config("chat-0"))][-2]
    chat(saver).invoke({"messages": [HumanMessage("instead", id="i")]}, first.config)
    asking(saver).invoke({"seen": ["begin"]}, config("waiting"))
    asking(saver).invoke({"seen": ["begin"]}, config("failed"))
    try:
        asking(saver).invoke(Command(resume="yes"), config("failed"))
    except RuntimeError:
        pass
    early = config("early", checkpoint_ns="", checkpoint_id="1f000000-0000-6000-8000-000000000000")
    saver.put_writes(early, [("seen", ["too early"]), ("__error__", "E")], "task", "~path")
