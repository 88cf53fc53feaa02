"""Errors of models, of tools and of the loop's callbacks, in a thread and in an event loop."""

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


def test_a_long_error_is_truncated(small_world: World) -> None:
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
    failures: list[tuple[str, int]] = []

    def model(turn: ModelTurn) -> str:
        if len(failures) < 2:
            raise TimeoutError("slow")
        return "There."

    def retry(error: Exception, count: int) -> float | None:
        failures.append((str(error), count))
        return 0.0

    assert small_world.run(Loop(model, retry=retry), small_world.start().id).status == "completed"
    assert failures == [("slow", 1), ("slow", 2)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (7, "must return a Reply or text, not int"),
        (Reply([{"no": object()}]), "is not JSON"),
        (Reply("x", [ToolRequest("a", id="1"), ToolRequest("b", id="1")]), "unique in the reply"),
        (Reply("x", pause_s=-1), "pause_s"),
        (Reply(["text"]), "text or a list of content blocks"),  # type: ignore[list-item]
        (Reply("x", metadata=7), "is not JSON"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_reply_fails_the_run(small_world: World, answer: Any, message: str) -> None:
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: answer), run.id)
    assert ending.status == "failed"
    assert ending.error is not None
    assert message in ending.error
    assert small_world.words(run) == ["user: Please."]


def test_a_reused_call_id_fails_the_run(small_world: World) -> None:
    @tool(safety="idempotent")
    def again() -> str:
        return "again"

    ending = small_world.run(
        Loop(lambda turn: Reply("", [ToolRequest("again", id="same")]), tools=[again]), small_world.start().id
    )
    assert (ending.status, ending.iteration) == ("failed", 1)
    assert "same" in str(ending.error)


def test_a_callback_that_raises_fails_the_run(small_world: World) -> None:
    def stop(progress: StepProgress) -> str | None:
        raise ZeroDivisionError("a bug")

    ending = small_world.run(Loop(lambda turn: "x", stop=stop), small_world.start().id)
    assert (ending.status, ending.error) == ("failed", "ZeroDivisionError: a bug")


def test_a_result_that_is_not_json_fails_the_call_and_not_the_run(small_world: World) -> None:
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
    assert small_world.words(run)[2].count("!the tool returned a value that is not JSON") == 2


def test_errors_of_tools_are_sent_to_the_model(small_world: World) -> None:
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
    results = small_world.acme.messages.list(run.session_id)[2].content
    assert [block["content"] for block in results] == [
        "just so",
        "KeyError: 'badly'",
        "the input of fails does not fit: Object contains unknown field `who`",
        "tool 'no' does not exist; the tools are: fails",
    ]
    assert all(block["is_error"] for block in results)
    assert {call.status for call in small_world.acme.tool_calls.list(run.id)[1:]} == {"failed"}
