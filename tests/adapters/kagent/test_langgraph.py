"""``kagent.langgraph.KAgentCheckpointer``, unchanged: graphs that stop and continue in another process."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import httpx
import pytest
from kagent.core import KAgentConfig
from kagent.langgraph import KAgentApp, KAgentCheckpointer
from langchain_core.messages import AIMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

APP = "ns__NS__app"


class State(TypedDict):
    n: int
    log: Annotated[list, operator.add]


def interrupting_graph() -> StateGraph:
    """A graph whose second node interrupts with a question."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"n": state["n"] + 1, "log": ["a"]})
    graph.add_node("b", lambda state: {"log": ["b:" + interrupt({"q": "ok?"})]})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    return graph


def config_of(thread: str, user: str | None = "alice") -> dict[str, Any]:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread} | ({} if user is None else {"user_id": user})}


async def run_graph(base: str, graph: StateGraph, given: Any, config: dict[str, Any], **options: Any) -> Any:
    """Run a graph as another process would: with a new client."""
    async with httpx.AsyncClient(base_url=base) as client:
        return await graph.compile(checkpointer=KAgentCheckpointer(client, APP)).ainvoke(given, config, **options)


async def state_of(base: str, graph: StateGraph, config: dict[str, Any]) -> Any:
    """Return the state of a graph."""
    async with httpx.AsyncClient(base_url=base) as client:
        return await graph.compile(checkpointer=KAgentCheckpointer(client, APP)).aget_state(config)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_continues_in_another_process(base: str, name: str, durability: str) -> None:
    async def use() -> None:
        config = config_of(name)
        await run_graph(base, interrupting_graph(), {"n": 1, "log": []}, config, durability=durability)
        assert (await state_of(base, interrupting_graph(), config)).next == ("b",)
        assert (await state_of(base, interrupting_graph(), config_of(name, None))).values == {}, "of another user"
        out = await run_graph(base, interrupting_graph(), Command(resume="yes"), config, durability=durability)
        assert out["log"] == ["a", "b:yes"]

    asyncio.run(use())


def test_an_interrupted_subgraph_continues(base: str, name: str) -> None:
    outer = StateGraph(State)
    outer.add_node("inner", interrupting_graph().compile())
    outer.add_edge(START, "inner")

    async def use() -> None:
        config = config_of(name)
        await run_graph(base, outer, {"n": 1, "log": []}, config)
        out = await run_graph(base, outer, Command(resume="yes"), config)
        assert out["log"][-1] == "b:yes"

    asyncio.run(use())


def parallel_graph(failing: dict[str, bool]) -> StateGraph:
    """A graph with two parallel branches, of which one fails if requested."""

    def branch(letter: str) -> Any:
        def run(state: State) -> dict[str, Any]:
            if failing.get(letter):
                raise RuntimeError(letter)
            return {"log": [letter]}

        return run

    graph = StateGraph(State)
    for letter in "xy":
        graph.add_node(letter, branch(letter))
        graph.add_edge(START, letter)
    return graph


@pytest.mark.parametrize("failed", ["x", "y"])
def test_each_branch_runs_once_after_one_of_them_failed(base: str, name: str, failed: str) -> None:
    async def use() -> None:
        for attempt in range(3):
            config, failing = config_of(f"{name}-{attempt}"), {failed: True}
            graph = parallel_graph(failing)
            with pytest.raises(RuntimeError):
                await run_graph(base, graph, {"n": 1, "log": []}, config)
            failing.clear()
            assert sorted((await run_graph(base, graph, None, config))["log"]) == ["x", "y"]

    asyncio.run(use())


def test_an_interrupted_node_is_not_skipped_when_its_sibling_is_done(base: str, name: str) -> None:
    graph = StateGraph(State)
    graph.add_node("done", lambda state: {"log": ["done"]})
    graph.add_node("asks", lambda state: {"log": [f"{interrupt('first')} {interrupt('second')}"]})
    for value in ("done", "asks"):
        graph.add_edge(START, value)

    async def use() -> None:
        for attempt in range(3):
            config = config_of(f"{name}-{attempt}")
            await run_graph(base, graph, {"n": 1, "log": []}, config)
            await run_graph(base, graph, Command(resume="1"), config)
            out = await run_graph(base, graph, Command(resume="2"), config)
            assert sorted(out["log"]) == ["1 2", "done"]

    asyncio.run(use())


def test_the_client_passes_the_conformance_tests_that_it_can_pass(base: str) -> None:
    """All failures are the client's: it ignores ``before`` and ``filter``, and its responses have room for one task."""

    async def made() -> Any:
        async with httpx.AsyncClient(base_url=base) as client:
            yield KAgentCheckpointer(client, APP)

    registered = checkpointer_test(name=f"kagent {uuid4()}")(made)
    report = asyncio.run(validate(registered))
    results = {
        name: (item.tests_passed, item.tests_passed + item.tests_failed) for name, item in report.results.items()
    }
    by_name = {"put": (17, 17), "get_tuple": (10, 10), "put_writes": (9, 10), "list": (8, 16)}
    assert {name: results[name] for name in by_name} == by_name


def app_on(base: str) -> Any:
    """A whole LangGraph app that uses our server, and reports how many messages it has received."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(content=f"heard {len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    config = KAgentConfig(url=base, name="app", namespace="ns")
    card = {
        "name": "app",
        "description": "d",
        "url": "http://x",
        "version": "1",
        "capabilities": {"streaming": False},
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "skills": [],
    }
    client = httpx.AsyncClient(base_url=base)
    compiled = graph.compile(checkpointer=KAgentCheckpointer(client, config.app_name))
    return KAgentApp(graph=compiled, agent_card=card, config=config, tracing=False).build()
