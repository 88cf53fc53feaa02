"""``holdfast keys`` and shell completion."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.commands import root
from holdfast.errors import Forbidden
from tests.errors import raises

KEY = re.compile(r"hf_[0-9a-f]{48}")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, [*arguments], env={"COLUMNS": "200"})


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "agents.db")


def test_a_key_is_shown_once_and_has_the_requested_scopes(database: str) -> None:
    made = run(
        "keys",
        "create",
        "--database",
        database,
        "--name",
        "ci",
        "--tenant",
        "acme",
        "--scope",
        "runs:read",
        "--days",
        "3",
    )
    assert made.exit_code == 0, made.output
    (key,) = KEY.findall(made.output)
    with Holdfast(database) as hf:
        kept = hf.api_keys.verify(key)
    assert (kept.name, kept.tenant, kept.scopes) == ("ci", "acme", ["runs:read"])
    assert kept.expires_at is not None
    assert (kept.expires_at - kept.created_at).days in (2, 3)
    listed = run("keys", "list", "--database", database)
    assert kept.id in listed.output
    assert "never" in listed.output
    assert not KEY.findall(listed.output)


def test_a_revoked_key_is_rejected(database: str) -> None:
    made = json.loads(run("keys", "create", "--database", database, "--name", "ci", "--json").output)
    assert (made["kept"]["tenant"], made["kept"]["scopes"]) == ("", ["read", "write"])
    result = run("keys", "revoke", "--database", database, "--id", made["kept"]["id"])
    assert "is revoked" in result.output
    with Holdfast(database) as hf, raises(Forbidden, reason="revoked"):
        hf.api_keys.verify(made["key"])
    assert "revoked" in run("keys", "list", "--database", database).output
    assert json.loads(run("keys", "list", "--database", database, "--tenant", "acme", "--json").output) == {"keys": []}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "--name", "x", "--scope", "everything"], "everything"),
        (["create", "--name", ""], "name"),
        (["revoke", "--id", "00000000-0000-7000-8000-000000000000"], "00000000-0000-7000-8000-000000000000"),
        (["revoke", "--id", "x"], "'x'"),
    ],
)
def test_errors_are_one_line(arguments: list[str], says: str, database: str) -> None:
    Holdfast(database).close()
    failed = run("keys", arguments[0], "--database", database, *arguments[1:])
    assert failed.exit_code == 1
    assert says in failed.output
    assert len(failed.output.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_valid(shell: str, tmp_path: Path) -> None:
    printed = run("completion", "--shell", shell)
    assert printed.exit_code == 0
    assert "_HOLDFAST_COMPLETE" in printed.output
    program = shutil.which(shell)
    if program is not None:
        (tmp_path / "script").write_text(printed.output)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_commands_and_options_are_completed() -> None:
    environment = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast keys cr", "COMP_CWORD": "2"}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        result = CliRunner().invoke(root, [], prog_name="holdfast", complete_var="_HOLDFAST_COMPLETE")
    assert result.output.strip() == "plain,create"
