"""Small graphs that need no model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from random import Random
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

Config = Any
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


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
    """A kilobyte, never the same, in words of no language: little of it can be compressed."""
    source = Random(number)
    return " ".join("".join(source.choices(SYLLABLES, k=source.randrange(1, 4))) for _ in range(240))[:1_000]


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
