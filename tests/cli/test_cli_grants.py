"""The commands that every grant store has, on the shares of agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, NewAgent
from holdfast.cli.commands import root
from holdfast.cli.grant_commands import add_grants
from tests.core.test_grants import AsyncMembers


@pytest.fixture(autouse=True)
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "agents.db")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", path)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    with Holdfast(path) as hf:
        for agent in ("helper", "writer"):
            hf.tenant("acme").agents.create(NewAgent(agent))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["agents", *arguments], env={"COLUMNS": "200"})


def shares(*arguments: str) -> list[tuple[str, str, str]]:
    page = json.loads(run("shares", "--json", *arguments).output)["agent_shares"]
    return [(row["agent"], row["user"], row["role"]) for row in page]


def test_a_grant_is_made_listed_from_both_sides_and_removed() -> None:
    made = run("share", "helper", "--user", "ada", "--role", "admin", "--as", "root", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["agent_share"]["granted_by"] == "root"
    for user in ("bob", "eve"):
        assert run("share", "helper", "--user", user).exit_code == 0
    run("share", "writer", "--user", "bob")
    assert shares("helper") == [("helper", "ada", "admin"), ("helper", "bob", "user"), ("helper", "eve", "user")]
    assert shares("--user", "bob") == [("helper", "bob", "user"), ("writer", "bob", "user")]
    first = json.loads(run("shares", "helper", "--limit", "2", "--json").output)
    assert shares("helper", "--cursor", first["next"]) == [("helper", "eve", "user")]
    assert "admin" in run("shares", "helper").output

    run("share", "helper", "--user", "ada", "--role", "operator")
    assert shares("--user", "ada") == [("helper", "ada", "operator")]
    assert json.loads(run("revoke-share", "helper", "--user", "ada", "--json").output) == {"revoked": True}
    again = run("revoke-share", "helper", "--user", "ada")
    assert (again.exit_code, "no agent share" in again.output) == (0, True)
    assert shares("--user", "ada") == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["share", "nothing", "--user", "ada"], 1),
        (["share", "helper"], 2),
        (["share", "helper", "--user", "ada", "--role", "owner"], 2),
        (["share", "helper", "--user", ""], 1),
        (["shares"], 2),
        (["shares", "helper", "--user", "ada"], 2),
        (["shares", "helper", "--cursor", "x"], 1),
        (["revoke-share", "helper"], 2),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(arguments: list[str], code: int) -> None:
    run("share", "helper", "--user", "bob")
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert shares("helper") == [("helper", "bob", "user")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grant", "red"], "--user or --agent"),
        (["grant", "red", "--user", "ada", "--agent", "helper"], "--user or --agent"),
        (["grant", "red", "--agent", "helper", "--role", "lead"], "role"),
        (["grants", "red"], "--kind"),
    ],
)
def test_grants_to_several_kinds_of_principals_are_told_apart(arguments: list[str], said: str) -> None:
    teams = click.Group("teams")
    add_grants(teams, "members", AsyncMembers)
    result: Any = CliRunner().invoke(teams, arguments)
    assert (result.exit_code, said in result.output) == (2, True), result.output
