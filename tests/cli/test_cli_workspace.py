"""``holdfast workspace``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, NewMessage
from holdfast.cli.commands import root
from tests.api.process import one_line
from tests.cli.in_process import command
from tests.workspaces.fingerprints import Fingerprint, fingerprint, put

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}


class Setup(NamedTuple):
    """A directory with a database in which a run has made three steps in a tree."""

    folder: Path
    tree: Path
    run: str
    files: list[Fingerprint]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    tree = tmp_path / "tree"
    monkeypatch.chdir(tmp_path)
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    with Holdfast("agents.db") as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(agent="helper")
        run = acme.runs.start(session.id)
        claimed = acme.leases.claim("me", run_id=run.id)
        assert claimed is not None
        files = []
        for step in (1, 2, 3):
            put(tree, "notes.txt", "".join(f"line {number}\n" for number in range(step)).encode())
            put(tree, f"file {step}", b"x" * step)
            snapshot = acme.workspaces.capture(run.id, tree, step=step).snapshot
            files.append(fingerprint(tree))
            acme.runs.step(
                run.id,
                epoch=claimed.epoch,
                iteration=step,
                state=step,
                messages=[NewMessage(role="assistant", content=f"step {step}")],
                snapshot=snapshot.id,
            )
        acme.leases.release(run.id, epoch=claimed.epoch)
    return Setup(tmp_path, tree, run.id, files)


def output_of(*arguments: str, code: int = 0) -> str:
    """Run a command in this process and return its output."""
    result = CliRunner().invoke(root, ["workspace", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def json_of(*arguments: str) -> Any:
    return json.loads(output_of(*arguments, "--json"))


def test_the_command_works_as_a_process(setup: Setup) -> None:
    failed = command("workspace", "diff", "@1", "@2", cwd=setup.folder, **HERE)
    assert "add --run" in one_line(failed.stderr)


def test_a_tree_is_captured_and_listed(setup: Setup) -> None:
    put(setup.tree, "later", b"more")
    os.mkfifo(setup.tree / "pipe")
    printed = output_of("capture", "--run", setup.run, str(setup.tree))
    assert "of step 3: 5 entries" in printed
    assert "1 changed, 0 removed" in printed
    assert "left out: pipe: a pipe" in printed
    captured = json_of("capture", "--run", setup.run, str(setup.tree), "--step", "7", "--ignore", "later")
    assert (captured["snapshot"]["step"], captured["removed"]) == (7, 1)
    listing = json_of("list", "--run", setup.run)
    assert [snapshot["step"] for snapshot in listing["snapshots"]] == [7, 3, 3, 2, 1]
    assert "Snapshots of acme" in output_of("list", "--limit", "2")


def test_a_capture_can_be_exported_at_once(setup: Setup) -> None:
    captured = json_of("capture", "--run", setup.run, str(setup.tree), "--format", "tar.zst")
    assert captured["file"] == f"{captured['snapshot']['id']}.tar.zst"
    printed = output_of("capture", "--run", setup.run, str(setup.tree), "--format", "tar.zst", "--to", "now.tar.zst")
    assert "Written to now.tar.zst." in printed
    output_of("export", "--run", setup.run, captured["snapshot"]["id"], "again.tar.zst")
    written = {name: (setup.folder / name).read_bytes() for name in (captured["file"], "now.tar.zst", "again.tar.zst")}
    assert len(set(written.values())) == 1
    for words in (("export", captured["snapshot"]["id"]), ("capture", str(setup.tree), "--format", "tar.zst", "--to")):
        again = (words[0], "--run", setup.run, *words[1:], "now.tar.zst")
        assert "--force" in output_of(*again, code=1)
        output_of(*again, "--force")
    assert (setup.folder / "now.tar.zst").stat().st_mode & 0o777 == 0o600
    assert "requires --format tar.zst" in output_of("capture", "--run", setup.run, str(setup.tree), "--to", "x", code=1)
    assert not (setup.folder / "x").exists()


def test_differences_are_shown_by_step(setup: Setup) -> None:
    assert output_of("diff", "--run", setup.run, "@1", "@3", "--stat") == "A file 2\nA file 3\nM notes.txt\n"
    text = output_of("diff", "--run", setup.run, "@2", "@3")
    assert "--- a/notes.txt\n+++ b/notes.txt\n" in text
    assert "+line 2\n" in text
    changes = json_of("diff", "--run", setup.run, "@1", "@2")["changes"]
    assert {change["path"]: change["kind"] for change in changes} == {"file 2": "added", "notes.txt": "changed"}


def test_a_run_is_rewound_and_the_rewind_undone(setup: Setup) -> None:
    put(setup.tree, "dirty", b"1")
    dirty = fingerprint(setup.tree)
    printed = output_of("rewind", "--run", setup.run, str(setup.tree), "--to", "1", "--keep-snapshots-for", "30")
    assert "was rewound from step 3 to step 1" in printed
    assert "The previous content of the directory is snapshot" in printed
    assert fingerprint(setup.tree) == setup.files[0]
    assert "rewound" in output_of("list", "--run", setup.run)
    redone = json_of("redo", "--run", setup.run)
    assert (redone["rewind"]["status"], redone["rewind"]["from_step"]) == ("redone", 3)
    assert fingerprint(setup.tree) == dirty
    output_of("rewind", "--run", setup.run, str(setup.tree), "--to", "2", "--resume")
    with Holdfast("agents.db") as hf:
        run = hf.tenant("acme").runs.get(setup.run)
        assert (run.status, run.iteration) == ("pending", 2)
        assert hf.tenant("acme").retention.policy(run_id=setup.run).grace_s == 30 * 86_400


def test_a_snapshot_is_exported_and_imported(setup: Setup) -> None:
    assert "entries of snapshot" in output_of("export", "--run", setup.run, "@2", "two.tar.zst")
    taken = json_of("import", "--run", setup.run, "two.tar.zst", "--step", "9")
    assert taken["snapshot"]["kind"] == "imported"
    assert "Snapshot" in output_of("import", "--run", setup.run, "two.tar.zst", "--outside-links")
    assert "written" in output_of("restore", taken["snapshot"]["id"], "out")
    assert fingerprint(setup.folder / "out") == setup.files[1]
    again = json_of("restore", "--run", setup.run, "@3", "out", "--replace")
    assert again["written"] == 2
    assert fingerprint(setup.folder / "out") == setup.files[2]


def test_errors_are_one_line(setup: Setup) -> None:
    for arguments, reason in (
        (["diff", "--run", setup.run, "@1", "@99"], "no snapshot of step 99"),
        (["diff", "--run", setup.run, "@x", "@1"], "is not a step"),
        (["rewind", "--run", setup.run, str(setup.tree), "--to", "99"], "no step 99"),
        (["redo", "--run", setup.run], "no rewind led"),
        (["restore", "--run", setup.run, "@1", str(setup.tree)], "empty directory"),
        (["import", "--run", setup.run, "agents.db"], "not an archive"),
    ):
        printed = output_of(*arguments, code=1)
        assert reason in printed
        assert printed.startswith("Error: ")
        assert printed.count("\n") == 1
    assert fingerprint(setup.tree) == setup.files[2]


def test_file_names_that_are_not_unicode_are_escaped(setup: Setup) -> None:
    put(setup.tree, b"\xff", b"1")
    os.mkfifo(os.fsencode(setup.tree) + b"/\xfe")
    assert "left out: \\udcfe" in output_of("capture", "--run", setup.run, str(setup.tree))
    json_of("capture", "--run", setup.run, str(setup.tree), "--no-default-ignore")


def test_doctor_finishes_an_interrupted_rewind(setup: Setup) -> None:
    with Holdfast("agents.db") as hf:
        acme = hf.tenant("acme")
        snapshot = acme.snapshots.find(setup.run, step=2)
        assert snapshot is not None
        acme.rewinds.begin(setup.run, to_step=2, path=str(setup.tree), snapshot=snapshot.id)
    result = CliRunner().invoke(root, ["doctor", "--repair"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert fingerprint(setup.tree) == setup.files[1]
    with Holdfast("agents.db") as hf:
        assert [*hf.tenant("acme").rewinds.pending()] == []
