"""What a loop does with replies, results, limits and errors: the same in a thread and in an event loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Block, CompactionPolicy, Holdfast, Message, NewBlock, Usage, column
from holdfast.errors import InvalidInput, NotFound, Unavailable
from holdfast.loop import (
    Call,
    ChildRun,
    Event,
    Later,
    Loop,
    Progress,
    Reply,
    Snooze,
    ToolError,
    ToolRequest,
    Turn,
    subagent,
    tool,
)
from holdfast.loop.commands import Intend
from tests.loop.worlds import Died, World, ask, decide, scripted

# --------------------------------------------------------------------------------------------------------- how it ends


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

    def model(turn: Turn) -> Reply:
        seen.append(turn.state)
        return Reply("More.", state={"n": turn.state["n"] + 1}, go_on=turn.state["n"] < 2)

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
    seen: list[Progress] = []

    def stop(progress: Progress) -> str | None:
        seen.append(progress)
        return "enough" if progress.iteration == 2 else None

    run = small_world.start()
    used = Usage(input_tokens=3, output_tokens=2)
    ending = small_world.run(Loop(lambda turn: Reply("On.", usage=used, go_on=True), stop=stop), run.id)
    assert (ending.stop_reason, ending.iteration) == ("enough", 2)
    assert [(each.usage.input_tokens, each.usage.output_tokens) for each in seen] == [(3, 2), (6, 4)]
    there = small_world.acme.runs.get(run.id)
    assert (there.status, there.stop_reason, there.iteration) == ("completed", "enough", 2)


def test_iterations_are_limited(small_world: World) -> None:
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("On.", go_on=True), max_iterations=3), run.id)
    assert (ending.status, ending.stop_reason, ending.iteration) == ("completed", "max_iterations", 3)


def test_a_run_that_is_over_a_limit_already_asks_nobody(small_world: World) -> None:
    run = small_world.start()
    small_world.run(Loop(lambda turn: Reply("On.", go_on=True)), run.id, go_on=lambda: False)
    asked: list[Turn] = []
    ending = small_world.run(Loop(asked.append, max_iterations=1), run.id)
    assert (ending.status, ending.stop_reason, asked) == ("completed", "max_iterations", [])


def test_a_budget_of_tokens_ends_the_run(small_world: World) -> None:
    used = Usage(input_tokens=60, output_tokens=20)
    run = small_world.start()
    ending = small_world.run(Loop(lambda turn: Reply("On.", usage=used, go_on=True), budget_tokens=200), run.id)
    assert (ending.stop_reason, ending.iteration) == ("budget", 3)
    there = small_world.acme.runs.get(run.id)
    assert (there.input_tokens, there.output_tokens) == (180, 60)


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_model_that_raises_fails_the_run_which_can_be_resumed(small_world: World) -> None:
    tries: list[int] = []

    def model(turn: Turn) -> str:
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
    def model(turn: Turn) -> str:
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

    def model(turn: Turn) -> str:
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
    def stop(progress: Progress) -> str | None:
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


# --------------------------------------------------------------------------------------------------------------- tools


def test_tools_that_may_be_called_at_once_are(small_world: World) -> None:
    meeting = threading.Barrier(3, timeout=30)

    @tool
    def meet(who: str) -> str:
        meeting.wait()  # nobody gets past it alone
        return who

    calls = [ask("meet", who, who=who) for who in "abc"]
    run = small_world.start()
    small_world.run(Loop(scripted(small_world, [Reply("", calls), "."]), tools=[meet]), run.id)
    assert small_world.words(run)[2] == "user: =a =b =c", "results stand in the order of the calls"


def test_a_tool_that_must_be_alone_is(small_world: World) -> None:
    under_way: list[str] = []
    seen: list[tuple[str, ...]] = []

    def enter(name: str) -> None:
        under_way.append(name)
        seen.append(tuple(under_way))
        under_way.remove(name)

    @tool(parallel=False)
    def alone(n: int) -> None:
        enter(f"alone {n}")

    @tool
    def free() -> None:
        enter("free")

    calls = [ask("free", "1"), ask("alone", "2", n=1), ask("alone", "3", n=2), ask("free", "4")]
    small_world.run(Loop(scripted(small_world, [Reply("", calls), "."]), tools=[alone, free]), small_world.start().id)
    assert seen == [("free",), ("alone 1",), ("alone 2",), ("free",)]


def test_synchronous_and_asynchronous_functions_can_be_mixed(small_world: World) -> None:
    @tool
    async def slow(n: int) -> int:
        return n + 1

    @tool
    def quick(n: int) -> int:
        return n - 1

    async def model(turn: Turn) -> Reply | str:
        return Reply("", [ask("slow", "a", n=1), ask("quick", "b", n=1)]) if turn.iteration == 1 else "Both."

    run = small_world.start()
    assert small_world.run(Loop(model, tools=[slow, quick]), run.id).text == "Both."
    assert small_world.words(run)[2] == "user: =2 =0"


def test_a_tool_is_told_about_its_call(small_world: World) -> None:
    seen: list[Call] = []

    @tool(safety="idempotent")
    def look(call: Call, x: int = 3) -> int:
        seen.append(call)
        return x

    run = small_world.start()
    small_world.run(Loop(scripted(small_world, [Reply("", [ToolRequest("look")]), "."]), tools=[look]), run.id)
    (call,) = seen
    assert (call.id, call.name, call.input, call.attempt) == ("call-1-1", "look", {}, 1)
    assert call.key == f"{run.id}/call-1-1"
    assert call.run.id == run.id
    assert call.tenant.name == "acme"
    assert call.is_lost() is False


def test_a_call_that_takes_too_long_is_of_unknown_outcome(small_world: World) -> None:
    never = threading.Event()

    @tool(timeout_s=0.02)
    def blocks() -> None:
        never.wait()

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ask("blocks", "a")]), "Hm."]), tools=[blocks])
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.acme.tool_calls.get(run.id, "a").status == "unknown"
    assert small_world.words(run)[2] == "user: !no answer within 0.02 s: it is unknown whether it happened"
    never.set()


def test_a_tool_can_have_the_run_sleep(small_world: World) -> None:
    @tool(safety="idempotent")
    def nap() -> Later:
        return Later("slept", 30)

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ToolRequest("nap")]), "Awake."]), tools=[nap])
    ending = small_world.run(loop, run.id)
    assert (ending.status, ending.iteration) == ("paused", 1)
    assert ending.pause_until == small_world.acme.runs.get(run.id).pause_until
    assert small_world.run(loop, run.id).status == "paused", "it is too early"
    small_world.clock.advance(30)
    assert small_world.run(loop, run.id).text == "Awake."


def test_a_snoozed_call_is_made_later_and_its_neighbours_are_not_made_again(world: World) -> None:
    tries: list[str] = []

    @tool
    def later() -> str:
        tries.append("later")
        if tries.count("later") < 2:
            raise Snooze(20)
        return "now"

    @tool
    def once() -> str:
        tries.append("once")
        return "once"

    run = world.start()
    loop = Loop(scripted(world, [Reply("", [ask("later", "a"), ask("once", "b")]), "Good."]), tools=[later, once])
    assert world.run(loop, run.id).status == "paused"
    assert world.acme.tool_calls.get(run.id, "a").attempts == 0, "it uses up no attempt"
    assert world.acme.tool_calls.get(run.id, "b").status == "finished"
    assert world.words(run) == ["user: Please."], "half an answer is not shown"
    world.acme.runs.resume(run.id)
    assert world.run(loop, run.id).status == "paused", "woken too early, it sleeps on"
    world.clock.advance(20)
    assert world.run(loop, run.id).text == "Good."
    assert sorted(tries) == ["later", "later", "once"]
    assert world.words(run)[2] == "user: =now =once"


# -------------------------------------------------------------------------------------------------------------- people


def test_calls_wait_until_a_person_has_decided(world: World) -> None:
    made: list[str] = []

    @tool
    def send(to: str) -> str:
        made.append(to)
        return f"sent to {to}"

    calls = [ask("send", "a", to="me"), ask("send", "b", to="boss"), ask("send", "c", to="all")]
    loop = Loop(
        scripted(world, [Reply("May I?", calls), "Thanks."]),
        tools=[send],
        hold=lambda request: request.input["to"] != "me",
    )
    run = world.start()
    assert world.run(loop, run.id).status == "waiting"
    assert made == [], "what need not wait is not begun either, so that it cannot get lost"
    assert [(each.call.id, each.action) for each in world.acme.tool_calls.pending(run.id) if each.action == "ask"] == [
        ("b", "ask"),
        ("c", "ask"),
    ]
    world.acme.tool_calls.allow(run.id, "b")
    world.acme.runs.resume(run.id)
    assert world.run(loop, run.id).status == "waiting", "one is still to be decided"
    world.acme.tool_calls.cancel(run.id, "c", reason="too many")
    world.acme.runs.resume(run.id)
    assert world.run(loop, run.id).status == "completed"
    assert sorted(made) == ["boss", "me"]
    assert world.words(run)[2] == "user: =sent to me =sent to boss !this call was cancelled: too many"


def test_a_decision_that_comes_before_the_run_waits_is_not_lost(small_world: World) -> None:
    @tool(hold=True)
    def launch() -> str:
        return "launched"

    run = small_world.start()

    def decide_at_once(event: Event) -> None:
        # Told after the intent and after the pause; what matters is that nobody resumes the run after it waits.
        if event.kind == "waiting":
            small_world.acme.tool_calls.allow(run.id, "a")

    script = [Reply("", [ask("launch", "a")]), "Off."]
    loop = Loop(scripted(small_world, script), tools=[launch], on_event=decide_at_once)
    assert small_world.run(loop, run.id).status == "released"
    assert small_world.acme.runs.get(run.id).status == "pending"
    assert small_world.run(loop, run.id).text == "Off."


def test_a_decision_between_loading_and_making_is_heeded(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person ends a call that this process has just seen as one to be made: it is not made, and the run goes on."""
    made: list[str] = []

    @tool(safety="idempotent")
    def work(n: int) -> int:
        made.append(str(n))
        return n

    run = small_world.start()
    loop = Loop(
        scripted(small_world, [Reply("", [ask("work", "a", n=1), ask("work", "b", n=2)]), "Fine."]), tools=[work]
    )
    small_world.fuse = 6  # the intent is there, and the process dies
    with pytest.raises(Died):
        small_world.drive(loop, run.id)
    small_world.clock.advance(100)
    real = Intend.on

    def intend(self: Intend, acme: Any) -> Any:
        if self.calls[0].id == "a":
            small_world.acme.tool_calls.cancel(run.id, "a", reason="no need")
        return real(self, acme)

    monkeypatch.setattr(Intend, "on", intend)
    small_world.run(loop, run.id)
    small_world.clock.advance(100)
    assert small_world.run(loop, run.id).status == "completed"
    assert made == ["2"]
    assert small_world.words(run)[2] == "user: !this call was cancelled: no need =2"


