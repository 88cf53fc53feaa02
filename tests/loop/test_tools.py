"""What a tool is made from, what it is given, and what becomes of what it returns."""

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


class Place(Struct):
    city: str
    country: str = "NO"


def call(name: str = "t", input: Any = None) -> Call:
    return Call("c1", name, input, None, 1, None, lambda: False)  # type: ignore[arg-type]


def made(each: Tool, input: Any = None) -> Any:
    return make_call({each.name: each}, call(each.name, input))


def test_the_schema_is_read_from_the_annotations() -> None:
    @tool
    def find(place: Place, days: Annotated[int, Meta(ge=1)] = 3, unit: Literal["C", "F"] = "C", *, call: Call) -> None:
        """Find it.

        In two paragraphs.
        """

    assert find.schema["required"] == ["place"]
    assert find.schema["properties"]["days"] == {"type": "integer", "minimum": 1, "default": 3}
    assert find.schema["properties"]["unit"] == {"enum": ["C", "F"], "default": "C"}
    assert "call" not in find.schema["properties"], "the model does not give what the loop gives"
    assert find.schema["$defs"]["Place"]["required"] == ["city"]
    assert find.definition() == {
        "name": "find",
        "description": "Find it.\n\nIn two paragraphs.",
        "input_schema": find.schema,
    }


def test_input_is_checked_and_converted_before_the_call() -> None:
    seen = []

    @tool
    def go(place: Place, fast: bool = False) -> str:
        seen.append((place, fast))
        return "gone"

    assert made(go, {"place": {"city": "Oslo"}}) == Completed("gone")
    assert seen == [(Place("Oslo"), False)]
    refused = [{"place": "Oslo"}, {"place": {"city": 1}}, {}, {"place": {"city": "x"}, "slow": True}, [1], "x"]
    for input in refused:
        answer = made(go, input)
        assert isinstance(answer, Failed), input
        assert "the input of go" in answer.error
    assert len(seen) == 1, "a call that does not fit is not made"


def test_a_schema_of_ones_own_takes_input_as_it_comes() -> None:
    @tool(schema={"type": "object", "properties": {"a": {}}}, name="mine", description="Mine.")
    def anything(**given: Any) -> Any:
        return given

    assert anything.definition()["input_schema"] == {"type": "object", "properties": {"a": {}}}
    assert made(anything, {"a": 1, "b": [2]}) == Completed({"a": 1, "b": [2]})


def test_a_tool_is_still_the_function_it_was() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert (double.name, double.safety, double.parallel, double.hold) == ("double", "at_most_once", True, False)


@pytest.mark.parametrize("options", [{"safety": "perhaps"}, {"safety": None}])
def test_a_safety_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="safety is one of"):
        tool(**options)(lambda: None)


