"""``holdfast context-files``, the users and messages of agents, and ``holdfast runs delete``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, NewAgent
from holdfast.cli.commands import root


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "agents.db")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", path)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    with Holdfast(path) as hf:
        hf.tenant("acme").agents.create(NewAgent("bot", agent_type="predefined"))
    return path


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(root, arguments, input=input, env={"COLUMNS": "200"})


def output(*arguments: str, input: str | None = None) -> Any:
    """Return the JSON that a successful command prints."""
    result = run(*arguments, "--json", input=input)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_files_are_written_shown_copied_and_deleted(database: str, tmp_path: Path) -> None:
    (tmp_path / "soul.md").write_text("be kind\nand brief")
    soul = ("--agent", "bot", "SOUL.md")
    written = output("context-files", "set", *soul, "--from", str(tmp_path / "soul.md"), "--as", "boss")
    assert written["context_file"]["version"] == 1
    assert run("context-files", "show", *soul, "--user", "u1").output == "be kind\nand brief\n"
    stale = run("context-files", "set", *soul, "--from", "-", "--version", "7", input="x")
    refused = run("context-files", "set", *soul, "--from", "-", "--user", "u1", input="x")
    assert (stale.exit_code, "version 1" in stale.output) == (1, True)
    assert (refused.exit_code, "agent level" in refused.output) == (1, True)
    output("context-files", "set", "--agent", "bot", "USER.md", "--from", "-", input="template")
    assert "USER.md" in run("context-files", "seed", "--agent", "bot", "--user", "u1").output
    output("context-files", "set", "--agent", "bot", "USER.md", "--from", "-", input="new")
    assert output("context-files", "propagate", "--agent", "bot", "USER.md") == {"copies": 1}
    listed = output("context-files", "list", "--agent", "bot", "--user", "u1")["context_files"]
    assert [(file["file_name"], file["user"]) for file in listed] == [("SOUL.md", ""), ("USER.md", "u1")]
    assert "SOUL.md" in run("context-files", "list", "--agent", "bot").output
    assert run("context-files", "delete", *soul, input="n\n").exit_code == 1
    assert run("context-files", "delete", *soul, "--yes").exit_code == 0
    assert run("context-files", "show", *soul).exit_code == 1
    with Holdfast(database) as hf:
        (created,) = hf.tenant("acme").activity.list(subject_id="bot/SOUL.md", action="context_file.created")
    assert created.actor == "boss"


def test_users_overrides_and_messages_of_an_agent_are_listed(database: str) -> None:
    with Holdfast(database) as hf:
        acme = hf.tenant("acme")
        acme.profiles.get_or_create("bot", "u1", workspace="/ws")
        for number in range(3):
            session = acme.sessions.create(agent="bot")
            acme.messages.append(session.id, role="user", content=f"number {number}")
    assert output("profiles", "show", "bot", "--user", "u1")["profile"]["workspace"] == "/ws"
    (user,) = output("agents", "users", "bot")["users"]
    assert (user["profile"]["user"], user["file_count"]) == ("u1", 0)
    assert "/ws" in run("agents", "users", "bot").output
    override = ("--user", "u1", "--model", "small")
    assert output("agent-overrides", "create", "--agent", "bot", *override)["agent_override"]["model"] == "small"
    first = output("agents", "messages", "bot", "--limit", "2")
    rest = output("agents", "messages", "bot", "--cursor", first["next"])
    contents = [message["content"][0]["text"] for message in (*first["messages"], *rest["messages"])]
    assert contents == ["number 2", "number 1", "number 0"]
    assert output("agents", "messages", "bot", "--since", "2199-01-01T00:00:00+00:00")["messages"] == []
    assert "number 1" in run("agents", "messages", "bot").output
    assert run("agents", "messages", "bot", "--since", "yesterday").exit_code == 2


def test_a_run_is_deleted_after_a_confirmation(database: str) -> None:
    with Holdfast(database) as hf:
        acme = hf.tenant("acme")
        id = acme.runs.start(acme.sessions.create().id).id
    assert "pending" in run("runs", "delete", "--run", id, "--yes").output
    assert run("runs", "cancel", "--run", id).exit_code == 0
    assert run("runs", "delete", "--run", id, input="n\n").exit_code == 1
    assert output("runs", "delete", "--run", id, "--yes") == {"deleted": id}
    assert output("runs", "list")["runs"] == []
