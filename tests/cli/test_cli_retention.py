"""``holdfast retention`` and ``holdfast doctor``, as a person types them."""

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
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A folder with a file in which a run has five snapshots, and the run."""
    monkeypatch.chdir(tmp_path)
    with Holdfast(str(tmp_path / "agents.db")) as holdfast:
        there = holdfast.tenant("acme")
        run = there.runs.start(there.sessions.create().id).id
        (tmp_path / "tree").mkdir()
        for number in range(5):
            (tmp_path / "tree" / "file").write_text(str(number) * 5_000)
            there.workspaces.capture(run, tmp_path / "tree", step=number)
    return tmp_path, run


def invoke(*arguments: str) -> Result:
    """The command, in this process: starting another takes longer than most commands."""
    return CliRunner().invoke(root, [*arguments], env=HERE)


def said(*arguments: str) -> str:
    done = invoke(*arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_policy_is_set_planned_and_carried_out(place: tuple[Path, str]) -> None:
    folder, run = place
    assert "2 snapshots of a run, 3 days after its end" in said(
        "retention", "policy", "--per-run", "2", "--grace-days", "3", "--quota-mib", "7"
    )
    planned: dict[str, Any] = json.loads(said("retention", "plan", "--json"))
    assert planned["plan"]["per_run_cap"]["count"] == 3
    assert planned["policy"] == {"per_run": 2, "quota_mib": 7, "grace_s": 3 * 86_400}
    assert "more than a run keeps" in said("retention", "plan")
    hold = json.loads(said("retention", "hold", "--reason", "case 7", "--run", run, "--by", "ada", "--json"))["hold"]
    assert "case 7" in said("retention", "holds")
    assert said("retention", "run") == "1 tenants swept, 0 snapshots removed.\n"
    assert f"no longer keeps run {run}" in said("retention", "release", "--hold", hold["id"])
    done = invoke("retention", "run", "--tenant", "acme", "--log", "audit.jsonl", "--json")
    assert json.loads(done.stdout)["round"]["snapshots"] == 3
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [(each["reason"], each["run_id"], each["koder_user_id"]) for each in lines] == [
        ("per_run_cap", run, "acme")
    ] * 3
    kept = ["retention", "policy", "--clear", "--run", run, "--keep-days", "400", "--json"]
    assert json.loads(said(*kept))["policy"]["grace_s"] == 90 * 86_400
    wrong = invoke("retention", "policy", "--keep-days", "1")
    assert (wrong.exit_code, "--run" in wrong.stderr) == (2, True)


def test_the_doctor_says_what_is_wrong_and_repairs_what_can_be(place: tuple[Path, str]) -> None:
    folder, _ = place
    assert said("doctor").splitlines()[-1] == "All is well."
    with Holdfast(str(folder / "agents.db")) as holdfast:
        there = holdfast.tenant("acme")
        there.sessions.purge(there.runs.list()[0].session_id)
    found = json.loads(said("doctor", "--json"))
    assert (found["sound"], found["tenants"]["acme"]["loose_layers"] > 0) == (True, True)
    assert "wait to be removed" in said("doctor", "--repair")
    (folder / "agents.db").write_bytes(b"this is no database" * 1_000)
    done = invoke("doctor")
    assert (done.exit_code, done.stdout.startswith("agents.db")) == (1, True) or "is no database" in done.output


def test_a_worker_goes_on_until_it_is_stopped_and_forgets_by_event(place: tuple[Path, str], redis_url: str) -> None:
    folder, _ = place
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
    assert {each["reason"] for each in erased} == {"erasure"}
    with Holdfast(str(folder / "agents.db")) as holdfast:
        while holdfast.erasures.list(only_open=True):
            pass
        assert holdfast.tenants.list() == []
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, errors) == (0, "", "")


def test_what_people_read_says_it_in_words(place: tuple[Path, str]) -> None:
    _, run = place
    assert "everything may stay" in said("retention", "plan")
    assert f"run {run} keeps 3 snapshots of a run, 7 days" in said(
        "retention", "policy", "--run", run, "--per-run", "3"
    )
    assert "acme keeps 10 snapshots of a run, 0.5 days" in said("retention", "policy", "--grace-days", "0.5")
    assert "and 500 MiB in all" in said("retention", "policy", "--clear")
    assert "7 days" in said("retention", "policy")
    assert "keeps all of acme" in said("retention", "hold", "--reason", "audit")
    assert "1 runs are held" in said("retention", "plan")
    session = json.loads(said("runs", "list", "--json"))["runs"][0]["session_id"]
    placed = said("retention", "hold", "--reason", "audit", "--session", session)
    assert f"keeps session {session}" in placed
    listed = json.loads(said("retention", "holds", "--json"))["holds"]
    assert [each["session_id"] for each in listed] == [None, session]
    for each in listed:
        said("retention", "release", "--hold", each["id"], "--reason", "done")
    assert json.loads(said("retention", "holds", "--json")) == {"holds": []}


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
        (["retention", "plan", "--packs", "ftp://nowhere"], 1, "packs must be in a directory"),
        (["doctor", "--database", "nowhere/none.db"], 1, "none.db"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    place: tuple[Path, str], arguments: list[str], status: int, saying: str
) -> None:
    done = invoke(*arguments)
    assert (done.exit_code, saying in done.output) == (status, True), done.output
    assert "Traceback" not in done.output


def test_a_tenant_that_is_not_there_is_not_made(place: tuple[Path, str]) -> None:
    folder, _ = place
    assert said("retention", "run", "--tenant", "typo") == "1 tenants swept, 0 snapshots removed.\n"
    with Holdfast(str(folder / "agents.db")) as holdfast:
        assert [each.id for each in holdfast.tenants.list()] == ["acme"]


def test_the_doctor_names_who_should_have_been_forgotten(place: tuple[Path, str]) -> None:
    folder, _ = place
    with Holdfast(str(folder / "agents.db")) as holdfast:
        holdfast.erasures.request("acme", requested_at=datetime(2020, 1, 1, tzinfo=UTC))
    done = invoke("doctor")
    assert (done.exit_code, "acme was to be forgotten by 2020-01-02 00:00" in done.stdout) == (1, True)
    said("retention", "run")
    assert said("doctor").splitlines()[-1] == "All is well."
