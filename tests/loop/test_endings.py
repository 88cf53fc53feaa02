"""How a run ends: by a reply, a condition or a limit; and which arguments a loop rejects."""

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


def test_a_finished_run_is_not_driven_again(small_world: World) -> None:
    run, loop = small_world.start(), Loop(lambda turn: "Done.")
    small_world.run(loop, run.id)
    second = small_world.run(loop, run.id)
    assert (second.status, second.stop_reason, second.iteration) == ("completed", "end_turn", 1)
    assert small_world.words(run) == ["user: Please.", "assistant: Done."]


def test_a_missing_run_raises_not_found(small_world: World) -> None:
    with pytest.raises(NotFound):
        small_world.run(Loop(lambda turn: "?"), "00000000-0000-7000-8000-000000000000")


def test_the_state_is_stored_with_each_step(small_world: World) -> None:
    states = []

    def model(turn: ModelTurn) -> Reply:
        states.append(turn.state)
        return Reply("More.", state={"n": turn.state["n"] + 1}, continue_run=turn.state["n"] < 2)

    run = small_world.start()
    small_world.run(Loop(model, first_state={"n": 0}), run.id)
    assert states == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [step.state for step in small_world.acme.steps.list(run.id)] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_reply_can_end_the_run_after_its_calls(small_world: World) -> None:
    calls = []

    @tool
    def note() -> None:
        calls.append(1)

    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("So.", [ToolRequest("note")], stop="bored"), tools=[note]), run.id)
    assert (ending.status, ending.stop_reason, calls) == ("completed", "bored", [1])
    assert small_world.words(run)[-1] == "user: =null"


def test_a_stop_condition_sees_the_progress_and_ends_the_run_in_the_same_commit(small_world: World) -> None:
    progresses: list[StepProgress] = []

    def stop(progress: StepProgress) -> str | None:
        progresses.append(progress)
        return "enough" if progress.iteration == 2 else None

    run = small_world.start()
    used = Usage(input_tokens=3, output_tokens=2)
    ending = small_world.run(Loop(lambda turn: Reply("On.", usage=used, continue_run=True), stop=stop), run.id)
    assert (ending.stop_reason, ending.iteration) == ("enough", 2)
    assert [(progress.usage.input_tokens, progress.usage.output_tokens) for progress in progresses] == [(3, 2), (6, 4)]
    stored_run = small_world.acme.runs.get(run.id)
    assert (stored_run.status, stored_run.stop_reason, stored_run.iteration) == ("completed", "enough", 2)


def test_the_number_of_iterations_is_limited(small_world: World) -> None:
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("On.", continue_run=True), max_iterations=3), run.id)
    assert (ending.status, ending.stop_reason, ending.iteration) == ("completed", "max_iterations", 3)


def test_a_run_over_a_limit_ends_without_asking_the_model(small_world: World) -> None:
    run = small_world.start()
    small_world.run(Loop(lambda turn: Reply("On.", continue_run=True)), run.id, should_continue=lambda: False)
    prompts: list[ModelTurn] = []
    ending = small_world.run(Loop(prompts.append, max_iterations=1), run.id)
    assert (ending.status, ending.stop_reason, prompts) == ("completed", "max_iterations", [])


def test_a_budget_of_tokens_ends_the_run(small_world: World) -> None:
    used = Usage(input_tokens=60, output_tokens=20)
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("On.", usage=used, continue_run=True), budget_tokens=200), run.id)
    assert (ending.stop_reason, ending.iteration) == ("budget", 3)
    stored_run = small_world.acme.runs.get(run.id)
    assert (stored_run.input_tokens, stored_run.output_tokens) == (180, 60)


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
def test_invalid_arguments_are_refused(options: dict[str, Any]) -> None:
    arguments = {"model": lambda turn: "x", **options}
    with pytest.raises(InvalidInput):
        Loop(arguments.pop("model"), **arguments)


def test_an_unreachable_database_raises_and_the_run_stays(small_world: World) -> None:
    run = small_world.start()

    def model(turn: ModelTurn) -> str:
        return "x"

    def stop(progress: StepProgress) -> str | None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        small_world.run(Loop(model, stop=stop), run.id)
    assert small_world.acme.runs.get(run.id).status == "running", (
        "its lease expires, and the claim counts as an attempt"
    )
