"""The model's input at each turn, and the events of a listener."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import CompactionPolicy, Holdfast, NewAgent, NewBlock, Usage
from holdfast.loop import (
    Event,
    Loop,
    ModelTurn,
    Reply,
    ToolRequest,
    tool,
)
from holdfast.types import Block, Message
from tests.loop.worlds import World


def test_the_model_gets_the_agent_its_blocks_and_the_messages_that_fit(small_world: World) -> None:
    small_world.acme.agents.create(NewAgent("tester", display_name="Ada", system="Be brief."))
    small_world.acme.blocks.save("tester", [NewBlock(label="persona", value="I am Ada.")])
    turns: list[ModelTurn] = []

    def model(turn: ModelTurn) -> Reply:
        turns.append(turn)
        block = small_world.acme.blocks.set("tester", "persona", f"I am Ada {turn.iteration}.")
        assert isinstance(block, Block)
        return Reply("On.", continue_run=turn.iteration < 2)

    run = small_world.start()
    for number in range(30):
        small_world.acme.messages.append(run.session_id, role="user", content=f"{number} " + "x" * 40, token_count=50)
    small_world.run(Loop(model, context_tokens=500), run.id)
    first, second = turns
    assert first.system == "Be brief.\n\n<persona>\nI am Ada.\n</persona>"
    assert second.system == "Be brief.\n\n<persona>\nI am Ada 1.\n</persona>", "blocks are read again for every turn"
    assert len(first.messages) == 10
    assert first.context.left_out == 21
    assert first.messages[-1]["content"][0]["text"].startswith("29 ")


def test_token_counts_come_from_the_model_or_from_the_counter(tmp_path: Path) -> None:
    @tool(safety="idempotent")
    def look() -> str:
        return "ö" * 10

    def model(turn: ModelTurn) -> Reply | str:
        used = Usage(output_tokens=77)
        return Reply("I look.", [ToolRequest("look")], used) if turn.iteration == 1 else "Seen."

    for counter, counts in ((None, [6, 77, 19, 6]), (len, [1, 77, 1, 1])):
        with Holdfast(str(tmp_path / f"{counter}.db"), count_tokens=counter) as hf:
            acme = hf.tenant("acme")
            session = acme.sessions.create(agent="a")
            acme.messages.append(session.id, role="user", content="Look.")
            Loop(model, tools=[look]).drive(acme, acme.runs.start(session.id).id)
            assert [message.token_count for message in acme.messages.list(session.id)] == counts
            assert acme.count_tokens("four") == (5 if counter is None else 4)


def test_a_context_that_cannot_fit_fails_the_run(small_world: World) -> None:
    run = small_world.start()
    small_world.acme.messages.append(run.session_id, role="system", content="long", token_count=1_000)
    ending = small_world.run(Loop(lambda turn: "?", context_tokens=100), run.id)
    assert (ending.status, str(ending.error)[:13]) == ("failed", "LimitExceeded")


def test_a_due_session_is_compacted(world: World) -> None:
    run = world.start()
    policy = CompactionPolicy(trigger=0.5, window_tokens=200, target_tokens=60, preserve_last=1, protected_tokens=10)
    world.acme.compactions.attach(policy, session_id=run.session_id)
    message_counts: list[int] = []

    def summarize(messages: list[Message]) -> str:
        message_counts.append(len(messages))
        return "They talked."

    events: list[Event] = []
    loop = Loop(
        lambda turn: Reply("word " * 20, continue_run=turn.iteration < 6),
        summarize=summarize,  # type: ignore[arg-type]
        on_event=events.append,
    )
    assert world.run(loop, run.id).status == "completed"
    assert message_counts
    assert world.acme.compactions.history(run.session_id)
    assert "compacted" in {event.kind for event in events}


def test_a_failing_summarizer_does_not_stop_the_run(small_world: World) -> None:
    run = small_world.start()
    policy = CompactionPolicy(trigger=0.5, window_tokens=200, target_tokens=60, preserve_last=1, protected_tokens=10)
    small_world.acme.compactions.attach(policy, session_id=run.session_id)
    loop = Loop(lambda turn: Reply("word " * 20, continue_run=turn.iteration < 6), summarize=lambda messages: "")
    assert small_world.run(loop, run.id).status == "completed"
    assert not small_world.acme.compactions.history(run.session_id)


def test_events_are_emitted_in_order_and_tokens_as_they_arrive(small_world: World) -> None:
    events: list[tuple[str, int]] = []
    tokens: list[str] = []

    def listen(event: Event) -> None:
        events.append((event.kind, event.iteration))
        if event.kind == "token":
            tokens.append(event.data)

    @tool(safety="idempotent")
    def look() -> str:
        return "x"

    def model(turn: ModelTurn) -> Reply | str:
        turn.say("a")
        turn.say("b")
        return Reply("", [ToolRequest("look")]) if turn.iteration == 1 else "ab"

    small_world.run(Loop(model, tools=[look], on_event=listen), small_world.start().id)
    assert tokens == ["a", "b"] * 2
    assert events == [
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


def test_an_error_of_a_listener_does_not_affect_the_run(small_world: World, caplog: pytest.LogCaptureFixture) -> None:
    def listen(event: Event) -> None:
        raise RuntimeError("deaf")

    def model(turn: ModelTurn) -> str:
        turn.say("x")
        return "x"

    assert small_world.run(Loop(model, on_event=listen), small_world.start().id).status == "completed"
    assert "on_event raised for step" in caplog.text
    assert "on_event raised for token" in caplog.text
