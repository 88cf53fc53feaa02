"""Planted defects of the loop, each of which the crash points must detect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import ToolOutcome
from holdfast.loop import call_plan, intents
from holdfast.loop.commands import CallTools
from holdfast.loop.core import RunDriver
from holdfast.loop.events import BegunCall
from tests.loop.test_crash_points import crash_everywhere
from tests.loop.worlds import World

Plant = Callable[[pytest.MonkeyPatch], None]


def repeats_at_most_once_calls(patch: pytest.MonkeyPatch) -> None:
    """Make every unfinished call again."""
    real = call_plan._add_recorded

    def add(plan: Any, request: Any, call: Any, *others: Any) -> None:
        real(plan, request, replace(call, safety="idempotent"), *others)

    patch.setattr(call_plan, "_add_recorded", add)
    patch.setattr(intents, "_new_call", _as_idempotent(intents._new_call))


def _as_idempotent(real: Any) -> Any:
    return lambda *args: replace(real(*args), safety="idempotent")


def forgets_the_reply(patch: pytest.MonkeyPatch) -> None:
    """Ignore the intent of a dead process: ask the model again."""

    def interrupted(run_id: str, iteration: int, calls: Any) -> Any:
        yield from ()

    patch.setattr(intents, "load_pending", interrupted)


def makes_calls_without_recording_them(patch: pytest.MonkeyPatch) -> None:
    """Write the ledger only after the calls."""
    patch.setattr(intents, "record_intents", _intend_late(intents.record_intents))


def _intend_late(real: Any) -> Any:
    def late(config: Any, run: Any, iteration: int, pending: Any, requests: Any, *, hold: bool = False) -> Any:
        if not hold:
            yield CallTools([BegunCall(request.id, request.name, request.input, 1) for request in requests])
        return (yield from real(config, run, iteration, pending, requests, hold=hold))

    return late


def loses_the_state(patch: pytest.MonkeyPatch) -> None:
    """Resume every run with the first state."""
    real = RunDriver.iterate

    def iterate(self: RunDriver) -> Any:
        self.state = self.config.first_state
        generator = real(self)
        answer, is_first = None, True
        while True:
            try:
                command = generator.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield command
            if is_first:
                answer, is_first = replace(answer, step=None), False

    patch.setattr(RunDriver, "iterate", iterate)


def treats_unknown_outcomes_as_finished(patch: pytest.MonkeyPatch) -> None:
    """Treat a call of unknown outcome as finished."""
    real = call_plan._add_recorded

    def add(plan: Any, request: Any, call: Any, *others: Any) -> None:
        real(plan, request, call, *others)
        outcome = plan.outcomes.get(call.id)
        if outcome is not None and outcome.status == "unknown":
            plan.outcomes[call.id] = ToolOutcome(id=call.id, result={"paid": 7}, status="finished")

    patch.setattr(call_plan, "_add_recorded", add)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (repeats_at_most_once_calls, "tools"),
        (forgets_the_reply, "tools"),
        (makes_calls_without_recording_them, "tools"),
        (loses_the_state, "tools"),
        (treats_unknown_outcomes_as_finished, "tools"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_defect_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, name: str) -> None:
    plant(monkeypatch)
    world = World(str(tmp_path / "a.db"))
    with pytest.raises((AssertionError, IndexError, KeyError)):
        crash_everywhere(world, name)
    world.close()
