"""Every command of the loop as the last thing a process does: whoever goes on comes to the same end as a twin that never died."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.loop.commands import CallTools, CommitStep, Intend
from holdfast.loop.sorting import REPLY
from tests.loop.worlds import (
    SCENARIOS,
    World,
    as_if_unknown,
    check_effects,
    loops_of,
    picture,
    unknowns,
)


def crash_everywhere(world: World, name: str, *, every: int = 1) -> None:
    loops = loops_of(world, name)
    run = world.live_on(loops, world.start().id)
    twin, points = picture(world.acme, run.id), len(world.commands)
    assert twin["run"][:2] == ("completed", "end_turn")
    check_effects(world, run)
    assert points > 15
    seen_unknown = 0
    for point in range(0, points, every):
        world.began_us = world.clock.now_us()
        started = world.start()
        world.fuse = point
        run = world.live_on(loops, started.id)
        assert world.fuse is None, "the process never died"
        there = picture(world.acme, run.id)
        expected = _forgiven(twin, there)
        seen_unknown += expected != twin
        assert there == expected, f"{name}, died before command {point}"
        check_effects(world, run)
        assert max(times for what, times in world.asked.items() if what.startswith(run.id)) <= 2
    assert seen_unknown or name == "below" or every > 1, "no crash ever came between a call and its step"


def _forgiven(twin: dict, there: dict) -> dict:  # type: ignore[type-arg]
    assert [len(twin[part]) for part in ("states", "below")] == [len(there[part]) for part in ("states", "below")]
    below = [_forgiven(one, other) for one, other in zip(twin["below"], there["below"], strict=True)]
    expected = as_if_unknown(twin, unknowns(there))
    # What the last call of a step came to is in the step too.
    states = [
        (state, other[1] if other[1] is not None and "is unknown" in other[1] and unknowns(there) else last)
        for (state, last), other in zip(twin["states"], there["states"], strict=True)
    ]
    return {**expected, "states": states, "below": below}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_was_broken_off_anywhere_ends_as_its_twin(world: World, name: str) -> None:
    # Every point is tried on SQLite in a thread; elsewhere some, so that the suite stays short.
    every = 1 if not world.is_async else 5
    crash_everywhere(world, name, every=every if "://" not in world.url else 7)


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_everywhere_means_everywhere(world: World, name: str) -> None:
    crash_everywhere(world, name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_model_is_not_asked_again_once_its_intent_is_recorded(tmp_path: Path, name: str) -> None:
    world = World(str(tmp_path / "a.db"))
    loops = loops_of(world, name)
    world.live_on(loops, world.start().id)
    intents = [place for place, command in enumerate(world.commands) if isinstance(command, Intend)]
    assert intents
    for place in intents:
        world.began_us = world.clock.now_us()
        run, world.fuse = world.start(), place + 1  # the intent is the last thing that is done
        world.live_on(loops, run.id)
        mine = {what: times for what, times in world.asked.items() if what.startswith(run.id)}
        assert set(mine.values()) == {1}
    world.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_dying_again_and_again_comes_to_the_same_end(tmp_path: Path, name: str) -> None:
    world = World(str(tmp_path / "a.db"))
    loops = loops_of(world, name)
    twin = picture(world.acme, world.live_on(loops, world.start().id).id)
    for patience in (9, 13, 17):
        world.began_us = world.clock.now_us()
        run = world.start()
        for _ in range(40):  # each process does a little and dies
            world.fuse = patience
            if world.acme.runs.get(run.id).finished_at is None:
                world.live_on(loops, run.id)
        there = picture(world.acme, run.id)
        assert there == _forgiven(twin, there)
        check_effects(world, run)
    world.close()


def test_an_iteration_makes_two_commits_and_without_tools_one(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"))
    world.live_on(loops_of(world, "tools"), world.start().id)
    writes = [type(each) for each in world.commands if isinstance(each, Intend | CommitStep)]
    assert writes == [Intend, CommitStep, CommitStep, Intend, CommitStep, CommitStep]
    world.close()


def test_calls_are_recorded_before_they_are_made_with_the_reply_that_asked_for_them(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"))
    loops = loops_of(world, "tools")
    world.live_on(loops, world.start().id)
    before = world.commands.index(next(each for each in world.commands if isinstance(each, CallTools)))
    run, world.fuse = world.start(), before
    world._try(loops["tester"], run.id)
    calls = world.acme.runs.load(run.id).tool_calls
    assert [call.tool_name for call in calls] == [REPLY, "double", "pay", "breaks", "nothing"]
    assert calls[0].tool_input["content"][0] == {"type": "text", "text": "Let me see."}
    assert {call.status for call in calls} == {"begun"}
    assert [message.role for message in world.acme.messages.list(run.session_id)] == ["user"], "nobody sees half of it"
    world.close()