def test_a_snooze_of_a_call_that_was_cancelled_meanwhile_is_let_go(small_world: World) -> None:
    run = small_world.start()

    @tool(safety="idempotent")
    def sleepy() -> str:
        small_world.acme.tool_calls.cancel(run.id, "a", reason="too slow")
        raise Snooze(100)

    loop = Loop(scripted(small_world, [Reply("", [ask("sleepy", "a")]), "Fine."]), tools=[sleepy])
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.words(run)[2] == "user: !this call was cancelled: too slow"


def test_a_discarded_call_is_not_spoken_of(small_world: World) -> None:
    @tool(hold=True)
    def shout() -> str:
        raise AssertionError("nobody has allowed this")

    run, loop = (
        small_world.start(),
        Loop(scripted(small_world, [Reply("Hm.", [ToolRequest("shout")]), "."]), tools=[shout]),
    )
    assert small_world.run(loop, run.id).status == "waiting"
    decide(small_world.acme, small_world.acme.runs.get(run.id))
    small_world.run(loop, run.id)
    assert small_world.words(run) == ["user: Please.", "assistant: Hm.", "assistant: ."]


# ---------------------------------------------------------------------------------------------------------- runs below


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
    def refuses(turn: Turn) -> str:
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

    def model(turn: Turn) -> Reply | str:
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