def test_functions_that_cannot_be_called_by_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="by name"):
        tool(lambda *all: None)
    with pytest.raises(InvalidInput, match="a function"):
        Tool("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="give schema="):

        @tool
        def strange(x: threading.Thread) -> None: ...


def test_what_is_returned_and_raised_becomes_an_answer() -> None:
    assert answer_of({"a": Place("x")}) == Completed({"a": {"city": "x", "country": "NO"}})
    assert answer_of(Later("r", 5)) == Completed("r", 5.0)
    assert answer_of(ChildRun("a", "t")) == Delegated(ChildRun("a", "t"))
    assert isinstance(answer_of(object()), Failed)
    assert isinstance(answer_of(float("nan")), Failed)
    assert failure_of(Snooze(3)) == Snoozed(3.0)
    assert failure_of(ToolError("so")) == Failed("so")
    assert failure_of(ValueError("bad")) == Failed("ValueError: bad")


def test_only_neighbours_that_may_be_are_called_at_once() -> None:
    free, alone = tool(name="free")(lambda: None), tool(name="alone", parallel=False)(lambda: None)
    names = {"f": free, "a": alone, "?": None}

    def grouped(order: str) -> list[str]:
        calls = [(names[each], call(each)) for each in order]
        return ["".join(one.name for _, one in together) for together in parallel_batches(calls)]

    assert grouped("") == []
    assert grouped("ff?") == ["ff?"]
    assert grouped("faaf") == ["f", "a", "a", "f"]
    assert grouped("aff") == ["a", "ff"]


def test_a_subagent_is_a_tool_that_may_be_tried_again() -> None:
    helper = subagent("helper", name="ask", description="Ask.")
    assert (helper.name, helper.safety, helper.description) == ("ask", "idempotent", "Ask.")
    assert helper.schema["required"] == ["task"]
    assert made(helper, {"task": "x"}) == Delegated(ChildRun("helper", "x"))


def test_an_asynchronous_function_is_finished_where_there_is_no_event_loop() -> None:
    async def three() -> int:
        return 3

    assert resolve(three()) == 3
    assert resolve(4) == 4

    async def inside() -> None:
        with pytest.raises(InvalidInput, match="adrive"):
            resolve(three())

    asyncio.run(inside())


def test_a_synchronous_tool_does_not_hold_up_an_event_loop() -> None:
    where = []

    @tool
    def blocks() -> str:
        where.append(threading.current_thread())
        return "done"

    answer = asyncio.run(make_call_async({"blocks": blocks}, call("blocks")))
    assert answer == Completed("done")
    assert where[0] is not threading.current_thread()
    assert where[0].daemon, "nobody waits for it when the process ends"


def test_nobody_waits_for_a_tool_that_takes_too_long() -> None:
    never = threading.Event()

    @tool(timeout_s=0.02)
    def blocks() -> None:
        never.wait()

    @tool(timeout_s=0.02)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @tool(timeout_s=30)
    def raises() -> None:
        raise TimeoutError("its own")

    for each in (blocks, hangs):
        for answer in (made(each), asyncio.run(make_call_async({each.name: each}, call(each.name)))):
            assert answer == TimedOut("no answer within 0.02 s: it is unknown whether it happened")
    assert made(raises) == Failed("TimeoutError: its own")
    assert asyncio.run(make_call_async({"raises": raises}, call("raises"))) == Failed("TimeoutError: its own")
    never.set()
    for wrong in (0, -1, "soon"):
        with pytest.raises(InvalidInput, match="timeout_s"):
            tool(timeout_s=wrong)(lambda: None)  # type: ignore[arg-type]


def test_annotations_that_mean_nothing_are_refused_unless_there_is_a_schema() -> None:
    def strange(x: Nowhere, call: Call) -> str:  # type: ignore[name-defined]  # noqa: F821
        return f"{x} {call.id}"

    with pytest.raises(InvalidInput, match="give schema="):
        tool(strange)
    assert made(tool(schema={"type": "object"})(strange), {"x": 1}) == Completed("1 c1")


def test_what_is_raised_in_a_thread_comes_out_of_it() -> None:
    def raises() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_in_thread(raises).result(timeout=30)


def test_who_acts_acts_in_threads_too() -> None:
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        with acme.acting(user="ada"):
            assert run_in_thread(lambda: acme.acting_now().user).result(timeout=30) == "ada"


# -------------------------------------------------------------------------------------------------------------- replies


def test_a_reply_is_kept_as_it_was_said() -> None:
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
    said = normalize_reply(reply, 7)
    assert decode_reply(said.to_json()) == said
    assert [(each.id, each.name, each.input) for each in said.requests] == [
        ("x", "look", {"a": 1}),
        ("call-7-2", "find", {"b": 2}),
    ]
    assert said.content[0] == thought
    assert (said.input_tokens, said.output_tokens, said.state, said.stop, said.pause_s) == (3, 4, {"n": 1}, "so", 2)


def test_no_state_and_the_state_none_are_two_things() -> None:
    silent, none = normalize_reply(Reply("x"), 1), normalize_reply(Reply("x", state=None), 1)
    assert decode_reply(silent.to_json()) == silent
    assert decode_reply(none.to_json()) == none
    assert silent.state is not None
    assert none.state is None


def test_the_words_of_outcomes() -> None:
    from holdfast import ToolOutcome

    assert text_of(ToolOutcome(id="a", result="as it is", status="finished")) == "as it is"
    assert text_of(ToolOutcome(id="a", result={"ä": None}, status="finished")) == '{"ä": null}'
    assert text_of(ToolOutcome(id="a", status="cancelled")) == "this call was cancelled"
    assert block_of(ToolOutcome(id="a", error="no", status="failed")) == {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": "no",
        "is_error": True,
    }


def test_any_text_a_model_can_say_is_kept() -> None:
    words = "nul \0, lone \ud800, 🙂"

    @tool(safety="idempotent")
    def echo(said: str) -> str:
        return said

    def model(turn: ModelTurn) -> Reply | str:
        return (
            Reply(words, [ToolRequest("echo", {"said": words})], state={words: words}) if turn.iteration == 1 else words
        )

    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create(agent="a").id)
        ending = Loop(model, tools=[echo]).drive(acme, run.id)
        assert (ending.status, ending.text) == ("completed", words)
        there = acme.messages.list(run.session_id)
        assert there[0].content[1]["input"] == {"said": words}
        assert there[1].content[0]["content"] == words
        assert acme.steps.get(run.id, 1).state == {words: words}
