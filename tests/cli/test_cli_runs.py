"""``holdfast runs``, as the process a person starts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast, NewMessage, NewToolCall, TenantHandle, ToolOutcome, Usage
from tests.api.process import command, one_line

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}
NOBODY = "01900000-0000-7000-8000-000000000000"


class Place(NamedTuple):
    """A folder with a file in which runs are in every state a person would look for."""

    folder: Path
    session: str
    done: str
    held: str
    failed: str
    child: str


@pytest.fixture
def place(tmp_path: Path) -> Place:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="support:42", agent="helper")
        done = finished(acme, session.id)
        failed = acme.runs.start(session.id, agent="other")
        epoch = claim(acme, failed.id, "w1")
        acme.runs.fail(failed.id, epoch=epoch, error="the model [bold]said[/bold] no")
        held, child = waiting(acme, session.id)
    return Place(tmp_path, session.id, done, held, failed.id, child)


def claim(acme: TenantHandle, run_id: str, holder: str) -> int:
    """Take a run; the epoch to write with."""
    run = acme.leases.claim(holder, run_id=run_id)
    assert run is not None
    return run.epoch


def finished(acme: TenantHandle, session_id: str) -> str:
    """Two steps, one with two tool calls of which one failed, and an end."""
    run = acme.runs.start(session_id)
    epoch = claim(acme, run.id, "w1")
    calls = [
        NewToolCall(id=name, tool_name=name, tool_input={"q": 1}, safety="idempotent") for name in ("look_up", "write")
    ]
    acme.tool_calls.intend(run.id, epoch=epoch, calls=calls)
    acme.runs.step(
        run.id,
        epoch=epoch,
        iteration=1,
        state={"n": 1},
        messages=[NewMessage(role="assistant", content="I look"), NewMessage(role="user", content="42")],
        tool_calls=[ToolOutcome(id="look_up", result=42), ToolOutcome(id="write", error="disk full")],
        usage=Usage(input_tokens=1_000, output_tokens=200),
        last_tool_result="the answer\nis 42 [red]",
    )
    last = [NewMessage(role="assistant", content="It is 42")]
    acme.runs.step(run.id, epoch=epoch, iteration=2, state={"n": 2}, messages=last, stop_reason="end_turn")
    return run.id


def waiting(acme: TenantHandle, session_id: str) -> tuple[str, str]:
    """A run that waits for a person, and the one it has started."""
    run = acme.runs.start(session_id)
    epoch = claim(acme, run.id, "w2")
    call = NewToolCall(id="pay", tool_name="pay", tool_input={"euro": 12}, safety="ask", hold=True)
    acme.tool_calls.intend(run.id, epoch=epoch, calls=[call])
    child = acme.runs.start(session_id, agent="clerk", parent=run.id, parent_call="pay", parent_epoch=epoch)
    acme.runs.pause(run.id, epoch=epoch)
    return run.id, child.id


def told(place: Place, *arguments: str) -> Any:
    done = command("runs", *arguments, "--json", cwd=place.folder, **HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def shown(place: Place, *arguments: str) -> str:
    done = command("runs", *arguments, cwd=place.folder, COLUMNS="200", **HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(place: Place, *arguments: str) -> str:
    done = command("runs", *arguments, cwd=place.folder, **HERE)
    assert (done.returncode, done.stdout) == (1, "")
    return one_line(done.stderr)


def test_runs_are_listed_the_one_started_last_first(place: Place) -> None:
    assert [each["id"] for each in told(place, "list")["runs"]] == [place.child, place.held, place.failed, place.done]
    assert [each["id"] for each in told(place, "list", "--status", "failed")["runs"]] == [place.failed]
    assert [each["id"] for each in told(place, "list", "--agent", "clerk")["runs"]] == [place.child]
    assert told(place, "list", "--session", NOBODY)["runs"] == []
    first = told(place, "list", "--limit", "1")
    assert (len(first["runs"]), bool(first["next"])) == (1, True)


def test_the_list_says_why_a_run_is_where_it_is(place: Place) -> None:
    table = shown(place, "list")
    assert "end_turn" in table
    assert "error: the model [bold]said[/bold] no" in table, "what a model says is never markup"
    assert "until it is resumed" in table


def test_a_run_that_is_held_names_its_holder_and_one_that_is_paused_its_time(place: Place) -> None:
    later = datetime.now(UTC) + timedelta(days=3)
    with Holdfast(str(place.folder / "agents.db")) as hf:
        acme = hf.tenant("acme")
        paused = acme.runs.start(place.session)
        epoch = claim(acme, paused.id, "w3")
        acme.runs.pause(paused.id, epoch=epoch, until=later)
        running = acme.runs.start(place.session)
        claim(acme, running.id, "machine-7")
    table = shown(place, "list")
    assert "held by machine-7 until" in table
    assert f"until {later:%Y-%m-%d %H:%M:%S}" in table


def test_a_run_is_shown_with_its_steps_on_a_time_line(place: Place) -> None:
    there = told(place, "show", "--run", place.done)
    assert (there["run"]["status"], there["run"]["iteration"]) == ("completed", 2)
    assert [each["iteration"] for each in there["steps"]] == [1, 2]
    assert [(each["id"], each["status"]) for each in there["tool_calls"]] == [
        ("look_up", "finished"),
        ("write", "failed"),
    ]
    table = shown(place, "show", "--run", place.done)
    assert "completed at step 2; 1,000 tokens in, 200 out" in table
    assert "✓ look_up" in table
    assert "✗ write" in table
    assert "1-2" in table, "the messages of the first step"
    assert "the answer is 42 [red]" in table, "in one line, and never markup"
    assert "Tool calls that no step" not in table


def test_only_the_last_steps_are_shown_if_told_so(place: Place) -> None:
    assert [each["iteration"] for each in told(place, "show", "--run", place.done, "--last", "1")["steps"]] == [2]


def test_open_calls_and_the_runs_below_are_shown(place: Place) -> None:
    table = shown(place, "show", "--run", place.held)
    assert "Tool calls that no step has taken in" in table
    assert '{"euro":12}' in table
    assert "held" in table
    assert "Runs it has started" in table
    assert place.child in table
    assert f"started by run {place.held}, call pay" in shown(place, "show", "--run", place.child)


def test_a_failed_run_is_resumed(place: Place) -> None:
    assert "can be claimed" in shown(place, "resume", "--run", place.failed)
    assert told(place, "show", "--run", place.failed)["run"]["status"] == "pending"
    assert told(place, "resume", "--run", place.failed)["run"]["status"] == "pending", "again is fine"


def test_a_call_that_waits_is_allowed_on_the_way(place: Place) -> None:
    assert "has no call 'no'; open are: pay" in refused(place, "resume", "--run", place.held, "--allow", "no")
    assert told(place, "show", "--run", place.held)["run"]["status"] == "waiting", "nothing was done by halves"
    told(place, "resume", "--run", place.held, "--allow", "pay")
    there = told(place, "show", "--run", place.held)
    assert (there["run"]["status"], there["tool_calls"][0]["status"]) == ("pending", "ready")


def test_what_is_completed_is_not_resumed(place: Place) -> None:
    assert "is completed" in refused(place, "resume", "--run", place.done)


def test_a_run_is_cancelled_with_all_that_it_has_started(place: Place) -> None:
    assert "is cancelled at step 0" in shown(place, "cancel", "--run", place.held, "--reason", "no longer wanted")
    there = told(place, "show", "--run", place.held)
    assert (there["run"]["status"], there["run"]["error"]) == ("cancelled", "no longer wanted")
    assert there["below"][0]["status"] == "cancelled"
    assert "⊘ pay" in shown(place, "show", "--run", place.held)
    assert "is completed" in refused(place, "cancel", "--run", place.done)


def test_a_run_that_is_not_there_is_one_line(place: Place) -> None:
    for verb in ("show", "resume", "cancel"):
        assert NOBODY in refused(place, verb, "--run", NOBODY)
    assert "not-an-id" in refused(place, "show", "--run", "not-an-id")