# ------------------------------------------------------------------------------------------------- what the model gets


def test_the_model_gets_the_agent_its_blocks_and_what_fits(small_world: World) -> None:
    small_world.acme.agents.create("Ada", id="tester", system="Be brief.")
    small_world.acme.blocks.save("tester", [NewBlock(label="persona", value="I am Ada.")])
    turns: list[Turn] = []

    def model(turn: Turn) -> Reply:
        turns.append(turn)
        block = small_world.acme.blocks.set("tester", "persona", f"I am Ada {turn.iteration}.")
        assert isinstance(block, Block)
        return Reply("On.", go_on=turn.iteration < 2)

    run = small_world.start()
    for number in range(30):
        small_world.acme.messages.append(run.session_id, role="user", content=f"{number} " + "x" * 40, token_count=50)
    small_world.run(Loop(model, context_tokens=500), run.id)
    first, second = turns
    assert first.system == "Be brief.\n\n<persona>\nI am Ada.\n</persona>"
    assert second.system == "Be brief.\n\n<persona>\nI am Ada 1.\n</persona>", "blocks are read anew for every turn"
    assert len(first.messages) == 10
    assert first.context.left_out == 21
    assert first.messages[-1]["content"][0]["text"].startswith("29 ")


def test_messages_have_the_tokens_of_the_model_or_of_the_counter(tmp_path: Path) -> None:
    @tool(safety="idempotent")
    def look() -> str:
        return "ö" * 10

    def model(turn: Turn) -> Reply | str:
        used = Usage(output_tokens=77)
        return Reply("I look.", [ToolRequest("look")], used) if turn.iteration == 1 else "Seen."

    for counter, counts in ((None, [0, 77, 19, 6]), (len, [0, 77, 1, 1])):
        with Holdfast(str(tmp_path / f"{counter}.db"), count_tokens=counter) as hf:
            acme = hf.tenant("acme")
            session = acme.sessions.create(agent="a")
            acme.messages.append(session.id, role="user", content="Look.")
            Loop(model, tools=[look]).drive(acme, acme.runs.start(session.id).id)
            assert [message.token_count for message in acme.messages.list(session.id)] == counts
            assert acme.count_tokens("four") == (5 if counter is None else 4)


