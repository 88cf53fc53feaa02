"""``holdfast retention`` and ``holdfast doctor``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.commands import root
from tests.api.process import WAIT_S

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A directory with a database in which a run has five snapshots, and the id of the run."""
    monkeypatch.chdir(tmp_path)
    with Holdfast(str(tmp_path / "agents.db")) as holdfast:
        tenant = holdfast.tenant("acme")
        run = tenant.runs.start(tenant.sessions.create().id).id
        (tmp_path / "tree").mkdir()
        for number in range(5):
            (tmp_path / "tree" / "file").write_text(str(number) * 5_000)
            tenant.workspaces.capture(run, tmp_path / "tree", step=number)
    return tmp_path, run


def invoke(*arguments: str) -> Result:
    """Run a command in this process, which is faster than starting another one."""
    return CliRunner().invoke(root, [*arguments], env=HERE)


def output_of(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_policy_is_set_planned_and_applied(setup: tuple[Path, str]) -> None:
    folder, run = setup
    assert "2 snapshots of a run until 3 days after its end" in output_of(
        "retention", "policy", "--per-run", "2", "--grace-days", "3", "--quota-mib", "7"
    )
    planned: dict[str, Any] = json.loads(output_of("retention", "plan", "--json"))
    assert planned["plan"]["per_run_cap"]["count"] == 3
    assert planned["policy"] == {"per_run": 2, "quota_mib": 7, "grace_s": 3 * 86_400}
    assert "exceeds the number per run" in output_of("retention", "plan")
    hold = json.loads(output_of("retention", "hold", "--reason", "case 7", "--run", run, "--by", "ada", "--json"))[
        "hold"
    ]
    assert "case 7" in output_of("retention", "holds")
    assert output_of("retention", "run") == "1 tenants swept, 0 snapshots removed.\n"
    assert f"no longer keeps run {run}" in output_of("retention", "release", "--hold", hold["id"])
    result = invoke("retention", "run", "--tenant", "acme", "--log", "audit.jsonl", "--json")
    assert json.loads(result.stdout)["round"]["snapshots"] == 3
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["reason"], line["run_id"], line["koder_user_id"]) for line in lines] == [
        ("per_run_cap", run, "acme")
    ] * 3
    kept = ["retention", "policy", "--clear", "--run", run, "--keep-days", "400", "--json"]
    assert json.loads(output_of(*kept))["policy"]["grace_s"] == 90 * 86_400
    wrong = invoke("retention", "policy", "--keep-days", "1")
    assert (wrong.exit_code, "--run" in wrong.stderr) == (2, True)


def test_doctor_reports_problems_and_repairs_what_it_can(setup: tuple[Path, str]) -> None:
    folder, _ = setup
    assert output_of("doctor").splitlines()[-1] == "No problems found."
    with Holdfast(str(folder / "agents.db")) as holdfast:
        tenant = holdfast.tenant("acme")
        tenant.sessions.purge(tenant.runs.list()[0].session_id)
    report = json.loads(output_of("doctor", "--json"))
    assert (report["sound"], report["tenants"]["acme"]["loose_layers"] > 0) == (True, True)
    assert "will be removed" in output_of("doctor", "--repair")
    (folder / "agents.db").write_bytes(b"this is no database" * 1_000)
    result = invoke("doctor")
    assert (result.exit_code, result.stdout.startswith("agents.db")) == (1, True) or "is no database" in result.output


def test_a_worker_runs_until_it_is_stopped_and_erases_by_event(setup: tuple[Path, str], redis_url: str) -> None:
    folder, _ = setup
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("people", {"type": "left", "tenant": "acme"})
    arguments = ["retention", "run", "--every", "60", "--stream", "people", "--event", "left"]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments, "--redis", redis_url, "--database", "agents.db"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert "is ready" in process.stdout.readline()
    erased = [json.loads(process.stderr.readline()) for _ in range(5)]
    assert {deletion["reason"] for deletion in erased} == {"erasure"}
    with Holdfast(str(folder / "agents.db")) as holdfast:
        while holdfast.erasures.list(only_open=True):
            pass
        assert holdfast.tenants.list() == []
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, errors) == (0, "", "")


def test_policies_and_holds_are_described_for_people(setup: tuple[Path, str]) -> None:
    _, run = setup
    assert "nothing to remove" in output_of("retention", "plan")
    assert f"run {run} keeps 3 snapshots of a run until 7 days" in output_of(
        "retention", "policy", "--run", run, "--per-run", "3"
    )
    assert "acme keeps 10 snapshots of a run until 0.5 days" in output_of("retention", "policy", "--grace-days", "0.5")
    assert "and 500 MiB in total" in output_of("retention", "policy", "--clear")
    assert "7 days" in output_of("retention", "policy")
    assert "keeps all of acme" in output_of("retention", "hold", "--reason", "audit")
    assert "1 runs are on hold" in output_of("retention", "plan")
    session = json.loads(output_of("runs", "list", "--json"))["runs"][0]["session_id"]
    placed = output_of("retention", "hold", "--reason", "audit", "--session", session)
    assert f"keeps session {session}" in placed
    listed = json.loads(output_of("retention", "holds", "--json"))["holds"]
    assert [hold["session_id"] for hold in listed] == [None, session]
    for hold in listed:
        output_of("retention", "release", "--hold", hold["id"], "--reason", "done")
    assert json.loads(output_of("retention", "holds", "--json")) == {"holds": []}


@pytest.mark.parametrize(
    ("arguments", "status", "saying"),
    [
        (["retention", "hold"], 2, "--reason"),
        (["retention", "hold", "--reason", ""], 1, "reason must not be empty"),
        (["retention", "release", "--hold", "7"], 1, "must be a UUID"),
        (["retention", "policy", "--per-run", "0"], 2, "--per-run"),
        (
            ["retention", "policy", "--run", "01900000-0000-7000-8000-000000000000"],
            1,
            "01900000-0000-7000-8000-000000000000",
        ),
        (["retention", "run", "--every", "0"], 2, "--every"),
        (["retention", "plan", "--packs", "ftp://nowhere"], 1, "packs"),
        (["doctor", "--database", "nowhere/none.db"], 1, "none.db"),
    ],
)
def test_errors_are_one_line(setup: tuple[Path, str], arguments: list[str], status: int, saying: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, saying in result.output) == (status, True), result.output
    assert "Traceback" not in result.output


def test_a_missing_tenant_is_not_created(setup: tuple[Path, str]) -> None:
    folder, _ = setup
    assert output_of("retention", "run", "--tenant", "typo") == "1 tenants swept, 0 snapshots removed.\n"
    with Holdfast(str(folder / "agents.db")) as holdfast:
        assert [tenant.id for tenant in holdfast.tenants.list()] == ["acme"]


def test_doctor_lists_overdue_erasures(setup: tuple[Path, str]) -> None:
    folder, _ = setup
    with Holdfast(str(folder / "agents.db")) as holdfast:
        holdfast.erasures.request("acme", requested_at=datetime(2020, 1, 1, tzinfo=UTC))
    result = invoke("doctor")
    assert (result.exit_code, "the erasure of acme was due by 2020-01-02 00:00" in result.stdout) == (1, True)
    output_of("retention", "run")
    assert output_of("doctor").splitlines()[-1] == "No problems found."
