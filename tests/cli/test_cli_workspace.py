"""``holdfast workspace``, as the process a person starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, NewMessage
from holdfast.cli.commands import root
from tests.api.process import command, one_line
from tests.workspaces.fingerprints import Fingerprint, fingerprint, put

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}


class Place(NamedTuple):
    """A folder with a database in which a run has worked in a tree for three steps."""

    folder: Path
    tree: Path
    run: str
    files: list[Fingerprint]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
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
    return Place(tmp_path, tree, run.id, files)


def said(*arguments: str, code: int = 0) -> str:
    """What a command prints, called in this process."""
    done = CliRunner().invoke(root, ["workspace", *arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def told(*arguments: str) -> Any:
    return json.loads(said(*arguments, "--json"))


def test_the_command_is_there_as_a_process(place: Place) -> None:
    failed = command("workspace", "diff", "@1", "@2", cwd=place.folder, **HERE)
    assert "say which with --run" in one_line(failed.stderr)


def test_a_tree_is_captured_and_listed(place: Place) -> None:
    put(place.tree, "later", b"more")
    os.mkfifo(place.tree / "pipe")
    printed = said("capture", "--run", place.run, str(place.tree))
    assert "of step 3: 5 entries" in printed
    assert "1 changed, 0 removed" in printed
    assert "left out: pipe: a pipe" in printed
    captured = told("capture", "--run", place.run, str(place.tree), "--step", "7", "--ignore", "later")
    assert (captured["snapshot"]["step"], captured["removed"]) == (7, 1)
    found = told("list", "--run", place.run)
    assert [each["step"] for each in found["snapshots"]] == [7, 3, 3, 2, 1]
    assert "Snapshots of acme" in said("list", "--limit", "2")


def test_a_capture_is_exported_in_the_same_go(place: Place) -> None:
    done = told("capture", "--run", place.run, str(place.tree), "--format", "tar.zst")
    assert done["file"] == f"{done['snapshot']['id']}.tar.zst"
    printed = said("capture", "--run", place.run, str(place.tree), "--format", "tar.zst", "--to", "now.tar.zst")
    assert "It is in now.tar.zst as well." in printed
    said("export", "--run", place.run, done["snapshot"]["id"], "again.tar.zst")
    written = {name: (place.folder / name).read_bytes() for name in (done["file"], "now.tar.zst", "again.tar.zst")}
    assert len(set(written.values())) == 1
    for words in (("export", done["snapshot"]["id"]), ("capture", str(place.tree), "--format", "tar.zst", "--to")):
        again = (words[0], "--run", place.run, *words[1:], "now.tar.zst")
        assert "--force" in said(*again, code=1)
        said(*again, "--force")
    assert (place.folder / "now.tar.zst").stat().st_mode & 0o777 == 0o600
    assert "say --format tar.zst" in said("capture", "--run", place.run, str(place.tree), "--to", "x", code=1)
    assert not (place.folder / "x").exists()


def test_differences_are_shown_by_step(place: Place) -> None:
    assert said("diff", "--run", place.run, "@1", "@3", "--stat") == "A file 2\nA file 3\nM notes.txt\n"
    text = said("diff", "--run", place.run, "@2", "@3")
    assert "--- a/notes.txt\n+++ b/notes.txt\n" in text
    assert "+line 2\n" in text
    changes = told("diff", "--run", place.run, "@1", "@2")["changes"]
    assert {each["path"]: each["kind"] for each in changes} == {"file 2": "added", "notes.txt": "changed"}


def test_a_run_goes_back_and_forth(place: Place) -> None:
    put(place.tree, "dirty", b"1")
    dirty = fingerprint(place.tree)
    printed = said("rewind", "--run", place.run, str(place.tree), "--to", "1", "--keep-snapshots-for", "30")
    assert "is at step 1, from 3" in printed
    assert "What was there before is snapshot" in printed
    assert fingerprint(place.tree) == place.files[0]
    assert "rewound" in said("list", "--run", place.run)
    done = told("redo", "--run", place.run)
    assert (done["rewind"]["status"], done["rewind"]["from_step"]) == ("redone", 3)
    assert fingerprint(place.tree) == dirty
    said("rewind", "--run", place.run, str(place.tree), "--to", "2", "--resume")
    with Holdfast("agents.db") as hf:
        run = hf.tenant("acme").runs.get(place.run)
        assert (run.status, run.iteration) == ("pending", 2)
        assert hf.tenant("acme").retention.policy(run_id=place.run).grace_s == 30 * 86_400


def test_a_snapshot_goes_out_and_comes_in(place: Place) -> None:
    assert "entries of snapshot" in said("export", "--run", place.run, "@2", "two.tar.zst")
    taken = told("import", "--run", place.run, "two.tar.zst", "--step", "9")
    assert taken["snapshot"]["kind"] == "imported"
    assert "Snapshot" in said("import", "--run", place.run, "two.tar.zst", "--outside-links")
    assert "written" in said("restore", taken["snapshot"]["id"], "out")
    assert fingerprint(place.folder / "out") == place.files[1]
    again = told("restore", "--run", place.run, "@3", "out", "--replace")
    assert again["written"] == 2
    assert fingerprint(place.folder / "out") == place.files[2]


def test_what_goes_wrong_is_one_line(place: Place) -> None:
    for arguments, reason in (
        (["diff", "--run", place.run, "@1", "@99"], "no snapshot of step 99"),
        (["diff", "--run", place.run, "@x", "@1"], "is no step"),
        (["rewind", "--run", place.run, str(place.tree), "--to", "99"], "no step 99"),
        (["redo", "--run", place.run], "no rewind led"),
        (["restore", "--run", place.run, "@1", str(place.tree)], "empty directory"),
        (["import", "--run", place.run, "agents.db"], "not an archive"),
    ):
        printed = said(*arguments, code=1)
        assert reason in printed
        assert printed.startswith("Error: ")
        assert printed.count("\n") == 1
    assert fingerprint(place.tree) == place.files[2]


def test_names_that_are_no_text_are_printed(place: Place) -> None:
    put(place.tree, b"\xff", b"1")
    os.mkfifo(os.fsencode(place.tree) + b"/\xfe")
    assert "left out: \\udcfe" in said("capture", "--run", place.run, str(place.tree))
    told("capture", "--run", place.run, str(place.tree), "--no-default-ignore")


def test_the_doctor_finishes_what_was_broken_off(place: Place) -> None:
    with Holdfast("agents.db") as hf:
        acme = hf.tenant("acme")
        snapshot = acme.snapshots.find(place.run, step=2)
        assert snapshot is not None
        acme.rewinds.begin(place.run, to_step=2, path=str(place.tree), snapshot=snapshot.id)
    done = CliRunner().invoke(root, ["doctor", "--repair"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert fingerprint(place.tree) == place.files[1]
    with Holdfast("agents.db") as hf:
        assert [*hf.tenant("acme").rewinds.pending()] == []
