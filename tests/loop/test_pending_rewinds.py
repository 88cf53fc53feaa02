"""A rewind that is requested over HTTP: the worker that next claims the run restores its files before anything else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, TenantHandle
from holdfast.errors import Conflict, NotFound
from holdfast.types import Run
from tests.api.in_process import running
from tests.errors import raises
from tests.loop import writers
from tests.loop.test_processes import PATIENCE_S, ROOT, is_over, until, worker

T = "/v1/tenants/acme"
FILES = ["README", *(f"file {number}" for number in range(1, writers.STEPS))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the agent's tree in it."""
    directory = tmp_path / "here"
    (directory / "tree").mkdir(parents=True)
    (directory / "tree" / "README").write_text("before anything\n")
    monkeypatch.setenv("TREE", str(directory / "tree"))
    monkeypatch.setenv("SEEN", str(directory / "seen"))
    return directory


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "tree").iterdir())


def seen(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "seen").read_text().splitlines()]


def completed_run(acme: TenantHandle) -> Run:
    """Return a run that the agent has completed_run to its end."""
    session = acme.sessions.create(agent="writer")
    acme.messages.append(session.id, role="user", content="Write.")
    run = acme.runs.start(session.id, max_attempts=1_000)
    assert writers.loop.drive(acme, run.id).status == "completed"
    return acme.runs.get(run.id)


def over_http(url: str, *requests: tuple[str, str, Any]) -> list[Any]:
    """Return the answers of a server on a machine without such a directory."""

    async def ask() -> list[Any]:
        async with running(url) as server:
            replies = [await server.ask(method, T + path, body) for method, path, body in requests]
        assert all(reply.status < 300 for reply in replies), [(reply.status, reply.json) for reply in replies]
        return [reply.json for reply in replies]

    return asyncio.run(ask())


def test_a_rewind_over_http_is_pending_until_a_worker_has_restored_the_files(url: str, folder: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = completed_run(acme)
        path, snapshot = f"/runs/{run.id}", acme.steps.get(run.id, 1).snapshot
        result, pending, _ = over_http(
            url,
            ("POST", f"{path}/rewind", {"to_step": 1}),
            ("GET", "/rewinds/pending", None),
            ("POST", f"{path}/resume", {}),
        )
        assert (result["rewind"]["snapshot"], result["rewind"]["status"]) == (snapshot, "rewinding")
        assert pending["items"] == [result["rewind"]]
        assert snapshot in pending["items"][0]["pending_reason"]
        assert names(folder) == FILES, "the server has touched no file"
        (folder / "seen").unlink()
        with worker(url, folder, "--handler", "tests.loop.writers:loop"):
            until(lambda: is_over(acme, run))
        assert seen(folder)[0] == [2, ["README", "file 1"]], "the model is asked with the files of its step"
        assert names(folder) == FILES
        (finished,) = acme.rewinds.list(run.id)
        assert (finished.status, finished.pending_reason, len(acme.rewinds.pending())) == ("rewound", None, 0)
        dirty = acme.snapshots.tree(finished.dirty or "")
        assert sorted(dirty.entries) == FILES, "the files that the worker found are kept"


def test_a_worker_killed_at_any_point_leaves_the_restore_to_the_next(folder: Path, tmp_path: Path) -> None:
    database = str(folder / "w.db")
    with Holdfast(database, clock=FixedClock()) as hf:
        acme = hf.tenant("acme")
        run = completed_run(acme)
        (folder / "tree" / "file 1").write_text("ruined")
        acme.workspaces.rewind(run.id, 1, None)
        acme.runs.resume(run.id)
    (folder / "seen").write_text("")
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    process = subprocess.run(
        [sys.executable, "-m", "tests.loop.writers", database, run.id, str(copy)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(results) > 20, "too few crash points"
    expected = [[2, ["README", "file 1"]], [3, ["README", "file 1", "file 2"]], [4, FILES]]
    for result in results:
        assert result["seen"] == expected, result
        assert result["left"] == FILES, result


def test_a_loop_without_a_workspace_does_not_drive_a_run_with_a_pending_rewind(url: str, folder: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = completed_run(acme)
        rewind = acme.workspaces.rewind(run.id, 1, None).rewind
        acme.runs.resume(run.id)
        ending = writers.without_files.drive(acme, run.id)
        assert (ending.status, acme.runs.get(run.id).status) == ("waiting", "waiting")
        assert rewind.id in (ending.error or "")
        assert list(acme.rewinds.pending()) == [rewind]
        acme.workspaces.finish_rewinds(run.id, folder / "tree")
        assert names(folder) == ["README", "file 1"]


def test_a_pending_rewind_can_be_followed_by_another_or_a_redo(url: str, folder: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = completed_run(acme)
        spaces = acme.workspaces
        assert spaces.rewind(run.id, 3, None).rewind.status == "rewinding"
        assert spaces.redo(run.id, later=True).rewind.status == "redone", (
            "no file was changed, so nothing must be restored"
        )
        assert acme.runs.get(run.id).status == "completed"
        first = spaces.rewind(run.id, 2, None).rewind
        second = spaces.rewind(run.id, 1, None).rewind
        assert [rewind.id for rewind in acme.rewinds.pending()] == [second.id]
        assert (acme.rewinds.get(first.id).status, second.dirty) == ("rewound", first.snapshot)
        spaces.finish_rewinds(run.id, folder / "tree")
        assert names(folder) == ["README", "file 1"]
        redone = spaces.redo(run.id, later=True).rewind
        assert (redone.status, acme.runs.get(run.id).iteration) == ("redoing", 2)
        spaces.finish_rewinds(run.id, folder / "tree")
        assert names(folder) == ["README", "file 1", "file 2"]
        spaces.redo(run.id, folder / "tree")
        assert (names(folder), acme.runs.get(run.id).status) == (FILES, "completed")


def test_a_rewind_to_a_deleted_snapshot_is_refused_unless_the_files_stay(url: str, folder: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = completed_run(acme)
        deleted = acme.steps.get(run.id, 1).snapshot
        assert deleted is not None
        acme.snapshots.delete([deleted], reason="test")
        with raises(NotFound, noun="snapshot", key=deleted):
            acme.workspaces.rewind(run.id, 1, None)
        assert acme.runs.get(run.id).iteration == writers.STEPS
        rewind = acme.workspaces.rewind(run.id, 1, None, files=False).rewind
        assert (rewind.status, rewind.snapshot) == ("rewound", None)


def test_a_rewind_that_cannot_be_finished_records_the_reason(url: str, folder: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run = completed_run(acme)
        rewind = acme.workspaces.rewind(run.id, 1, None).rewind
        with raises(Conflict, reason="not_finished") as refused:
            acme.workspaces.rewind(run.id, 0, None, files=False)
        assert rewind.id in str(refused.value)
        with pytest.raises(NotFound):
            acme.workspaces.finish_rewinds(run.id, folder / "nowhere")
        (pending,) = acme.rewinds.pending()
        assert "nowhere" in (pending.pending_reason or "")
