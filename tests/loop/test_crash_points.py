"""A process that dies at any command of the loop: its successor ends the run like a twin that never died."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.engines.sqlite.writer import WriteJob, Writer
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
        new_run = world.start()
        world.fuse = point
        run = world.live_on(loops, new_run.id)
        assert world.fuse is None, "the process never died"
        actual = picture(world.acme, run.id)
        expected = expected_picture(twin, actual)
        seen_unknown += expected != twin
        assert actual == expected, f"{name}, died before command {point}"
        check_effects(world, run)
        assert max(times for prompt, times in world.prompts.items() if prompt.startswith(run.id)) <= 2
    assert seen_unknown or name == "children" or every > 1, "no crash happened between a call and its step"


def expected_picture(twin: Picture, actual: Picture) -> Picture:
    """Return the twin's picture with the calls of unknown outcome of the actual run."""
    assert [len(twin[part]) for part in ("states", "children")] == [
        len(actual[part]) for part in ("states", "children")
    ]
    children = [expected_picture(one, other) for one, other in zip(twin["children"], actual["children"], strict=True)]
    expected = as_if_unknown(twin, unknowns(actual))
    # The result of the last call is in the step, too.
    states = [
        (state, other[1] if other[1] is not None and "is unknown" in other[1] and unknowns(actual) else last)
        for (state, last), other in zip(twin["states"], actual["states"], strict=True)
    ]
    return {**expected, "states": states, "children": children}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_interrupted_anywhere_ends_like_its_twin(world: World, name: str) -> None:
    # All points on SQLite in a thread; elsewhere only some of them, so that the suite stays short.
    every = 1 if not world.is_async else 5
    crash_everywhere(world, name, every=every if "://" not in world.url else 7)


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_crash_point_ends_like_the_twin(world: World, name: str) -> None:
    crash_everywhere(world, name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_model_is_not_called_again_once_its_intent_is_recorded(tmp_path: Path, name: str) -> None:
    world = World(str(tmp_path / "a.db"))
    loops = loops_of(world, name)
    world.live_on(loops, world.start().id)
    intents = [number for number, command in enumerate(world.commands) if isinstance(command, RecordIntents)]
    assert intents
    for number in intents:
        world.began_us = world.clock.now_us()
        run, world.fuse = world.start(), number + 1  # die right after the intent
        world.live_on(loops, run.id)
        prompts = {prompt: times for prompt, times in world.prompts.items() if prompt.startswith(run.id)}
        assert set(prompts.values()) == {1}
    world.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_repeated_deaths_end_like_the_twin(tmp_path: Path, name: str) -> None:
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
        actual = picture(world.acme, run.id)
        assert actual == expected_picture(twin, actual)
        check_effects(world, run)
    assert deaths > 8, "too few processes died"
    world.close()


def test_an_iteration_makes_two_commits_and_without_tools_one(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"))
    world.live_on(loops_of(world, "tools"), world.start().id)
    writes = [type(command) for command in world.commands if isinstance(command, RecordIntents | CommitStep)]
    assert writes == [RecordIntents, CommitStep, CommitStep, RecordIntents, CommitStep, CommitStep]
    world.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_number_of_commits_to_disk_is_as_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    commits: list[int] = []
    real = Writer._commit

    def commit(self: Writer, jobs: Sequence[WriteJob]) -> None:
        commits.append(len(jobs))
        real(self, jobs)

    world = World(str(tmp_path / "a.db"), is_async=is_async)
    run, loop = world.start(), loops_of(world, "tools")["tester"]
    monkeypatch.setattr(Writer, "_commit", commit)
    assert world.run(loop, run.id).iteration == 4
    assert commits == [1] * (1 + 2 + 1 + 2 + 1), (
        "one for the claim, two for each iteration with tools, one for each without"
    )
    world.close()


def test_calls_are_recorded_with_their_reply_before_they_are_made(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"))
    loops = loops_of(world, "tools")
    world.live_on(loops, world.start().id)
    before = next(number for number, command in enumerate(world.commands) if isinstance(command, CallTools))
    run, world.fuse = world.start(), before
    world._try(loops["tester"], run.id)
    calls = world.acme.runs.load(run.id).tool_calls
    assert [call.tool_name for call in calls] == [REPLY, "double", "pay", "breaks", "nothing"]
    assert calls[0].tool_input["content"][0] == {"type": "text", "text": "Let me see."}
    assert {call.status for call in calls} == {"begun"}
    assert [message.role for message in world.acme.messages.list(run.session_id)] == ["user"], (
        "an incomplete iteration adds no message"
    )
    world.close()
