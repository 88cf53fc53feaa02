"""Tools: their schema, their input, their results and errors."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from holdfast import Holdfast, Usage
from holdfast.errors import InvalidInput
from holdfast.loop import (
    Call,
    ChildRun,
    Later,
    Loop,
    ModelTurn,
    Reply,
    Snooze,
    Tool,
    ToolError,
    ToolRequest,
    subagent,
    tool,
)
from holdfast.loop.messages import block_of, text_of
from holdfast.loop.replies import decode_reply, normalize_reply
from holdfast.loop.tool_execution import make_call, make_call_async, resolve, run_in_thread
from holdfast.loop.tools import Completed, Delegated, Failed, Snoozed, TimedOut, answer_of, failure_of, parallel_batches
from tests.errors import raises


class Place(Struct):
    city: str
    country: str = "NO"


def call(name: str = "t", input: Any = None) -> Call:
    return Call("c1", name, input, None, 1, None, lambda: False)  # type: ignore[arg-type]


def result_of(tool: Tool, input: Any = None) -> Any:
    return make_call({tool.name: tool}, call(tool.name, input))


def test_the_schema_is_derived_from_the_annotations() -> None:
    @tool
    def find(place: Place, days: Annotated[int, Meta(ge=1)] = 3, unit: Literal["C", "F"] = "C", *, call: Call) -> None:
        """Find it.

        In two paragraphs.
        """

    assert find.schema["required"] == ["place"]
    assert find.schema["properties"]["days"] == {"type": "integer", "minimum": 1, "default": 3}
    assert find.schema["properties"]["unit"] == {"enum": ["C", "F"], "default": "C"}
    assert "call" not in find.schema["properties"], "the call comes from the loop, not from the model"
    assert find.schema["$defs"]["Place"]["required"] == ["city"]
    assert find.definition() == {
        "name": "find",
        "description": "Find it.\n\nIn two paragraphs.",
        "input_schema": find.schema,
    }


def test_input_is_validated_and_converted_before_the_call() -> None:
    calls = []

    @tool
    def go(place: Place, fast: bool = False) -> str:
        calls.append((place, fast))
        return "gone"

    assert result_of(go, {"place": {"city": "Oslo"}}) == Completed("gone")
    assert calls == [(Place("Oslo"), False)]
    invalid = [{"place": "Oslo"}, {"place": {"city": 1}}, {}, {"place": {"city": "x"}, "slow": True}, [1], "x"]
    for input in invalid:
        answer = result_of(go, input)
        assert isinstance(answer, Failed), input
        assert "the input of go" in answer.error
    assert len(calls) == 1, "a call that does not fit is not result_of"


def test_with_an_explicit_schema_input_is_passed_unchanged() -> None:
    @tool(schema={"type": "object", "properties": {"a": {}}}, name="mine", description="Mine.")
    def anything(**values: Any) -> Any:
        return values

    assert anything.definition()["input_schema"] == {"type": "object", "properties": {"a": {}}}
    assert result_of(anything, {"a": 1, "b": [2]}) == Completed({"a": 1, "b": [2]})


def test_a_tool_can_be_called_like_its_function() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert (double.name, double.safety, double.parallel, double.hold) == ("double", "at_most_once", True, False)


@pytest.mark.parametrize("options", [{"safety": "perhaps"}, {"safety": None}])
def test_an_invalid_safety_is_refused(options: dict[str, Any]) -> None:
    with raises(InvalidInput, field="safety"):
        tool(**options)(lambda: None)


def test_unsuitable_functions_are_refused() -> None:
    with raises(InvalidInput, field="all"):
        tool(lambda *all: None)
    with raises(InvalidInput, field="function"):
        Tool("x")  # type: ignore[arg-type]
    with raises(InvalidInput, field="schema"):

        @tool
        def strange(x: threading.Thread) -> None: ...


def test_return_values_and_errors_become_answers() -> None:
    assert answer_of({"a": Place("x")}) == Completed({"a": {"city": "x", "country": "NO"}})
    assert answer_of(Later("r", 5)) == Completed("r", 5.0)
    assert answer_of(ChildRun("a", "t")) == Delegated(ChildRun("a", "t"))
    assert isinstance(answer_of(object()), Failed)
    assert isinstance(answer_of(float("nan")), Failed)
    assert failure_of(Snooze(3)) == Snoozed(3.0)
    assert failure_of(ToolError("so")) == Failed("so")
    assert failure_of(ValueError("bad")) == Failed("ValueError: bad")


def test_only_adjacent_parallel_calls_share_a_batch() -> None:
    free, alone = tool(name="free")(lambda: None), tool(name="alone", parallel=False)(lambda: None)
    names = {"f": free, "a": alone, "?": None}

    def group(order: str) -> list[str]:
        calls = [(names[name], call(name)) for name in order]
        return ["".join(one.name for _, one in batch) for batch in parallel_batches(calls)]

    assert group("") == []
    assert group("ff?") == ["ff?"]
    assert group("faaf") == ["f", "a", "a", "f"]
    assert group("aff") == ["a", "ff"]


def test_a_subagent_is_an_idempotent_tool() -> None:
    helper = subagent("helper", name="ask", description="Ask.")
    assert (helper.name, helper.safety, helper.description) == ("ask", "idempotent", "Ask.")
    assert helper.schema["required"] == ["task"]
    assert result_of(helper, {"task": "x"}) == Delegated(ChildRun("helper", "x"))


def test_an_awaitable_is_resolved_outside_of_an_event_loop_only() -> None:
    async def three() -> int:
        return 3

    assert resolve(three()) == 3
    assert resolve(4) == 4

    async def inside() -> None:
        with pytest.raises(InvalidInput, match="adrive"):
            resolve(three())

    asyncio.run(inside())


def test_a_synchronous_tool_does_not_block_the_event_loop() -> None:
    threads = []

    @tool
    def blocks() -> str:
        threads.append(threading.current_thread())
        return "done"

    answer = asyncio.run(make_call_async({"blocks": blocks}, call("blocks")))
    assert answer == Completed("done")
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon, "the process can end while it runs"


def test_a_slow_tool_times_out() -> None:
    never = threading.Event()

    @tool(timeout_s=0.02)
    def blocks() -> None:
        never.wait()

    @tool(timeout_s=0.02)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @tool(timeout_s=30)
    def raising() -> None:
        raise TimeoutError("its own")

    for slow in (blocks, hangs):
        for answer in (result_of(slow), asyncio.run(make_call_async({slow.name: slow}, call(slow.name)))):
            assert answer == TimedOut("no answer within 0.02 s: it is unknown whether the call happened")
    assert result_of(raising) == Failed("TimeoutError: its own")
    assert asyncio.run(make_call_async({"raising": raising}, call("raising"))) == Failed("TimeoutError: its own")
    never.set()
    for wrong in (0, -1, "soon"):
        with raises(InvalidInput, field="timeout_s"):
            tool(timeout_s=wrong)(lambda: None)  # type: ignore[arg-type]


def test_unresolvable_annotations_need_a_schema() -> None:
    def strange(x: Nowhere, call: Call) -> str:  # type: ignore[name-defined]  # noqa: F821
        return f"{x} {call.id}"

    with raises(InvalidInput, field="schema"):
        tool(strange)
    assert result_of(tool(schema={"type": "object"})(strange), {"x": 1}) == Completed("1 c1")


def test_an_error_in_a_thread_is_raised_by_its_future() -> None:
    def raises() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_in_thread(raises).result(timeout=60)


def test_threads_inherit_the_acting_user() -> None:
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        with acme.acting(user="ada"):
            assert run_in_thread(lambda: acme.acting_now().user).result(timeout=60) == "ada"


# -------------------------------------------------------------------------------------------------------------- replies


def test_a_reply_is_stored_unchanged() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    reply = Reply(
        [thought, {"type": "tool_use", "id": "x", "name": "look", "input": {"a": 1}}],
        [ToolRequest("find", {"b": 2})],
        Usage(input_tokens=3, output_tokens=4),
        {"n": 1},
        "so",
        pause_s=2,
        metadata={"m": 1},
    )
    normalized = normalize_reply(reply, 7)
    assert decode_reply(normalized.to_json()) == normalized
    assert [(request.id, request.name, request.input) for request in normalized.requests] == [
        ("x", "look", {"a": 1}),
        ("call-7-2", "find", {"b": 2}),
    ]
    assert normalized.content[0] == thought
    assert (
        normalized.input_tokens,
        normalized.output_tokens,
        normalized.state,
        normalized.stop,
        normalized.pause_s,
    ) == (3, 4, {"n": 1}, "so", 2)


def test_an_unset_state_differs_from_none() -> None:
    silent, none = normalize_reply(Reply("x"), 1), normalize_reply(Reply("x", state=None), 1)
    assert decode_reply(silent.to_json()) == silent
    assert decode_reply(none.to_json()) == none
    assert silent.state is not None
    assert none.state is None


def test_the_text_and_block_of_an_outcome() -> None:
    from holdfast import ToolOutcome

    assert text_of(ToolOutcome(id="a", result="unchanged", status="finished")) == "unchanged"
    assert text_of(ToolOutcome(id="a", result={"ä": None}, status="finished")) == '{"ä": null}'
    assert text_of(ToolOutcome(id="a", status="cancelled")) == "this call was cancelled"
    assert block_of(ToolOutcome(id="a", error="no", status="failed")) == {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": "no",
        "is_error": True,
    }


def test_any_text_of_a_model_is_stored() -> None:
    odd_text = "nul \0, lone \ud800, 🙂"

    @tool(safety="idempotent")
    def echo(text: str) -> str:
        return text

    def model(turn: ModelTurn) -> Reply | str:
        return (
            Reply(odd_text, [ToolRequest("echo", {"text": odd_text})], state={odd_text: odd_text})
            if turn.iteration == 1
            else odd_text
        )

    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create(agent="a").id)
        ending = Loop(model, tools=[echo]).drive(acme, run.id)
        assert (ending.status, ending.text) == ("completed", odd_text)
        messages = acme.messages.list(run.session_id)
        assert messages[0].content[1]["input"] == {"text": odd_text}
        assert messages[1].content[0]["content"] == odd_text
        assert acme.steps.get(run.id, 1).state == {odd_text: odd_text}
