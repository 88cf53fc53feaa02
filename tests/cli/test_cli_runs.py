"""``holdfast runs``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast, NewMessage, NewToolCall, TenantHandle, ToolOutcome, Usage
from tests.api.process import one_line
from tests.cli.in_process import command

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}
MISSING_ID = "01900000-0000-7000-8000-000000000000"


class Setup(NamedTuple):
    """A directory with a database whose runs are in different states."""

    folder: Path
    session: str
    completed: str
    held: str
    failed: str
    child: str


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="support:42", agent="helper")
        completed = completed_run(acme, session.id)
        failed = acme.runs.start(session.id, agent="other")
        epoch = claim(acme, failed.id, "w1")
        acme.runs.fail(failed.id, epoch=epoch, error="the model [bold]said[/bold] no")
        held, child = waiting_run(acme, session.id)
    return Setup(tmp_path, session.id, completed, held, failed.id, child)


def claim(acme: TenantHandle, run_id: str, holder: str) -> int:
    """Claim a run and return its epoch."""
    run = acme.leases.claim(holder, run_id=run_id)
    assert run is not None
    return run.epoch


def completed_run(acme: TenantHandle, session_id: str) -> str:
    """Create a completed run of two steps, one of which has a successful and a failed tool call."""
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


def waiting_run(acme: TenantHandle, session_id: str) -> tuple[str, str]:
    """Create a run that waits for a person, and a child run."""
    run = acme.runs.start(session_id)
    epoch = claim(acme, run.id, "w2")
    call = NewToolCall(id="pay", tool_name="pay", tool_input={"euro": 12}, safety="ask", hold=True)
    acme.tool_calls.intend(run.id, epoch=epoch, calls=[call])
    child = acme.runs.start(session_id, agent="clerk", parent=run.id, parent_call="pay", parent_epoch=epoch)
    acme.runs.pause(run.id, epoch=epoch)
    return run.id, child.id


def json_of(setup: Setup, *arguments: str) -> Any:
    result = command("runs", *arguments, "--json", cwd=setup.folder, **HERE)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def output_of(setup: Setup, *arguments: str) -> str:
    result = command("runs", *arguments, cwd=setup.folder, COLUMNS="200", **HERE)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def error_of(setup: Setup, *arguments: str) -> str:
    result = command("runs", *arguments, cwd=setup.folder, **HERE)
    assert (result.returncode, result.stdout) == (1, "")
    return one_line(result.stderr)


def test_runs_are_listed_the_most_recently_started_first(setup: Setup) -> None:
    assert [run["id"] for run in json_of(setup, "list")["runs"]] == [
        setup.child,
        setup.held,
        setup.failed,
        setup.completed,
    ]
    assert [run["id"] for run in json_of(setup, "list", "--status", "failed")["runs"]] == [setup.failed]
    assert [run["id"] for run in json_of(setup, "list", "--agent", "clerk")["runs"]] == [setup.child]
    assert json_of(setup, "list", "--session", MISSING_ID)["runs"] == []
    first = json_of(setup, "list", "--limit", "1")
    assert (len(first["runs"]), bool(first["next"])) == (1, True)


def test_the_list_explains_the_status_of_each_run(setup: Setup) -> None:
    table = output_of(setup, "list")
    assert "end_turn" in table
    assert "error: the model [bold]said[/bold] no" in table, "the output of a model is not interpreted as markup"
    assert "until resumed" in table


def test_a_held_run_names_its_holder_and_a_paused_run_its_time(setup: Setup) -> None:
    later = datetime.now(UTC) + timedelta(days=3)
    with Holdfast(str(setup.folder / "agents.db")) as hf:
        acme = hf.tenant("acme")
        paused = acme.runs.start(setup.session)
        epoch = claim(acme, paused.id, "w3")
        acme.runs.pause(paused.id, epoch=epoch, until=later)
        running = acme.runs.start(setup.session)
        claim(acme, running.id, "machine-7")
    table = output_of(setup, "list")
    assert "held by machine-7 until" in table
    assert f"until {later:%Y-%m-%d %H:%M:%S}" in table


def test_a_run_is_shown_with_a_timeline_of_its_steps(setup: Setup) -> None:
    document = json_of(setup, "show", "--run", setup.completed)
    assert (document["run"]["status"], document["run"]["iteration"]) == ("completed", 2)
    assert [step["iteration"] for step in document["steps"]] == [1, 2]
    assert [(tool_call["id"], tool_call["status"]) for tool_call in document["tool_calls"]] == [
        ("look_up", "finished"),
        ("write", "failed"),
    ]
    table = output_of(setup, "show", "--run", setup.completed)
    assert "completed at step 2; 1,000 tokens in, 200 out" in table
    assert "✓ look_up" in table
    assert "✗ write" in table
    assert "1-2" in table, "the messages of the first step"
    assert "the answer is 42 [red]" in table, "on one line, and not as markup"
    assert "Open tool calls" not in table


def test_last_limits_the_number_of_steps(setup: Setup) -> None:
    assert [step["iteration"] for step in json_of(setup, "show", "--run", setup.completed, "--last", "1")["steps"]] == [
        2
    ]


def test_open_calls_and_child_runs_are_shown(setup: Setup) -> None:
    table = output_of(setup, "show", "--run", setup.held)
    assert "Open tool calls" in table
    assert '{"euro":12}' in table
    assert "held" in table
    assert "Child runs" in table
    assert setup.child in table
    assert f"started by run {setup.held}, call pay" in output_of(setup, "show", "--run", setup.child)


def test_a_failed_run_is_resumed(setup: Setup) -> None:
    assert "can be claimed" in output_of(setup, "resume", "--run", setup.failed)
    assert json_of(setup, "show", "--run", setup.failed)["run"]["status"] == "pending"
    assert json_of(setup, "resume", "--run", setup.failed)["run"]["status"] == "pending", "again is fine"


def test_a_waiting_call_is_approved_when_its_run_is_resumed(setup: Setup) -> None:
    assert "has no tool call 'no'; open calls: pay" in error_of(setup, "resume", "--run", setup.held, "--allow", "no")
    assert json_of(setup, "show", "--run", setup.held)["run"]["status"] == "waiting", "nothing was changed"
    json_of(setup, "resume", "--run", setup.held, "--allow", "pay")
    document = json_of(setup, "show", "--run", setup.held)
    assert (document["run"]["status"], document["tool_calls"][0]["status"]) == ("pending", "ready")


def test_a_completed_run_is_not_resumed(setup: Setup) -> None:
    assert "is completed" in error_of(setup, "resume", "--run", setup.completed)


def test_a_run_is_cancelled_with_its_child_runs(setup: Setup) -> None:
    assert "is cancelled at step 0" in output_of(setup, "cancel", "--run", setup.held, "--reason", "no longer wanted")
    document = json_of(setup, "show", "--run", setup.held)
    assert (document["run"]["status"], document["run"]["error"]) == ("cancelled", "no longer wanted")
    assert document["below"][0]["status"] == "cancelled"
    assert "⊘ pay" in output_of(setup, "show", "--run", setup.held)
    assert "is completed" in error_of(setup, "cancel", "--run", setup.completed)


def test_a_missing_run_is_a_one_line_error(setup: Setup) -> None:
    for verb in ("show", "resume", "cancel"):
        assert MISSING_ID in error_of(setup, verb, "--run", MISSING_ID)
    assert "not-an-id" in error_of(setup, "show", "--run", "not-an-id")
