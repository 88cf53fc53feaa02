"""``holdfast tools``: what a tool renders, what a seed changes, which commands are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, NewAgent
from holdfast.cli.commands import root
from holdfast.encryption import MASK, new_key

TOKEN = "s3cret-token-0123"
SCHEMA = json.dumps({"properties": {"name": {"type": "string"}}, "required": ["name"]})


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, path = new_key(), str(tmp_path / "agents.db")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", key)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", path)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    monkeypatch.setenv("ENV", json.dumps({"TOKEN": TOKEN}))
    with Holdfast(path, encryption_key=key) as hf:
        hf.tenant("acme").agents.create(NewAgent("ada"))


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(root, ["tools", *arguments], env={"COLUMNS": "200"})
    assert TOKEN not in result.output
    return result


def read(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_custom_tool_is_created_and_rendered() -> None:
    for agent, command in (("", "echo {{.name}}"), ("ada", "printf %s {{.name}}")):
        read("custom", "create", "--name", "greet", "--command", command, "--parameters", SCHEMA, "--agent", agent,
             "--env-env", "ENV")  # fmt: skip
    arguments = ["--arguments", '{"name": "it\'s $HOME"}']
    assert run("custom", "render", "greet", *arguments).output == "echo 'it'\\''s $HOME'\n"
    rendered = read("custom", "render", "greet", *arguments, "--agent", "ada")["command"]
    assert (rendered["command"], rendered["env"]) == ("printf %s 'it'\\''s $HOME'", MASK)
    assert [tool["agent"] for tool in read("custom", "effective", "--agent", "ada")["custom_tools"]] == ["ada"]
    assert "greet" in run("custom", "effective").output
    assert read("custom", "show", "greet", "--of-agent", "ada")["custom_tool"]["agent"] == "ada"
    for wrong in (["render", "greet"], ["render", "missing"], ["effective", "--agent", "missing"]):
        result = run("custom", *wrong)
        assert (result.exit_code, result.output.startswith("Error: ")) == (1, True)


def test_builtin_tools_are_seeded_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": "web", "settings": {"engine": "a"}}, {"name": "exec"}]))
    assert read("builtin", "seed", str(file))["seeded"]["created"] == ["web", "exec"]
    assert run("builtin", "update", "exec", "--no-enabled").exit_code == 0
    file.write_text(json.dumps([{"name": "web", "description": "Searches"}]))
    assert run("builtin", "seed", str(file)).output == "0 created, 1 changed, 0 removed.\n"
    assert [tool["name"] for tool in read("builtin", "list", "--no-enabled")["builtin_tools"]] == ["exec"]
    assert read("builtin", "seed", str(file), "--prune")["seeded"]["removed"] == ["exec"]
    for content, code in (("[]", 1), ("{", 2), ('[{"names": 1}]', 2)):
        file.write_text(content)
        assert run("builtin", "seed", str(file)).exit_code == code
    assert [tool["settings"] for tool in read("builtin", "list")["builtin_tools"]] == [{"engine": "a"}]


def test_a_command_is_prepared_or_refused() -> None:
    created = read("cli", "create", "--binary-name", "gh", "--env-env", "ENV", "--deny-arg", r"repo\s+delete")
    assert created["cli_program"]["deny_args"] == [r"repo\s+delete"]
    assert run("cli", "prepare", "gh pr view 'a b'").output == "gh pr view 'a b'\n"
    prepared = read("cli", "prepare", "gh pr list", "--agent", "ada")["command"]
    assert prepared == {"env": MASK, "argv": ["gh", "pr", "list"], "timeout_seconds": 30}
    for command in ("gh repo delete x", "gh x; ls", "./gh x", "curl x", "gh 'x"):
        result = run("cli", "prepare", command)
        assert (result.exit_code, result.output.startswith("Error: ")) == (1, True)
    assert [row["binary_name"] for row in read("cli", "effective", "--agent", "ada")["cli_programs"]] == ["gh"]
