"""``holdfast mcp``: servers with their tools, grants by the name of a server, and requests for access."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, NewAgent
from holdfast.cli.commands import root
from holdfast.encryption import new_key
from holdfast.types import NewMcpServer, NewMcpTool


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    key, path = new_key(), str(tmp_path / "agents.db")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", key)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", path)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    with Holdfast(path, encryption_key=key) as hf:
        acme = hf.tenant("acme")
        acme.agents.create(NewAgent("helper"))
        acme.mcp_servers.create(NewMcpServer("files", tools=[NewMcpTool("read", "Reads"), NewMcpTool("write")]))
        for kind in ("MCPServer", "RemoteMCPServer"):
            acme.mcp_servers.create(NewMcpServer("twice", kind))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["mcp", *arguments], env={"COLUMNS": "200"})


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_server_is_created_with_the_fields_of_its_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADERS", '{"Authorization": "s3cr3t"}')
    made = run("servers", "create", "--name", "issues", "--transport", "sse", "--url", "https://example.com")
    assert made.exit_code == 0, made.output
    changed = run("servers", "update", "issues", "--headers-env", "HEADERS", "--as", "ada")
    assert (changed.exit_code, "s3cr3t" in changed.output) == (0, False), changed.output
    assert run("servers", "update", "issues", "--transport", "stdio").exit_code == 1
    stdio = ["--transport", "stdio", "--command", "npx", "--args", '["-y"]', "--url", "", "--clear", "headers"]
    server = answer("servers", "update", "issues", *stdio)["mcp_server"]
    assert (server["transport"], server["args"], server["url"], server["headers"]) == ("stdio", ["-y"], "", None)
    deleted = answer("servers", "delete", "twice", "--kind", "MCPServer")["deleted"]
    assert answer("servers", "restore", *deleted)["mcp_server"]["kind"] == "MCPServer"


def test_tools_are_listed_for_all_servers_or_one() -> None:
    assert [tool["name"] for tool in answer("tools")["tools"]] == ["read", "write"]
    assert [tool["name"] for tool in answer("tools", "files", "--limit", "1")["tools"]] == ["read"]
    by_id = answer("servers", "show", "files")["mcp_server"]["id"]
    assert len(answer("tools", by_id)["tools"]) == 2
    assert "Reads" in run("tools").output


def test_a_server_is_granted_by_its_name() -> None:
    granted = answer("grants", "grant", "files", "--agent", "helper", "--tool-deny", "write", "--as", "root")
    assert granted["mcp_agent_grant"]["granted_by"] == "root"
    answer("grants", "grant", "files", "--user", "ada", "--tool-allow", "read", "--tool-allow", "write")
    (access,) = answer("access", "helper", "--user", "ada")["access"]
    assert (access["server"]["name"], access["tool_allow"], access["tool_deny"]) == (
        "files",
        ["read", "write"],
        ["write"],
    )
    assert answer("access", "helper")["access"][0]["tool_allow"] is None
    assert "read, write" in run("access", "helper", "--user", "ada").output
    assert len(answer("grants", "list", "files", "--kind", "user")["mcp_user_grants"]) == 1
    assert len(answer("grants", "list", "--agent", "helper")["mcp_agent_grants"]) == 1
    answer("grants", "grant", "files", "--user", "ada", "--no-enabled")
    assert answer("access", "helper", "--user", "ada")["access"] == []
    assert answer("grants", "revoke", "files", "--agent", "helper") == {"revoked": True}
    assert answer("access", "helper")["access"] == []


def test_a_request_is_made_and_reviewed() -> None:
    made = answer("requests", "create", "files", "--agent", "helper", "--tool", "read", "--reason", "r", "--as", "eve")
    request = made["request"]
    assert (request["status"], request["requested_by"], request["tool_allow"]) == ("pending", "eve", ["read"])
    other = answer("requests", "create", "files", "--user", "ada")["request"]
    gone = answer("requests", "create", "files", "--user", "bob")["request"]
    assert [row["id"] for row in answer("requests", "list", "--server", "files")["requests"]] == [
        request["id"],
        other["id"],
        gone["id"],
    ]
    approved = answer("requests", "approve", request["id"], "--note", "fine", "--as", "root")["request"]
    assert (approved["status"], approved["reviewed_by"], approved["review_note"]) == ("approved", "root", "fine")
    assert answer("access", "helper")["access"][0]["tool_allow"] == ["read"]
    assert answer("requests", "reject", other["id"])["request"]["status"] == "rejected"
    assert answer("requests", "cancel", gone["id"])["request"]["status"] == "cancelled"
    assert answer("requests", "list")["requests"] == []
    assert answer("requests", "show", other["id"])["request"]["status"] == "rejected"
    again = run("requests", "approve", other["id"])
    assert (again.exit_code, "rejected" in again.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["servers", "create", "--name", "x", "--transport", "stdio"], 1),
        (["servers", "create", "--name", "x", "--transport", "tcp"], 2),
        (["tools", "missing"], 1),
        (["grants", "grant", "missing", "--agent", "helper"], 1),
        (["grants", "grant", "twice", "--agent", "helper"], 2),
        (["grants", "grant", "files", "--agent", "missing"], 1),
        (["grants", "grant", "files"], 2),
        (["requests", "create", "files"], 2),
        (["requests", "create", "files", "--agent", "helper", "--user", "ada"], 2),
        (["requests", "create", "01900000-0000-7000-8000-000000000000", "--user", "ada"], 1),
        (["requests", "show", "x"], 1),
        (["access", ""], 1),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(arguments: list[str], code: int) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.output.splitlines()[-1].startswith("Error: ")
    assert len(answer("servers", "list")["mcp_servers"]) == 3
    assert answer("grants", "list", "--agent", "helper")["mcp_agent_grants"] == []
    assert answer("requests", "list")["requests"] == []
