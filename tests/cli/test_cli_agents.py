"""``holdfast agents``: records, the default agent, and who may use an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.commands import root


@pytest.fixture(autouse=True)
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", str(tmp_path / "agents.db"))
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    assert CliRunner().invoke(root, ["migrate", "up"]).exit_code == 0


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["agents", *arguments], env={"COLUMNS": "200"})


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_an_agent_is_created_changed_deleted_and_restored() -> None:
    made = answer("create", "--id", "helper", "--display-name", "Helper", "--tag", "a", "--as", "ada")["agent"]
    assert (made["key"], made["owner"], made["tags"]) == ("helper", "ada", ["a"])
    changed = answer("update", "helper", "--key", "support", "--context-window", "9", "--tools-config", '{"x": 1}')
    assert changed["agent"]["tools_config"] == {"x": 1}
    assert answer("update", "support", "--clear", "context-window")["agent"]["context_window"] is None
    deleted = run("delete", "support")
    assert "restore helper" in deleted.output
    assert answer("list")["agents"] == []
    assert answer("restore", "helper")["agent"]["key"] == "support"
    assert run("update", "helper", "--context-window", "0").exit_code == 1


def test_access_is_explained() -> None:
    answer("create", "--id", "helper", "--owner", "ada")
    answer("create", "--id", "writer", "--owner", "ada")
    answer("update", "helper", "--key", "support")
    assert answer("access", "helper", "--user", "bob")["access"] == {"allowed": False, "role": None, "step": "share"}
    answer("share", "helper", "--user", "bob", "--role", "admin")
    assert answer("access", "helper", "--user", "bob")["access"] == {"allowed": True, "role": "admin", "step": "share"}
    assert "admin" in run("access", "support", "--user", "bob").output
    answer("share", "support", "--user", "eve")
    assert [share["agent"] for share in answer("shares", "support")["agent_shares"]] == ["helper", "helper"]
    assert answer("revoke-share", "support", "--user", "eve") == {"revoked": True}
    first = answer("accessible", "ada", "--limit", "1")
    rest = answer("accessible", "ada", "--cursor", first["next"])
    assert [agent["id"] for agent in first["agents"] + rest["agents"]] == ["helper", "writer"]
    assert "helper" in run("accessible", "bob").output


def test_the_default_moves_from_one_agent_to_another() -> None:
    for id in ("helper", "writer"):
        answer("create", "--id", id, "--default")
        assert [agent["id"] for agent in answer("list", "--default")["agents"]] == [id]
    assert answer("update", "helper", "--default")["agent"]["is_default"] is True
    answer("update", "helper", "--no-default")
    assert answer("list", "--default")["agents"] == []
