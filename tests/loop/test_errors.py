"""What a loop does with errors of models, of tools and of itself: the same in a thread and in an event loop."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.loop import (
    Loop,
    ModelTurn,
    Reply,
    StepProgress,
    ToolError,
    ToolRequest,
    tool,
)
from tests.loop.worlds import World, ask, scripted


def test_a_model_that_raises_fails_the_run_which_can_be_resumed(small_world: World) -> None:
    tries: list[int] = []

    def model(turn: ModelTurn) -> str:
        tries.append(turn.iteration)
        if len(tries) == 1:
            raise ConnectionError("the provider is down")
        return "Back."

    run, loop = small_world.start(), Loop(model)
    ending = small_world.run(loop, run.id)
    assert (ending.status, ending.stop_reason) == ("failed", "error")
    assert ending.error == "the model raised ConnectionError: the provider is down"
    assert small_world.acme.runs.get(run.id).error == ending.error
    small_world.acme.runs.resume(run.id)
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.words(run) == ["user: Please.", "assistant: Back."]


def test_an_error_as_long_as_a_page_is_shortened(small_world: World) -> None:
    def model(turn: ModelTurn) -> str:
        raise ValueError("<html>" * 100_000)

    @tool
    def fails() -> None:
        raise ToolError("x" * 1_000_000)

    ending = small_world.run(Loop(model), small_world.start().id)
    assert ending.status == "failed"
    assert len(str(ending.error)) < 5_000
    assert str(ending.error).endswith("characters)")
    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ToolRequest("fails")]), "."]), tools=[fails])
    assert small_world.run(loop, run.id).status == "completed"
    assert len(small_world.words(run)[2]) < 5_000


def test_retrying_the_model_is_the_callers_choice(small_world: World) -> None:
    told: list[tuple[str, int]] = []

    def model(turn: ModelTurn) -> str:
        if len(told) < 2:
            raise TimeoutError("slow")
        return "There."

    def retry(error: Exception, tried: int) -> float | None:
        told.append((str(error), tried))
        return 0.0

    assert small_world.run(Loop(model, retry=retry), small_world.start().id).status == "completed"
    assert told == [("slow", 1), ("slow", 2)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (7, "a model answers a Reply or text, not int"),
        (Reply([{"no": object()}]), "is not JSON"),
        (Reply("x", [ToolRequest("a", id="1"), ToolRequest("b", id="1")]), "an id that no other call of the reply has"),
        (Reply("x", pause_s=-1), "pause_s is a number of seconds"),
        (Reply(["text"]), "text or a list of content blocks"),  # type: ignore[list-item]
        (Reply("x", metadata=7), "is not JSON"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_cannot_be_used_fails_the_run(small_world: World, answer: Any, says: str) -> None:
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: answer), run.id)
    assert ending.status == "failed"
    assert ending.error is not None
    assert says in ending.error
    assert small_world.words(run) == ["user: Please."]


def test_an_id_that_was_used_before_in_the_run_fails_it(small_world: World) -> None:
    @tool(safety="idempotent")
    def again() -> str:
        return "again"

    ending = small_world.run(
        Loop(lambda turn: Reply("", [ToolRequest("again", id="same")]), tools=[again]), small_world.start().id
    )
    assert (ending.status, ending.iteration) == ("failed", 1)
    assert "same" in str(ending.error)


def test_a_function_of_the_loop_that_raises_fails_the_run(small_world: World) -> None:
    def stop(progress: StepProgress) -> str | None:
        raise ZeroDivisionError("a bug")

    ending = small_world.run(Loop(lambda turn: "x", stop=stop), small_world.start().id)
    assert (ending.status, ending.error) == ("failed", "ZeroDivisionError: a bug")


def test_a_result_that_cannot_be_stored_fails_the_call_and_not_the_run(small_world: World) -> None:
    @tool
    def strange() -> object:
        return object()

    @tool
    def infinite() -> float:
        return float("inf")

    script = [Reply("", [ToolRequest("strange"), ToolRequest("infinite")]), "Well."]
    run = small_world.start()
    ending = small_world.run(Loop(scripted(small_world, script), tools=[strange, infinite]), run.id)
    assert ending.status == "completed"
    assert small_world.words(run)[2].count("!the tool returned what is not JSON") == 2


def test_errors_of_tools_are_told_to_the_model(small_world: World) -> None:
    @tool
    def fails(how: str) -> None:
        raise ToolError("just so") if how == "plainly" else KeyError(how)

    calls = [
        ask("fails", "a", how="plainly"),
        ask("fails", "b", how="badly"),
        ask("fails", "c", who="me"),
        ask("no", "d"),
    ]
    run = small_world.start()
    ending = small_world.run(Loop(scripted(small_world, [Reply("", calls), "I see."]), tools=[fails]), run.id)
    assert ending.status == "completed"
    told = small_world.acme.messages.list(run.session_id)[2].content
    assert [block["content"] for block in told] == [
        "just so",
        "KeyError: 'badly'",
        "the input of fails does not fit: Object contains unknown field `who`",
        "there is no tool 'no'; there are: fails",
    ]
    assert all(block["is_error"] for block in told)
    assert {call.status for call in small_world.acme.tool_calls.list(run.id)[1:]} == {"failed"}
