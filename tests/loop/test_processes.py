"""Workers in separate processes: killed in the middle of a tool, stopped, started with wrong arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, TenantHandle
from holdfast.cli.commands import root
from holdfast.loop import Loop, ModelTurn, Reply, ToolRequest, tool
from holdfast.loop.call_plan import REPLY
from holdfast.types import Run
from tests.api.process import command, one_line
from tests.loop.victims import STEPS

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
LEASE_S = "2"
"""Lease of workers that are killed, short so that others need not wait long; a worker that lives keeps an expired lease, unless
it does not renew it for as long again."""


@contextmanager
def worker(url: str, folder: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start ``holdfast worker`` with the agent of ``victims``; the test stops it."""
    handler = [] if "--handler" in options else ["--handler", "tests.loop.victims:handler"]
    arguments = [sys.executable, "-m", "holdfast", "worker", *handler]
    process = subprocess.Popen(
        [*arguments, "--database", url, *options],
        cwd=ROOT,
        env={**os.environ, "EFFECTS": str(folder / "effects"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(is_so: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)


def effects(folder: Path) -> Counter[str]:
    file = folder / "effects"
    return Counter(file.read_text("utf-8").splitlines() if file.exists() else [])


def start(acme: TenantHandle) -> Run:
    session = acme.sessions.create(agent="victim")
    acme.messages.append(session.id, role="user", content="Go.")
    return acme.runs.start(session.id)


def is_over(acme: TenantHandle, *runs: Run) -> bool:
    return all(acme.runs.get(run.id).finished_at is not None for run in runs)


def roles(acme: TenantHandle, run: Run) -> list[str | None]:
    return [message.role for message in acme.messages.list(run.session_id)]


ALL_ROLES = ["user", *["assistant", "user"] * STEPS, "assistant"]


def test_a_run_survives_a_worker_that_is_killed_in_a_tool(url: str, tmp_path: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = start(acme)
        with worker(url, tmp_path, "--lease", LEASE_S, HANG="pay") as first:
            until(lambda: any(line.startswith("pay") for line in effects(tmp_path)))
            first.send_signal(signal.SIGKILL)
            first.wait(PATIENCE_S)
        with worker(url, tmp_path):
            until(lambda: is_over(acme, run))
        finished = acme.runs.get(run.id)
        assert (finished.status, finished.stop_reason, finished.epoch) == ("completed", "end_turn", 2)
        assert roles(acme, run) == ALL_ROLES
        calls = [call for call in acme.tool_calls.list(run.id) if call.tool_name != REPLY]
        happened = effects(tmp_path)
        for call in calls:
            times = happened[f"{call.tool_name} {run.id}/{call.id}"]
            assert times == 1 or (call.tool_name == "look" and times == 2)
        assert [call.tool_name for call in calls if call.status == "unknown"] == ["pay"]
        assert {call.status for call in calls} <= {"finished", "unknown"}


def test_a_stopped_worker_releases_its_run_and_logs_it(url: str, tmp_path: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = start(acme)
        with worker(url, tmp_path, "--grace", "0.2", "--tenant", "acme", "--agent", "victim", HANG="pay") as first:
            until(lambda: any(line.startswith("pay") for line in effects(tmp_path)))
            first.send_signal(signal.SIGTERM)
            printed, _ = first.communicate(timeout=PATIENCE_S)
            assert first.returncode == 0, printed
        released = acme.runs.get(run.id)
        assert (released.status, released.holder, released.iteration) == ("pending", "", 1), "the lease was released"
        lines = printed.splitlines()
        assert lines[0].startswith("Worker ")
        assert any(f"acme run {run.id}: claimed at step 0, attempt 1, for victim" in line for line in lines)
        assert any("released before the end of its iteration" in line for line in lines)
        assert lines[-1].endswith("has stopped")
        with worker(url, tmp_path):
            until(lambda: is_over(acme, run))
        assert roles(acme, run) == ALL_ROLES
        assert all(times == 1 for what, times in effects(tmp_path).items() if what.startswith("pay"))


@pytest.mark.soak
@pytest.mark.parametrize("round", range(10))
def test_runs_survive_repeatedly_killed_workers(url: str, tmp_path: Path, round: int) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        runs = [start(acme) for _ in range(20)]
        for number in range(8):
            with worker(url, tmp_path, "--lease", LEASE_S, HANG="pay" if number % 2 else "look") as victim:
                before = sum(effects(tmp_path).values())
                until(lambda before=before: sum(effects(tmp_path).values()) > before or is_over(acme, *runs))  # type: ignore[misc]
                victim.send_signal(signal.SIGKILL)
                victim.wait(PATIENCE_S)
        for run in runs:
            if acme.runs.get(run.id).status == "failed":  # too many workers died while driving it
                acme.runs.resume(run.id)
        with worker(url, tmp_path):
            until(lambda: is_over(acme, *runs))
        assert all(roles(acme, run) == ALL_ROLES for run in runs)
        assert all(times == 1 for what, times in effects(tmp_path).items() if what.startswith("pay"))


def test_the_cli_shows_and_decides_the_calls_of_a_loop(tmp_path: Path) -> None:
    file = str(tmp_path / "a.db")
    with Holdfast(file) as hf:
        acme = hf.tenant("acme")
        run = start(acme)

        @tool(hold=True)
        def launch() -> str:
            return "launched"

        def model(turn: ModelTurn) -> Reply | str:
            return Reply("May I?", [ToolRequest("launch")]) if turn.iteration == 1 else "Off."

        loop = Loop(model, tools=[launch])
        assert loop.drive(acme, run.id).status == "waiting"
        options = ["--database", file, "--tenant", "acme", "--run", run.id]
        output = CliRunner().invoke(root, ["runs", "show", *options]).output
        assert "launch" in output
        assert REPLY not in output, "the model's reply is not a call to decide about"
        assert CliRunner().invoke(root, ["runs", "resume", *options, "--allow", "call-1-1"]).exit_code == 0
        assert loop.drive(acme, run.id).status == "completed"
        output = CliRunner().invoke(root, ["runs", "show", *options]).output
        assert "✓ launch" in output
        assert REPLY not in output


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("nonsense", "'nonsense' is not of the form MODULE:NAME"),
        ("no_such_module:handler", "module 'no_such_module' does not exist"),
        ("tests.loop.victims:missing", "module 'tests.loop.victims' has no attribute 'missing'"),
    ],
)
def test_a_missing_handler_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, says: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = CliRunner().invoke(root, ["worker", "--handler", handler, "--database", str(tmp_path / "a.db")])
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "a.db").exists()


def test_an_invalid_handler_is_reported_in_one_line(tmp_path: Path) -> None:
    result = command(
        "worker", "--handler", "tests.loop.victims:not_callable", "--database", str(tmp_path / "a.db"), cwd=ROOT
    )
    assert result.returncode == 1
    assert "handler must be a Loop" in one_line(result.stderr)
