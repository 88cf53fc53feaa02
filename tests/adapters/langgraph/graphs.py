"""Small graphs that need no model."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from random import Random
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

Config = Any
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


class Chat(TypedDict, total=False):
    """A conversation."""

    messages: Annotated[list[AnyMessage], add_messages]
    turns: int
    notes: dict[str, str]


class Trace(TypedDict, total=False):
    """The events, in order."""

    seen: Annotated[list[str], operator.add]
    answer: str


def thread(name: str = "t", **more: Any) -> Config:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": name, **more}}


def text(number: int) -> str:
    """Return a kilobyte of random words, which hardly compresses."""
    source = Random(number)
    return " ".join("".join(source.choices(SYLLABLES, k=source.randrange(1, 4))) for _ in range(240))[:1_000]


def chat_graph(saver: Any, reply: Callable[[Chat], dict[str, Any]] | None = None) -> Any:
    """Return a graph that answers each message."""

    def answer(state: Chat) -> dict[str, Any]:
        turn = state.get("turns", 0) + 1
        return {"messages": [AIMessage(text(2 * turn), id=f"a{turn}")], "turns": turn}

    return one_node(Chat, reply or answer, saver)


def one_node(state: Any, node: Callable[..., Any], saver: Any) -> Any:
    """Return a graph with one node."""
    graph = StateGraph(state)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile(checkpointer=saver)


def asking(saver: Any, work: Callable[[Trace], dict[str, Any]] | None = None, *, state: Any = Trace) -> Any:
    """Return a graph with a subgraph that has its own history, does some work and then interrupts."""
    below = StateGraph(state)
    below.add_node("work", work or (lambda state: {"answer": "none yet"}))
    below.add_node("ask", lambda state: {"answer": interrupt("which answer?")})
    below.add_edge(START, "work")
    below.add_edge("work", "ask")
    below.add_edge("ask", END)
    graph = StateGraph(state)
    graph.add_node("below", below.compile(checkpointer=True))
    graph.add_edge(START, "below")
    graph.add_edge("below", END)
    return graph.compile(checkpointer=saver)


def run(style: str, graph: Any, *args: Any) -> Any:
    """Call a graph in the style ``sync`` or ``async``."""
    return asyncio.run(graph.ainvoke(*args)) if style == "async" else graph.invoke(*args)


def say(number: int) -> dict[str, Any]:
    """Return the input of a chat graph."""
    return {"messages": [HumanMessage(text(2 * number - 1), id=f"h{number}")]}
