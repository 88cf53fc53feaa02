"""Small graphs that need no model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

Config = Any


class Chat(TypedDict, total=False):
    """A conversation."""

    messages: Annotated[list[AnyMessage], add_messages]
    turns: int
    notes: dict[str, str]


class Trace(TypedDict, total=False):
    """What happened, in order."""

    seen: Annotated[list[str], operator.add]
    answer: str


def thread(name: str = "t", **more: Any) -> Config:
    """The config of a thread."""
    return {"configurable": {"thread_id": name, **more}}


def text(number: int) -> str:
    """About a kilobyte, never the same."""
    words = [f"{(number * 7919 + n * 104729) % 999_983:x}" for n in range(8)]
    return " ".join([*words, *("the answer is in the other file, as we said before and will say again " * 13).split()])[
        :1_000
    ]


def chat_graph(saver: Any, reply: Callable[[Chat], dict[str, Any]] | None = None) -> Any:
    """A graph that answers each message."""

    def answer(state: Chat) -> dict[str, Any]:
        turn = state.get("turns", 0) + 1
        return {"messages": [AIMessage(text(2 * turn), id=f"a{turn}")], "turns": turn}

    return one_node(Chat, reply or answer, saver)


def one_node(state: Any, node: Callable[..., Any], saver: Any) -> Any:
    """A graph with one node."""
    graph = StateGraph(state)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(checkpointer=saver)


def say(number: int) -> dict[str, Any]:
    """What somebody says to a chat graph."""
    return {"messages": [HumanMessage(text(2 * number - 1), id=f"h{number}")]}
