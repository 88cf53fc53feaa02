"""How a run ends: by a reply, a condition, a limit; and what a loop refuses to be made of."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Usage
from holdfast.errors import InvalidInput, NotFound, Unavailable
from holdfast.loop import (
    Loop,
    ModelTurn,
    Reply,
    StepProgress,
    ToolRequest,
    subagent,
    tool,
)
from tests.loop.worlds import World


def test_text_alone_is_a_reply_and_ends_the_run(small_world: World) -> None:
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: "Here you are."), run.id)
    assert (ending.status, ending.stop_reason, ending.iteration, ending.text) == (
        "completed",
        "end_turn",
        1,
        "Here you are.",
    )
    assert small_world.words(run) == ["user: Please.", "assistant: Here you are."]
    assert small_world.acme.runs.get(run.id).status == "completed"


def test_a_run_that_is_over_is_not_driven_again(small_world: World) -> None:
    run, loop = small_world.start(), Loop(lambda turn: "Done.")
    small_world.run(loop, run.id)
    again = small_world.run(loop, run.id)
    assert (again.status, again.stop_reason, again.iteration) == ("completed", "end_turn", 1)
    assert small_world.words(run) == ["user: Please.", "assistant: Done."]


def test_a_run_that_is_not_there_is_not_found(small_world: World) -> None:
    with pytest.raises(NotFound):
        small_world.run(Loop(lambda turn: "?"), "00000000-0000-7000-8000-000000000000")


def test_the_state_goes_with_the_steps(small_world: World) -> None:
    seen = []

    def model(turn: ModelTurn) -> Reply:
        seen.append(turn.state)
        return Reply("More.", state={"n": turn.state["n"] + 1}, continue_run=turn.state["n"] < 2)

    run = small_world.start()
    small_world.run(Loop(model, first_state={"n": 0}), run.id)
    assert seen == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [step.state for step in small_world.acme.steps.list(run.id)] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_reply_can_end_the_run_after_its_calls(small_world: World) -> None:
    made = []

    @tool
    def note() -> None:
        made.append(1)

    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("So.", [ToolRequest("note")], stop="bored"), tools=[note]), run.id)
    assert (ending.status, ending.stop_reason, made) == ("completed", "bored", [1])
    assert small_world.words(run)[-1] == "user: =null"


def test_a_stop_condition_sees_the_progress_and_ends_the_run_in_the_same_commit(small_world: World) -> None:
    seen: list[StepProgress] = []

    def stop(progress: StepProgress) -> str | None:
        seen.append(progress)
        return "enough" if progress.iteration == 2 else None

    run = small_world.start()
    used = Usage(input_tokens=3, output_tokens=2)
    ending = small_world.run(Loop(lambda turn: Reply("On.", usage=used, continue_run=True), stop=stop), run.id)
    assert (ending.stop_reason, ending.iteration) == ("enough", 2)
    assert [(each.usage.input_tokens, each.usage.output_tokens) for each in seen] == [(3, 2), (6, 4)]
    there = small_world.acme.runs.get(run.id)
    assert (there.status, there.stop_reason, there.iteration) == ("completed", "enough", 2)


def test_iterations_are_limited(small_world: World) -> None:
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("On.", continue_run=True), max_iterations=3), run.id)
    assert (ending.status, ending.stop_reason, ending.iteration) == ("completed", "max_iterations", 3)


def test_a_run_that_is_over_a_limit_already_asks_nobody(small_world: World) -> None:
    run = small_world.start()
    small_world.run(Loop(lambda turn: Reply("On.", continue_run=True)), run.id, should_continue=lambda: False)
    asked: list[ModelTurn] = []
    ending = small_world.run(Loop(asked.append, max_iterations=1), run.id)
    assert (ending.status, ending.stop_reason, asked) == ("completed", "max_iterations", [])


def test_a_budget_of_tokens_ends_the_run(small_world: World) -> None:
    used = Usage(input_tokens=60, output_tokens=20)
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("On.", usage=used, continue_run=True), budget_tokens=200), run.id)
    assert (ending.stop_reason, ending.iteration) == ("budget", 3)
    there = small_world.acme.runs.get(run.id)
    assert (there.input_tokens, there.output_tokens) == (180, 60)


@pytest.mark.parametrize(
    "options",
    [
        {"model": None, "tools": [7]},
        {"tools": [7]},
        {"max_iterations": 0},
        {"budget_tokens": "many"},
        {"stop": "now"},
        {"tools": [subagent("a"), subagent("a")]},
    ],
)
def test_arguments_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    given = {"model": lambda turn: "x", **options}
    with pytest.raises(InvalidInput):
        Loop(given.pop("model"), **given)


def test_a_database_that_cannot_be_reached_is_said_and_the_run_stays(small_world: World) -> None:
    run = small_world.start()

    def model(turn: ModelTurn) -> str:
        return "x"

    def stop(progress: StepProgress) -> str | None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        small_world.run(Loop(model, stop=stop), run.id)
    assert small_world.acme.runs.get(run.id).status == "running", "its lease runs out, and the claim counts"
