"""Generated scripts, interrupted at generated points, end like an uninterrupted twin."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from holdfast import Usage
from holdfast.loop import Loop, Reply, ToolRequest
from tests.loop.test_crash_points import expected_picture
from tests.loop.worlds import HELPER, World, check_effects, picture, scripted, tools_of

INPUTS: dict[str, Any] = {
    "double": {"number": 3},
    "pay": {"cents": 5},
    "send": {"text": "hello"},
    "breaks": {},
    "patient": {},
    "nap": {},
    "launch": {},
    "remove": {},
    "shout": {},
    "ask_helper": {"task": "Name it."},
    "unknown_tool": {"x": [1]},
}


@st.composite
def scripts(draw: st.DrawFn) -> list[Reply]:
    """Generate the replies of a model, up to its last one."""
    replies = []
    for turn in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from(sorted(INPUTS)), max_size=4))
        calls = [ToolRequest(name, INPUTS[name], f"{turn}{index}{name}") for index, name in enumerate(names)]
        state = draw(st.sampled_from([{}, {"state": None}, {"state": {"turn": turn}}]))
        pause_s = draw(st.sampled_from([None, None, 30.0]))
        used = Usage(input_tokens=turn, output_tokens=draw(st.integers(0, 9)))
        replies.append(Reply(f"{turn}", calls, used, continue_run=not calls, pause_s=pause_s, **state))
    return [*replies, Reply("Over.")]


def live(world: World, script: list[Reply], fuses: list[int]) -> dict[str, Any]:
    """Run a script; each process but the last dies after its number of commands."""
    tools = tools_of(world)
    loops = {
        "tester": Loop(scripted(world, script), tools=tools),
        "helper": Loop(scripted(world, HELPER), tools=tools),
    }
    world.began_us = world.clock.now_us()
    run = world.start()
    world.fuse, world.fuses = (fuses[0], fuses[1:]) if fuses else (None, [])
    run = world.live_on(loops, run.id)
    world.fuse, world.fuses = None, []
    check_effects(world, run)
    assert run.status == "completed", run.error
    assert not world.acme.tool_calls.pending(run.id), "nothing is left open"
    return picture(world.acme, run.id)


def check(world: World, script: list[Reply], fuses: list[int]) -> None:
    twin = live(world, script, [])
    actual = live(world, script, fuses)
    event(f"{sum(call[3] == 'unknown' for call in actual['calls'].values())} of unknown outcome")
    assert actual == expected_picture(twin, actual)


@pytest.fixture(scope="module")
def one_world() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        world = World(str(Path(folder) / "a.db"))
        yield world
        world.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(script=scripts(), fuses=st.lists(st.integers(0, 25), max_size=6))
def test_any_script_interrupted_anywhere_ends_like_its_twin(
    one_world: World, script: list[Reply], fuses: list[int]
) -> None:
    check(one_world, script, fuses)


@pytest.mark.soak
@settings(max_examples=2_000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(script=scripts(), fuses=st.lists(st.integers(0, 25), max_size=20))
def test_many_generated_scripts_end_like_their_twins(one_world: World, script: list[Reply], fuses: list[int]) -> None:
    check(one_world, script, fuses)
