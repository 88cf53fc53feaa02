"""Whatever is stored, no command hands a terminal anything but text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from holdfast import Holdfast, NewMessage
from holdfast.cli.commands import root
from tests.cli.commands import commands
from tests.cli.test_cli_checkpoints import state
from tests.workspaces.fingerprints import put

HOSTILE = "h\x1b]0;title\x07\x1b[2J\r\x9b31m\u202edrow\u2066\u2028\x85\tname\nFORGED line"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What must not be printed: everything that steers a terminal, except ends of lines and tabs."""
NOT_WALKED = {
    "serve": "prints where it listens, and nothing that is stored",
    "worker": "prints who it is, and nothing that is stored",
    "sim": "makes a database of its own",
    "import langgraph": "needs langgraph; what it prints of threads goes through a table",
    "migrate distribute": "needs a cluster",
    "secrets new-key": "prints a key, and nothing that is stored",
    "secrets rotate": "needs a table with secrets; test_cli_secrets.py has one",
}


class Place(NamedTuple):
    """What is in the database, by its ids."""

    folder: Path
    session: str
    run: str
    key: str
    hold: str
    snapshots: list[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A folder with a database in which every text is hostile, the names of files too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "agents.db")
    monkeypatch.setenv("HOLDFAST_TENANT", HOSTILE)
    with Holdfast("agents.db") as hf:
        there = hf.tenant(HOSTILE)
        session = there.sessions.create(key=HOSTILE, user=HOSTILE, agent=HOSTILE, metadata={HOSTILE: HOSTILE})
        there.messages.append_many(
            session.id, [NewMessage(role="user", content=f"word {HOSTILE} {number}") for number in range(12)]
        )
        there.branches.fork(session.id, label=HOSTILE)
        run = there.runs.start(session.id, agent=HOSTILE, metadata={HOSTILE: HOSTILE})
        claimed = there.leases.claim(HOSTILE, run_id=run.id)
        assert claimed is not None
        snapshots = []
        for step, content in ((1, b"one\n"), (2, HOSTILE.encode() + b"\n")):
            put(tmp_path / "tree", f"d {HOSTILE}/{HOSTILE}", content)
            put(tmp_path / "tree", f"only {step} {HOSTILE}", content)
            if step == 2:
                (tmp_path / "tree" / f"only 1 {HOSTILE}").unlink()
            snapshots.append(there.workspaces.capture(run.id, tmp_path / "tree", step=step).snapshot.id)
            there.runs.step(
                run.id,
                epoch=claimed.epoch,
                iteration=step,
                state={},
                messages=[NewMessage(role="assistant", content=HOSTILE)],
                snapshot=snapshots[-1],
                last_tool_result=HOSTILE,
            )
        there.leases.release(run.id, epoch=claimed.epoch)
        for id in ("1", f"2 {HOSTILE}"):
            written = state([f"{id} {HOSTILE}"], {f"{id} {HOSTILE}": HOSTILE})
            there.checkpoints.put(HOSTILE, id=id, user=HOSTILE, **written, metadata={HOSTILE: HOSTILE})
        hold = there.retention.hold(HOSTILE).id
        key = hf.api_keys.create(f"hf_{'a1' * 24}", name=HOSTILE, scopes=["read"], tenant=HOSTILE).id
    return Place(tmp_path, session.id, run.id, key, hold, snapshots)


