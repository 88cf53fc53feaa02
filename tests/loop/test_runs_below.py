"""Agents that call agents, and wait for them without holding anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import column
from holdfast.loop import (
    ChildRun,
    Event,
    Loop,
    ModelTurn,
    Reply,
    ToolRequest,
    subagent,
    tool,
)
from tests.loop.worlds import World, ask, scripted


def test_an_agent_calls_an_agent_and_waits_without_holding_anything(world: World) -> None:
    seen: list[Event] = []
    parent = Loop(
        scripted(world, [Reply("I ask.", [ask("researcher", "a", task="How many?")]), "It is so."]),
        tools=[subagent("researcher")],
        on_event=seen.append,
    )
    child = Loop(lambda turn: f"I was asked {turn.messages[-1]['content'][0]['text']} Three.")
    run = world.start()
    assert world.run(parent, run.id).status == "paused"
    (below,) = world.acme.runs.list(parent=run.id)
    assert (below.agent, below.parent_call_id, below.depth, below.status) == ("researcher", "a", 1, "pending")
    assert seen[-2].kind == "waiting"
    assert world.run(child, below.id).status == "completed"
    assert world.acme.runs.get(run.id).status == "pending", "the run above was woken"
    assert world.run(parent, run.id).text == "It is so."
    assert world.words(run)[2] == "user: =I was asked How many? Three."
    assert len(world.acme.runs.list(parent=run.id)) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [("failed", "!its run failed: the model raised ValueError: no"), ("cancelled", "!this call was cancelled: enough")],
)
def test_an_agent_is_told_what_became_of_the_one_it_called(small_world: World, how: str, says: str) -> None:
    def refuses(turn: ModelTurn) -> str:
        raise ValueError("no")

    parent = Loop(
        scripted(small_world, [Reply("", [ask("helper", "a", task="Do it")]), "Pity."]), tools=[subagent("helper")]
    )
    run = small_world.start()
    small_world.run(parent, run.id)
    (below,) = small_world.acme.runs.list(parent=run.id)
    if how == "failed":
        small_world.run(Loop(refuses), below.id)
    else:
        small_world.acme.runs.cancel(below.id, reason="enough")
        small_world.clock.advance(10)  # nobody wakes it: it looks by itself
    assert small_world.run(parent, run.id).status == "completed"
    assert small_world.words(run)[2] == f"user: {says}"


def test_a_run_that_is_woken_too_early_goes_on_waiting_for_the_one_below(small_world: World) -> None:
    parent = Loop(
        scripted(small_world, [Reply("", [ask("helper", "a", task="Do it")]), "Fine."]), tools=[subagent("helper")]
    )
    run = small_world.start()
    small_world.run(parent, run.id)
    for _ in range(3):
        small_world.acme.runs.resume(run.id)
        assert small_world.run(parent, run.id).status == "paused"
    assert len(small_world.acme.runs.list(parent=run.id)) == 1


def test_agents_that_call_agents_without_end_are_told_so(tmp_path: Path) -> None:
    """Each calls the next, until the limit: there the call fails, and all come back."""
    world = World(str(tmp_path / "a.db"))

    def model(turn: ModelTurn) -> Reply | str:
        last = turn.messages[-1]["content"][0]
        if last["type"] == "text":
            return Reply("", [ToolRequest("deeper", {"task": "On."})])
        return f"{turn.run.depth} {last['content'][:13]}"

    loops = {name: Loop(model, tools=[subagent("helper", name="deeper")]) for name in ("tester", "helper")}
    run = world.start()
    assert world.live_on(loops, run.id).status == "completed"
    assert world.words(run)[-1].startswith("assistant: 0 1 2 3 4 5 6")
    below = world.acme.runs.list(where=[column("depth").eq(8)])
    assert world.words(below[0])[-1] == "assistant: 8 LimitExceeded"
    world.close()


def test_a_session_that_is_not_there_fails_the_call(small_world: World) -> None:
    @tool(safety="idempotent")
    def lost() -> ChildRun:
        return ChildRun("clerk", "x", "00000000-0000-7000-8000-000000000000")

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ask("lost", "a")]), "Hm."]), tools=[lost])
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.words(run)[2].startswith("user: !NotFound: there is no session")


def test_a_tool_can_hand_its_work_to_a_run_in_a_session_of_its_choice(small_world: World) -> None:
    there = small_world.acme.sessions.create(agent="clerk")

    @tool(safety="idempotent")
    def file_it(what: str) -> ChildRun:
        return ChildRun("clerk", f"File {what}", there.id, {"urgent": True})

    run = small_world.start()
    parent = Loop(scripted(small_world, [Reply("", [ask("file_it", "a", what="x")]), "."]), tools=[file_it])
    small_world.run(parent, run.id)
    (below,) = small_world.acme.runs.list(parent=run.id)
    assert (below.session_id, below.metadata) == (there.id, {"urgent": True})
    assert small_world.words(below) == ["user: File x"]
