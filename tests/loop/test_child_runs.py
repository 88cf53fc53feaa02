"""Agents that call agents: child runs and their parents."""

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


def test_a_parent_run_waits_for_its_child_without_holding_a_lease(world: World) -> None:
    events: list[Event] = []
    parent = Loop(
        scripted(world, [Reply("I ask.", [ask("researcher", "a", task="How many?")]), "It is so."]),
        tools=[subagent("researcher")],
        on_event=events.append,
    )
    child = Loop(lambda turn: f"I was asked {turn.messages[-1]['content'][0]['text']} Three.")
    run = world.start()
    assert world.run(parent, run.id).status == "paused"
    (child_run,) = world.acme.runs.list(parent=run.id)
    assert (child_run.agent, child_run.parent_call_id, child_run.depth, child_run.status) == (
        "researcher",
        "a",
        1,
        "pending",
    )
    assert events[-2].kind == "waiting"
    assert world.run(child, child_run.id).status == "completed"
    assert world.acme.runs.get(run.id).status == "pending", "the parent run was resumed"
    assert world.run(parent, run.id).text == "It is so."
    assert world.words(run)[2] == "user: =I was asked How many? Three."
    assert len(world.acme.runs.list(parent=run.id)) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [("failed", "!its run failed: the model raised ValueError: no"), ("cancelled", "!this call was cancelled: enough")],
)
def test_a_parent_gets_the_outcome_of_its_child(small_world: World, how: str, says: str) -> None:
    def refuses(turn: ModelTurn) -> str:
        raise ValueError("no")

    parent = Loop(
        scripted(small_world, [Reply("", [ask("helper", "a", task="Do it")]), "Pity."]), tools=[subagent("helper")]
    )
    run = small_world.start()
    small_world.run(parent, run.id)
    (child_run,) = small_world.acme.runs.list(parent=run.id)
    if how == "failed":
        small_world.run(Loop(refuses), child_run.id)
    else:
        small_world.acme.runs.cancel(child_run.id, reason="enough")
        small_world.clock.advance(10)  # nothing resumes the parent: it polls
    assert small_world.run(parent, run.id).status == "completed"
    assert small_world.words(run)[2] == f"user: {says}"


def test_a_parent_that_is_woken_too_early_keeps_waiting_for_its_child(small_world: World) -> None:
    parent = Loop(
        scripted(small_world, [Reply("", [ask("helper", "a", task="Do it")]), "Fine."]), tools=[subagent("helper")]
    )
    run = small_world.start()
    small_world.run(parent, run.id)
    for _ in range(3):
        small_world.acme.runs.resume(run.id)
        assert small_world.run(parent, run.id).status == "paused"
    assert len(small_world.acme.runs.list(parent=run.id)) == 1


def test_nested_agents_are_limited_in_depth(tmp_path: Path) -> None:
    """Each agent calls the next, up to the limit: there the call fails, and all return."""
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
    child_runs = world.acme.runs.list(where=[column("depth").eq(8)])
    assert world.words(child_runs[0])[-1] == "assistant: 8 LimitExceeded"
    world.close()


def test_a_missing_session_fails_the_call(small_world: World) -> None:
    @tool(safety="idempotent")
    def lost() -> ChildRun:
        return ChildRun("clerk", "x", "00000000-0000-7000-8000-000000000000")

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ask("lost", "a")]), "Hm."]), tools=[lost])
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.words(run)[2].startswith("user: !NotFound: ")


def test_a_tool_can_delegate_to_a_run_in_a_chosen_session(small_world: World) -> None:
    session = small_world.acme.sessions.create(agent="clerk")

    @tool(safety="idempotent")
    def file_it(what: str) -> ChildRun:
        return ChildRun("clerk", f"File {what}", session.id, {"urgent": True})

    run = small_world.start()
    parent = Loop(scripted(small_world, [Reply("", [ask("file_it", "a", what="x")]), "."]), tools=[file_it])
    small_world.run(parent, run.id)
    (child_run,) = small_world.acme.runs.list(parent=run.id)
    assert (child_run.session_id, child_run.metadata) == (session.id, {"urgent": True})
    assert small_world.words(child_run) == ["user: File x"]
