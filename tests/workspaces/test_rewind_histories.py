"""Random rewinds and redos of runs, compared with a plain model.

The model is a tree of steps. A run is at one of them. A step adds a child, a rewind moves up, and a redo returns to the origin of
the last rewind to this step. The visible conversation follows the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, NewMessage, NewToolCall, TenantHandle, ToolOutcome, Usage
from holdfast.errors import Conflict, NotFound
from tests.errors import raises

TURNS = 25


@dataclass(frozen=True)
class Node:
    """The state when a step was committed."""

    above: Node | None
    states: tuple[int, ...] = ()
    said: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return len(self.states)

    def up_to(self, number: int) -> Node:
        node = self
        while node.number > number:
            assert node.above is not None
            node = node.above
        return node


@dataclass
class Jump:
    """A rewind, with the state needed to undo it."""

    id: str
    came_from: Node
    led_to: Node
    shown: tuple[str, ...] | None
    """The messages shown before; ``None`` if the rewind hid none."""
    calls: tuple[str, ...]
    is_undone: bool = False


@dataclass
class Model:
    """Where a run is, what its session shows, and how it came there."""

    at: Node = field(default_factory=lambda: Node(None))
    shown: tuple[str, ...] = ("go",)
    open_calls: tuple[str, ...] = ()
    jumps: list[Jump] = field(default_factory=list)
    begin: tuple[str, ...] | None = None
    """The messages shown before the first step; known once there is a step."""

    def messages_at(self, node: Node) -> tuple[str, ...]:
        if node.number:
            return node.said
        return self.shown if self.begin is None else self.begin

    def to_redo(self) -> Jump | None:
        result = [jump for jump in self.jumps if not jump.is_undone and jump.led_to is self.at]
        return result[-1] if result else None


class Pair:
    """A run in a database, and its model."""

    def __init__(self, acme: TenantHandle, seed: int) -> None:
        self.acme, self.random, self.model = acme, Random(seed), Model()
        self.session = acme.sessions.create().id
        acme.messages.append(self.session, role="user", content="go")
        self.run = acme.runs.start(self.session, max_attempts=1_000).id
        self.count = 0

    def turn(self) -> None:
        """One thing, done to both."""
        what = self.random.choice(
            (
                self.step,
                self.step,
                self.step,
                self.say,
                self.intend,
                self.rewind,
                self.rewind,
                self.redo,
                self.redo,
                self.redo,
                self.redo,
            )
        )
        what()
        self.compare(what.__name__)

    def name(self) -> str:
        self.count += 1
        return f"{self.count}"

    def held(self) -> int:
        """The epoch of a claim."""
        if self.acme.runs.get(self.run).status == "waiting":
            self.acme.runs.resume(self.run)
        claimed = self.acme.leases.claim("me", run_id=self.run)
        assert claimed is not None
        return claimed.epoch

    def step(self) -> None:
        epoch, name, model = self.held(), self.name(), self.model
        self.acme.tool_calls.intend(self.run, epoch=epoch, calls=[NewToolCall(id=f"call {name}", tool_name="t")])
        calls = (*model.open_calls, f"call {name}")
        self.acme.runs.step(
            self.run,
            epoch=epoch,
            iteration=model.at.number + 1,
            state=self.count,
            messages=[NewMessage(role="assistant", content=name)],
            tool_calls=[ToolOutcome(id=call, result=name) for call in calls],
            usage=Usage(input_tokens=2, output_tokens=1),
        )
        self.acme.leases.release(self.run, epoch=epoch)
        if model.at.number == 0:
            model.begin = model.shown
        model.shown = (*model.shown, name)
        above = model.at
        model.at = Node(above, (*above.states, self.count), model.shown, (*above.calls, *calls))
        model.open_calls = ()

    def say(self) -> None:
        name = self.name()
        self.acme.messages.append(self.session, role="user", content=name)
        self.model.shown = (*self.model.shown, name)

    def intend(self) -> None:
        """A call that the next step takes in, or a rewind takes back."""
        epoch, name = self.held(), f"call {self.name()}"
        self.acme.tool_calls.intend(self.run, epoch=epoch, calls=[NewToolCall(id=name, tool_name="t")])
        self.acme.leases.release(self.run, epoch=epoch)
        self.model.open_calls = (*self.model.open_calls, name)

    def rewind(self) -> None:
        model = self.model
        number = self.random.randint(0, model.at.number)
        node = model.at.up_to(number)
        result = self.acme.workspaces.rewind(self.run, number, None).rewind
        assert (result.from_step, result.to_step) == (model.at.number, number)
        message = model.messages_at(node)
        if number == 0 and model.at.number == 0:
            message = model.shown  # no step has said anything, so there is nothing to go back to
        before = None if message == model.shown else model.shown
        model.jumps.append(Jump(result.id, model.at, node, before, model.open_calls))
        model.at, model.shown, model.open_calls = node, message, ()

    def redo(self) -> None:
        model = self.model
        jump = model.to_redo()
        by_id = self.random.random() < 0.4 and model.jumps
        if by_id:
            jump = self.random.choice(model.jumps)
        is_there = jump is not None and jump.led_to is model.at and not jump.is_undone and not model.open_calls
        if jump is not None and jump.is_undone:
            return  # a repeated redo returns the first result: see the contract
        if not is_there:
            with pytest.raises(Conflict):
                self.acme.workspaces.redo(self.run, id=jump.id if by_id and jump else None)
            return
        assert jump is not None
        self.acme.workspaces.redo(self.run, id=jump.id if by_id else None)
        jump.is_undone = True
        model.at, model.open_calls = jump.came_from, jump.calls
        if jump.shown is not None:
            model.shown = jump.shown

    def compare(self, what: str) -> None:
        """Compare the run with the model."""
        acme, model = self.acme, self.model
        run = acme.runs.get(self.run)
        steps = list(acme.steps.list(self.run))
        calls = acme.tool_calls.list(self.run)
        existing: dict[str, Any] = {
            "iteration": run.iteration,
            "states": tuple(step.state for step in steps),
            "numbers": [step.iteration for step in steps],
            "tokens": (run.input_tokens, run.output_tokens),
            "finished": {call.id for call in calls if call.status == "finished"},
            "open": {call.id for call in calls if call.status == "begun"},
            "said": self.said(),
        }
        number = model.at.number
        expected = {
            "iteration": number,
            "states": model.at.states,
            "numbers": [*range(1, number + 1)],
            "tokens": (2 * number, number),
            "finished": set(model.at.calls),
            "open": set(model.open_calls),
            "said": model.shown,
        }
        assert existing == expected, what
        session = acme.sessions.get(self.session)
        assert session.message_count == len(model.shown)
        loaded = acme.runs.load(self.run)
        assert (loaded.step.state if loaded.step else None) == (model.at.states[-1] if number else None)

    def said(self) -> tuple[str, ...]:
        return tuple(message.content[0]["text"] for message in self.acme.messages.list(self.session))


def play(acme: TenantHandle, seeds: Sequence[int], turns: int) -> int:
    """Play histories; return the number of redos."""
    redone = 0
    for seed in seeds:
        pair = Pair(acme, seed)
        for turn in range(turns):
            try:
                pair.turn()
            except BaseException as error:
                error.add_note(f"seed {seed}, turn {turn}")
                raise
        redone += sum(jump.is_undone for jump in pair.model.jumps)
    return redone


def test_random_histories_agree_with_the_model(url: str) -> None:
    is_sqlite = "://" not in url
    with Holdfast(url) as hf:
        redone = play(hf.tenant("acme"), range(16) if is_sqlite else range(3), TURNS)
    assert redone >= (12 if is_sqlite else 1)


@pytest.mark.soak
def test_many_random_histories_agree_with_the_model(url: str) -> None:
    with Holdfast(url) as hf:
        play(hf.tenant("acme"), range(1_000, 1_300), 80)


def test_the_model_detects_an_extra_message_or_call() -> None:
    with Holdfast(":memory:") as hf:
        pair = Pair(hf.tenant("acme"), 1)
        pair.step()
        pair.compare("step")
        pair.acme.messages.append(pair.session, role="user", content="unheard of")
        with pytest.raises(AssertionError):
            pair.compare("a message")
        pair.model.shown = (*pair.model.shown, "unheard of")
        pair.compare("again")
        epoch = pair.held()
        pair.acme.tool_calls.intend(pair.run, epoch=epoch, calls=[NewToolCall(id="secret", tool_name="t")])
        with pytest.raises(AssertionError):
            pair.compare("a call")


def test_a_run_without_steps_is_rewound_to_its_beginning() -> None:
    with Holdfast(":memory:") as hf:
        pair = Pair(hf.tenant("acme"), 1)
        pair.intend()
        pair.say()
        result = pair.acme.workspaces.rewind(pair.run, 0, None)
        assert (result.rewind.from_step, result.rewind.to_step) == (0, 0)
        assert list(pair.acme.tool_calls.list(pair.run)) == []
        assert pair.said() == ("go", "2"), "the run has no messages to rewind"
        pair.acme.workspaces.redo(pair.run)
        assert [call.id for call in pair.acme.tool_calls.list(pair.run)] == ["call 1"]
        with raises(NotFound, noun="step", key="1"):
            pair.acme.workspaces.rewind(pair.run, 1, None)
