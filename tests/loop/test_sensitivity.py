"""Defects that are planted into the loop, each of which the crash points must notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import ToolOutcome
from holdfast.loop import call_plan
from holdfast.loop.commands import CallTools
from holdfast.loop.core import RunDriver
from holdfast.loop.events import BegunCall
from tests.loop.test_crash_points import crash_everywhere
from tests.loop.worlds import World

Plant = Callable[[pytest.MonkeyPatch], None]


def repeats_what_must_happen_once(patch: pytest.MonkeyPatch) -> None:
    """Every unfinished call is made again."""
    real = call_plan._add_recorded

    def sort(found: Any, request: Any, call: Any, *others: Any) -> None:
        real(found, request, replace(call, safety="idempotent"), *others)

    patch.setattr(call_plan, "_add_recorded", sort)
    patch.setattr(RunDriver, "_new_call", _as_idempotent(RunDriver._new_call))


def _as_idempotent(real: Any) -> Any:
    return lambda self, *args: replace(real(self, *args), safety="idempotent")


def forgets_the_reply(patch: pytest.MonkeyPatch) -> None:
    """The intent of somebody who died is not looked at: the model is asked again."""

    def interrupted(self: RunDriver, calls: Any) -> Any:
        yield from ()

    patch.setattr(RunDriver, "_load_pending", interrupted)


def makes_calls_without_recording_them(patch: pytest.MonkeyPatch) -> None:
    """The ledger is written when the calls are over."""
    patch.setattr(RunDriver, "_record_intents", _intend_late(RunDriver._record_intents))


def _intend_late(real: Any) -> Any:
    def late(self: RunDriver, asked: Any, requests: Any, *, hold: bool = False) -> Any:
        if not hold:
            making = [BegunCall(each.id, each.name, each.input, 1) for each in requests]
            yield CallTools(making)
        return (yield from real(self, asked, requests, hold=hold))

    return late


def loses_the_state(patch: pytest.MonkeyPatch) -> None:
    """Who takes a run up begins with the first state."""
    real = RunDriver.go

    def go(self: RunDriver) -> Any:
        self.state = self.config.first_state
        generator = real(self)
        answer, is_first = None, True
        while True:
            try:
                command = generator.send(answer)
            except StopIteration as done:
                return done.value
            answer = yield command
            if is_first:
                answer, is_first = replace(answer, step=None), False

    patch.setattr(RunDriver, "go", go)


def settles_what_nobody_knows_as_finished(patch: pytest.MonkeyPatch) -> None:
    """A call that never came back counts as if it had."""
    real = call_plan._add_recorded

    def sort(found: Any, request: Any, call: Any, *others: Any) -> None:
        real(found, request, call, *others)
        settled = found.outcomes.get(call.id)
        if settled is not None and settled.status == "unknown":
            found.outcomes[call.id] = ToolOutcome(id=call.id, result={"paid": 7}, status="finished")

    patch.setattr(call_plan, "_add_recorded", sort)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (repeats_what_must_happen_once, "tools"),
        (forgets_the_reply, "tools"),
        (makes_calls_without_recording_them, "tools"),
        (loses_the_state, "tools"),
        (settles_what_nobody_knows_as_finished, "tools"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_planted_defect_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, name: str) -> None:
    plant(monkeypatch)
    world = World(str(tmp_path / "a.db"))
    with pytest.raises((AssertionError, IndexError, KeyError)):
        crash_everywhere(world, name)
    world.close()