def walk(place: Place) -> Iterator[list[str]]:
    """Every command with arguments that make it print as much as it can; those that remove something come last."""
    run, session, tree = ["--run", place.run], ["--session", place.session], str(place.folder / "tree")
    thread = ["--thread", HOSTILE, "--user", HOSTILE]
    yield ["version"]
    yield ["completion", "--shell", "bash"]
    yield ["doctor"]
    yield ["keys", "list"]
    yield ["keys", "create", "--name", f"{HOSTILE} 2"]
    for name in ("list", "show", "diff"):
        yield ["checkpoints", name, *thread]
    yield ["migrate", "status"]
    yield ["migrate", "up"]
    for name in ("hold", "holds", "plan", "policy", "run"):
        yield ["retention", name, *(["--reason", HOSTILE] if name == "hold" else [])]
    yield ["sessions", "list"]
    yield ["sessions", "show", *session]
    yield ["sessions", "search", "--query", "word"]
    yield ["sessions", "index"]
    yield ["sessions", "fork", *session, "--label", HOSTILE]
    yield ["sessions", "compact", *session, "--plan"]
    yield ["sessions", "compact", *session, "--summary", HOSTILE, "--target", "10", "--keep-last", "1"]
    yield ["sessions", "rollback", *session]
    yield ["runs", "list"]
    yield ["runs", "show", *run]
    yield ["workspace", "list", *run]
    yield ["workspace", "diff", *run, "@1", "@2"]
    yield ["workspace", "diff", *run, "@1", "@2", "--stat"]
    yield ["workspace", "capture", *run, tree]
    yield ["workspace", "export", *run, "@1", f"x{HOSTILE}", "--force"]
    yield ["workspace", "import", *run, f"x{HOSTILE}"]
    yield ["workspace", "restore", *run, "@1", f"out {HOSTILE}", "--replace"]
    yield ["workspace", "rewind", *run, tree, "--to", "1"]
    yield ["workspace", "redo", *run]
    yield ["runs", "resume", *run]
    yield ["runs", "cancel", *run, "--reason", HOSTILE]
    yield ["export", "--to", f"b{HOSTILE}"]
    yield ["import", "bundle", "--from", f"b{HOSTILE}", "--as", f"other {HOSTILE}"]
    yield ["import", "bundle", "--from", f"b{HOSTILE}", "--check"]
    yield ["checkpoints", "prune", *thread, "--keep", "0", "--yes"]
    yield ["retention", "release", "--hold", place.hold, "--reason", HOSTILE]
    yield ["keys", "revoke", "--id", place.key]
    yield ["sessions", "prune", "--idle-days", "0", "--archive-days", "0", "--yes"]
    yield ["migrate", "print", "--engine", "sqlite"]
    yield ["migrate", "adopt"]
    yield ["migrate", "down", "--to", "1", "--yes"]


def test_no_command_prints_what_steers_a_terminal(place: Place) -> None:
    walked: set[str] = set()
    said: dict[str, str] = {}
    for arguments in walk(place):
        name = " ".join(takewhile_words(arguments))
        as_json = [] if name in ("version", "completion", "migrate print") else ["--json"]
        for more in ([], as_json) if as_json else ([],):
            done = CliRunner().invoke(root, [*arguments, *more])
            output = done.stdout + done.stderr
            assert RAW.findall(output) == [], (arguments, output)
            assert "\nFORGED" not in output, (arguments, output)
            assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
            said.setdefault(name, "")
            said[name] += output
        walked.add(name)
    every = {" ".join(path) for path, each in commands(root) if not isinstance(each, click.Group)}
    assert every - walked == set(NOT_WALKED)
    for name in ("sessions list", "runs show", "keys list", "retention holds", "checkpoints diff", "workspace diff"):
        assert "FORGED" in said[name], "what is stored is shown"


def takewhile_words(arguments: list[str]) -> list[str]:
    """The words of a command, without its arguments."""
    return arguments[:1] if arguments[0] in ("version", "completion", "doctor", "export") else arguments[:2]


def test_an_error_about_stored_text_is_one_line_of_text(place: Place) -> None:
    done = CliRunner().invoke(root, ["sessions", "show", "--session", f"none {HOSTILE}"])
    assert done.exit_code == 1
    assert RAW.findall(done.stderr) == []
    assert len(done.stderr.strip().split("\n")) == 1


def test_commands_print_through_one_place_only() -> None:
    folder = Path(__file__).parents[2] / "src" / "holdfast" / "cli"
    found = [file.name for file in folder.glob("*.py") if re.search(r"click\.s?echo|\bprint\(", file.read_text())]
    assert found == ["output.py"]
