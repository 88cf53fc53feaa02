"""Calls that wait for a person, and decisions at any time."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.loop import (
    Event,
    Loop,
    Reply,
    Snooze,
    ToolRequest,
    tool,
)
from holdfast.loop.commands import RecordIntents
from tests.loop.worlds import Died, World, ask, decide, scripted


def test_calls_wait_for_a_decision_of_a_person(world: World) -> None:
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    calls = [ask("send", "a", to="me"), ask("send", "b", to="boss"), ask("send", "c", to="all")]
    loop = Loop(
        scripted(world, [Reply("May I?", calls), "Thanks."]),
        tools=[send],
        hold=lambda request: request.input["to"] != "me",
    )
    run = world.start()
    assert world.run(loop, run.id).status == "waiting"
    assert sent == [], "the other calls are not begun either, so that none gets an unknown outcome"
    assert [
        (pending.call.id, pending.action)
        for pending in world.acme.tool_calls.pending(run.id)
        if pending.action == "ask"
    ] == [
        ("b", "ask"),
        ("c", "ask"),
    ]
    world.acme.tool_calls.allow(run.id, "b")
    world.acme.runs.resume(run.id)
    assert world.run(loop, run.id).status == "waiting", "one decision is still missing"
    world.acme.tool_calls.cancel(run.id, "c", reason="too many")
    world.acme.runs.resume(run.id)
    assert world.run(loop, run.id).status == "completed"
    assert sorted(sent) == ["boss", "me"]
    assert world.words(run)[2] == "user: =sent to me =sent to boss !this call was cancelled: too many"


def test_a_decision_before_the_run_waits_is_not_lost(small_world: World) -> None:
    @tool(hold=True)
    def launch() -> str:
        return "launched"

    run = small_world.start()

    def decide_at_once(event: Event) -> None:
        # This event comes after the intent and after the pause; nothing resumes the run after it.
        if event.kind == "waiting":
            small_world.acme.tool_calls.allow(run.id, "a")

    script = [Reply("", [ask("launch", "a")]), "Off."]
    loop = Loop(scripted(small_world, script), tools=[launch], on_event=decide_at_once)
    assert small_world.run(loop, run.id).status == "released"
    assert small_world.acme.runs.get(run.id).status == "pending"
    assert small_world.run(loop, run.id).text == "Off."


def test_a_decision_between_planning_and_making_a_call_takes_effect(
    small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person ends a call that this process has just planned to make: it is not made, and the run continues."""
    calls: list[str] = []

    @tool(safety="idempotent")
    def work(n: int) -> int:
        calls.append(str(n))
        return n

    run = small_world.start()
    loop = Loop(
        scripted(small_world, [Reply("", [ask("work", "a", n=1), ask("work", "b", n=2)]), "Fine."]), tools=[work]
    )
    small_world.fuse = 7  # the process dies right after the intent
    with pytest.raises(Died):
        small_world.drive(loop, run.id)
    small_world.clock.advance(100)
    real = RecordIntents.on

    def intend(self: RecordIntents, acme: Any) -> Any:
        if self.calls[0].id == "a":
            small_world.acme.tool_calls.cancel(run.id, "a", reason="no need")
        return real(self, acme)

    monkeypatch.setattr(RecordIntents, "on", intend)
    small_world.run(loop, run.id)
    small_world.clock.advance(100)
    assert small_world.run(loop, run.id).status == "completed"
    assert calls == ["2"]
    assert small_world.words(run)[2] == "user: !this call was cancelled: no need =2"


def test_a_snooze_of_a_cancelled_call_is_ignored(small_world: World) -> None:
    run = small_world.start()

    @tool(safety="idempotent")
    def sleepy() -> str:
        small_world.acme.tool_calls.cancel(run.id, "a", reason="too slow")
        raise Snooze(100)

    loop = Loop(scripted(small_world, [Reply("", [ask("sleepy", "a")]), "Fine."]), tools=[sleepy])
    assert small_world.run(loop, run.id).status == "completed"
    assert small_world.words(run)[2] == "user: !this call was cancelled: too slow"


def test_a_discarded_call_is_in_no_message(small_world: World) -> None:
    @tool(hold=True)
    def shout() -> str:
        raise AssertionError("this call was not allowed")

    run, loop = (
        small_world.start(),
        Loop(scripted(small_world, [Reply("Hm.", [ToolRequest("shout")]), "."]), tools=[shout]),
    )
    assert small_world.run(loop, run.id).status == "waiting"
    decide(small_world.acme, small_world.acme.runs.get(run.id))
    small_world.run(loop, run.id)
    assert small_world.words(run) == ["user: Please.", "assistant: Hm.", "assistant: ."]
