"""The commands that every record store has, on channel instances."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, NewAgent
from holdfast.cli.commands import root
from holdfast.encryption import new_key


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    key, path = new_key(), str(tmp_path / "agents.db")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", key)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", path)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    with Holdfast(path, encryption_key=key) as hf:
        hf.tenant("acme").agents.create(NewAgent("helper", display_name="Helper"))
    return path


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(root, ["channels", *arguments], input=input, env={"COLUMNS": "200"})


def create(name: str, *more: str, input: str | None = None) -> Result:
    return run("create", "--name", name, "--channel-type", "telegram", "--agent", "helper", *more, input=input)


def rows(*arguments: str) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(run("list", "--json", *arguments).output)["channel_instances"]
    return listed


def test_a_record_is_created_shown_changed_and_deleted(database: str) -> None:
    created = create("support", "--config", '{"greeting": "Hello"}', "--no-enabled", "--json")
    assert created.exit_code == 0, created.output
    row = json.loads(created.output)["channel_instance"]
    assert (row["name"], row["config"], row["is_enabled"]) == ("support", {"greeting": "Hello"}, False)

    assert json.loads(run("show", "support", "--json").output)["channel_instance"]["id"] == row["id"]
    assert "greeting" in run("show", row["id"]).output

    changed = run("update", "support", "--enabled", "--display-name", "Support", "--json")
    assert json.loads(changed.output)["channel_instance"]["display_name"] == "Support"
    stale = run("update", "support", "--display-name", "Help", "--version", "1")
    assert (stale.exit_code, "version 2" in stale.output) == (1, True)

    refused = run("delete", "support", input="n\n")
    assert (refused.exit_code, len(rows())) == (1, 1)
    assert run("delete", "support", "--yes").exit_code == 0
    assert rows() == []


def test_a_list_is_filtered_searched_and_paged(database: str) -> None:
    for name in ("a", "b", "c"):
        create(name, *(["--no-enabled"] if name == "b" else []))
    assert [row["name"] for row in rows("--enabled")] == ["a", "c"]
    assert [row["name"] for row in rows("--search", "B")] == ["b"]
    first = json.loads(run("list", "--limit", "2", "--json").output)
    assert [row["name"] for row in rows("--cursor", first["next"])] == ["c"]
    assert "telegram" in run("list").output


def test_a_secret_comes_from_a_file_or_a_variable_and_is_not_shown(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token.json").write_text('{"token": "s3cr3t"}\n')
    monkeypatch.setenv("TOKEN", '{"token": "s3cr3t"}')
    outputs = [
        create("file", "--credentials-file", str(tmp_path / "token.json")),
        create("input", "--credentials-file", "-", input='{"token": "s3cr3t"}'),
        create("variable", "--credentials-env", "TOKEN"),
        run("list", "--json"),
        run("show", "file"),
    ]
    assert [result.exit_code for result in outputs] == [0] * len(outputs)
    assert not any("s3cr3t" in result.output for result in outputs)
    with Holdfast(database, encryption_key=_key()) as hf:
        revealed = [channel.credentials.reveal() for channel in hf.tenant("acme").channels.list()]  # type: ignore[union-attr]
    assert revealed == [{"token": "s3cr3t"}] * 3

    assert run("update", "file", "--clear", "credentials").exit_code == 0
    assert json.loads(run("show", "file", "--json").output)["channel_instance"]["credentials"] is None


def test_the_user_of_a_change_is_logged(database: str) -> None:
    create("support", "--as", "ada")
    with Holdfast(database) as hf:
        (entry,) = hf.tenant("acme").activity.list(action="channel_instance.created")
    assert (entry.actor_type, entry.actor) == ("user", "ada")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nothing"], 1),
        (["update", "nothing", "--enabled"], 1),
        (["delete", "nothing", "--yes"], 1),
        (["update", "support"], 2),
        (["update", "support", "--config", "{"], 2),
        (["update", "support", "--config", "@missing.json"], 2),
        (["update", "support", "--credentials-env", "MISSING_VARIABLE"], 2),
        (["update", "support", "--credentials-env", "HOLDFAST_TENANT"], 2),
        (["update", "support", "--credentials-env", "HOME", "--credentials-file", "-"], 2),
        (["update", "support", "--credentials-env", "HOME", "--clear", "credentials"], 2),
        (["list", "--cursor", "x"], 1),
        (["create", "--name", "other", "--channel-type", "telegram", "--agent", "nobody"], 1),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(arguments: list[str], code: int, database: str) -> None:
    create("support")
    before = rows()
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.output.splitlines()[-1].startswith("Error: ")
    assert rows() == before


def _key() -> str:
    return os.environ["HOLDFAST_ENCRYPTION_KEY"]
