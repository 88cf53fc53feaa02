"""Every command of the loop as the last thing a process does: whoever goes on comes to the same end as a twin that never died."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.engines.sqlite.writer import Job, Writer
from holdfast.loop.call_plan import REPLY
from holdfast.loop.commands import CallTools, CommitStep, RecordIntents
from tests.loop.worlds import (
    SCENARIOS,
    Picture,
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
        expected = forgiven(twin, there)
        seen_unknown += expected != twin
        assert there == expected, f"{name}, died before command {point}"
        check_effects(world, run)
        assert max(times for what, times in world.asked.items() if what.startswith(run.id)) <= 2
    assert seen_unknown or name == "below" or every > 1, "no crash ever came between a call and its step"


def forgiven(twin: Picture, there: Picture) -> Picture:
    """What a twin must look like for a run to be as good as it: the same, but for calls of which nobody knows."""
    assert [len(twin[part]) for part in ("states", "below")] == [len(there[part]) for part in ("states", "below")]
    below = [forgiven(one, other) for one, other in zip(twin["below"], there["below"], strict=True)]
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
    intents = [place for place, command in enumerate(world.commands) if isinstance(command, RecordIntents)]
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
    deaths = 0
    for patience in (13, 14, 15, 16, 18):
        world.began_us = world.clock.now_us()
        run = world.start()
        world.fuse, world.fuses = patience, [patience] * 1_000  # each process does a little and dies
        world.live_on(loops, run.id)
        deaths += 1_000 - len(world.fuses)
        world.fuse, world.fuses = None, []
        there = picture(world.acme, run.id)
        assert there == forgiven(twin, there)
        check_effects(world, run)
    assert deaths > 8, "hardly anybody died"
    world.close()


def test_an_iteration_makes_two_commits_and_without_tools_one(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"))
    world.live_on(loops_of(world, "tools"), world.start().id)
    writes = [type(each) for each in world.commands if isinstance(each, RecordIntents | CommitStep)]
    assert writes == [RecordIntents, CommitStep, CommitStep, RecordIntents, CommitStep, CommitStep]
    world.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_reaches_the_disk_is_what_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    commits: list[int] = []
    real = Writer._commit

    def commit(self: Writer, jobs: Sequence[Job]) -> None:
        commits.append(len(jobs))
        real(self, jobs)

    world = World(str(tmp_path / "a.db"), is_async=is_async)
    run, loop = world.start(), loops_of(world, "tools")["tester"]
    monkeypatch.setattr(Writer, "_commit", commit)
    assert world.run(loop, run.id).iteration == 4
    assert commits == [1] * (1 + 2 + 1 + 2 + 1), "the claim, and two for each iteration with tools, one for others"
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
