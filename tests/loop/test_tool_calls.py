"""How tools are called: in parallel, exclusively, later, with a timeout."""

from __future__ import annotations

import threading

from holdfast.loop import (
    Call,
    Later,
    Loop,
    ModelTurn,
    Reply,
    Snooze,
    ToolRequest,
    tool,
)
from tests.loop.worlds import World, ask, scripted


def test_parallel_tools_run_at_the_same_time(small_world: World) -> None:
    meeting = threading.Barrier(3, timeout=60)

    @tool
    def meet(who: str) -> str:
        meeting.wait()  # returns only when all three calls have arrived
        return who

    calls = [ask("meet", who, who=who) for who in "abc"]
    run = small_world.start()
    small_world.run(Loop(scripted(small_world, [Reply("", calls), "."]), tools=[meet]), run.id)
    assert small_world.words(run)[2] == "user: =a =b =c", "results are in the order of the calls"


def test_an_exclusive_tool_runs_alone(small_world: World) -> None:
    under_way: list[str] = []
    batches: list[tuple[str, ...]] = []

    def enter(name: str) -> None:
        under_way.append(name)
        batches.append(tuple(under_way))
        under_way.remove(name)

    @tool(parallel=False)
    def alone(n: int) -> None:
        enter(f"alone {n}")

    @tool
    def free() -> None:
        enter("free")

    calls = [ask("free", "1"), ask("alone", "2", n=1), ask("alone", "3", n=2), ask("free", "4")]
    small_world.run(Loop(scripted(small_world, [Reply("", calls), "."]), tools=[alone, free]), small_world.start().id)
    assert batches == [("free",), ("alone 1",), ("alone 2",), ("free",)]


def test_synchronous_and_asynchronous_functions_can_be_mixed(small_world: World) -> None:
    @tool
    async def slow(n: int) -> int:
        return n + 1

    @tool
    def quick(n: int) -> int:
        return n - 1

    async def model(turn: ModelTurn) -> Reply | str:
        return Reply("", [ask("slow", "a", n=1), ask("quick", "b", n=1)]) if turn.iteration == 1 else "Both."

    run = small_world.start()
    assert small_world.run(Loop(model, tools=[slow, quick]), run.id).text == "Both."
    assert small_world.words(run)[2] == "user: =2 =0"


def test_a_tool_gets_its_call(small_world: World) -> None:
    calls: list[Call] = []

    @tool(safety="idempotent")
    def look(call: Call, x: int = 3) -> int:
        calls.append(call)
        return x

    run = small_world.start()
    small_world.run(Loop(scripted(small_world, [Reply("", [ToolRequest("look")]), "."]), tools=[look]), run.id)
    (call,) = calls
    assert (call.id, call.name, call.input, call.attempt) == ("call-1-1", "look", {}, 1)
    assert call.key == f"{run.id}/call-1-1"
    assert call.run.id == run.id
    assert call.tenant.name == "acme"
    assert call.is_lost() is False


def test_a_call_that_times_out_has_an_unknown_outcome(small_world: World) -> None:
    never = threading.Event()

    @tool(timeout_s=0.02)
    def blocks() -> None:
        never.wait()

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ask("blocks", "a")]), "Hm."]), tools=[blocks])
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.acme.tool_calls.get(run.id, "a").status == "unknown"
    assert small_world.words(run)[2] == "user: !no answer within 0.02 s: it is unknown whether the call happened"
    never.set()


def test_a_tool_can_pause_the_run(small_world: World) -> None:
    @tool(safety="idempotent")
    def nap() -> Later:
        return Later("slept", 30)

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ToolRequest("nap")]), "Awake."]), tools=[nap])
    ending = small_world.run(loop, run.id)
    assert (ending.status, ending.iteration) == ("paused", 1)
    assert ending.pause_until == small_world.acme.runs.get(run.id).pause_until
    assert small_world.run(loop, run.id).status == "paused", "the pause has not ended"
    small_world.clock.advance(30)
    assert small_world.run(loop, run.id).text == "Awake."


def test_a_snoozed_call_is_made_later_and_the_other_calls_are_not_repeated(world: World) -> None:
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
    assert world.acme.tool_calls.get(run.id, "a").attempts == 0, "a snooze uses up no attempt"
    assert world.acme.tool_calls.get(run.id, "b").status == "finished"
    assert world.words(run) == ["user: Please."], "an incomplete iteration adds no message"
    world.acme.runs.resume(run.id)
    assert world.run(loop, run.id).status == "paused", "a run that is woken too early pauses again"
    world.clock.advance(20)
    assert world.run(loop, run.id).text == "Good."
    assert sorted(tries) == ["later", "later", "once"]
    assert world.words(run)[2] == "user: =now =once"