def test_what_does_not_fit_at_all_fails_the_run_with_the_reason(small_world: World) -> None:
    run = small_world.start()
    small_world.acme.messages.append(run.session_id, role="system", content="long", token_count=1_000)
    ending = small_world.run(Loop(lambda turn: "?", context_tokens=100), run.id)
    assert (ending.status, str(ending.error)[:13]) == ("failed", "LimitExceeded")


def test_a_session_that_has_become_due_is_compacted(world: World) -> None:
    run = world.start()
    policy = CompactionPolicy(trigger=0.5, window_tokens=200, target_tokens=60, preserve_last=1, protected_tokens=10)
    world.acme.compactions.attach(policy, session_id=run.session_id)
    summed: list[int] = []

    def summarize(messages: list[Message]) -> str:
        summed.append(len(messages))
        return "They talked."

    events: list[Event] = []
    loop = Loop(
        lambda turn: Reply("word " * 20, go_on=turn.iteration < 6),
        summarize=summarize,  # type: ignore[arg-type]
        on_event=events.append,
    )
    assert world.run(loop, run.id).status == "completed"
    assert summed
    assert world.acme.compactions.history(run.session_id)
    assert "compacted" in {event.kind for event in events}


def test_a_summariser_that_fails_does_not_stop_the_run(small_world: World) -> None:
    run = small_world.start()
    policy = CompactionPolicy(trigger=0.5, window_tokens=200, target_tokens=60, preserve_last=1, protected_tokens=10)
    small_world.acme.compactions.attach(policy, session_id=run.session_id)
    loop = Loop(lambda turn: Reply("word " * 20, go_on=turn.iteration < 6), summarize=lambda messages: "")
    assert small_world.run(loop, run.id).status == "completed"
    assert not small_world.acme.compactions.history(run.session_id)


# -------------------------------------------------------------------------------------------------------------- events


def test_events_are_told_in_order_and_tokens_as_they_come(small_world: World) -> None:
    heard: list[tuple[str, int]] = []
    tokens: list[str] = []

    def listen(event: Event) -> None:
        heard.append((event.kind, event.iteration))
        if event.kind == "token":
            tokens.append(event.data)

    @tool(safety="idempotent")
    def look() -> str:
        return "x"

    def model(turn: Turn) -> Reply | str:
        turn.say("a")
        turn.say("b")
        return Reply("", [ToolRequest("look")]) if turn.iteration == 1 else "ab"

    small_world.run(Loop(model, tools=[look], on_event=listen), small_world.start().id)
    assert tokens == ["a", "b"] * 2
    assert heard == [
        ("asking", 1),
        ("token", 1),
        ("token", 1),
        ("reply", 1),
        ("calling", 1),
        ("called", 1),
        ("step", 1),
        ("asking", 2),
        ("token", 2),
        ("token", 2),
        ("reply", 2),
        ("step", 2),
        ("ended", 2),
    ]


def test_who_listens_does_not_decide(small_world: World, caplog: pytest.LogCaptureFixture) -> None:
    def listen(event: Event) -> None:
        raise RuntimeError("deaf")

    def model(turn: Turn) -> str:
        turn.say("x")
        return "x"

    assert small_world.run(Loop(model, on_event=listen), small_world.start().id).status == "completed"
    assert "on_event raised for step" in caplog.text
    assert "on_event raised for token" in caplog.text


# ------------------------------------------------------------------------------------------------------------- refusals


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

    def model(turn: Turn) -> str:
        return "x"

    def stop(progress: Progress) -> str | None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        small_world.run(Loop(model, stop=stop), run.id)
    assert small_world.acme.runs.get(run.id).status == "running", "its lease runs out, and the claim counts"
