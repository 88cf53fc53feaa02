"""Tools over /v1: commands are rendered and prepared there, and credentials never leave the server."""

from __future__ import annotations

from holdfast.encryption import MASK
from tests.api.v1 import V1Client

TOKEN = "s3cret-token-0123"
GREET = {
    "name": "greet",
    "command": "echo {{.name}}",
    "parameters": {"properties": {"name": {"type": "string"}}, "required": ["name"]},
    "env": {"TOKEN": TOKEN},
}


def test_a_custom_tool_is_rendered_without_its_credentials(v1: V1Client) -> None:
    v1.good("POST", "/agents", {"id": "ada"}, 201)
    made = v1.good("POST", "/custom-tools", GREET, 201)
    own = v1.good("POST", "/custom-tools", GREET | {"agent": "ada", "command": "printf %s {{.name}}"}, 201)
    assert (made["env"], own["agent"]) == (MASK, "ada")
    assert v1.good("GET", "/custom-tools/by-name/greet")["id"] == made["id"]
    assert v1.good("GET", "/custom-tools/by-name/greet?agent=ada")["id"] == own["id"]
    assert v1.good("GET", "/custom-tools/resolve/greet?agent=ada")["id"] == own["id"]
    assert [tool["id"] for tool in v1.good("GET", "/custom-tools/effective")["items"]] == [made["id"]]
    call = {"name": "greet", "arguments": {"name": "it's me"}, "agent": "ada"}
    answer = v1.ask("POST", "/custom-tools/render", call)
    assert (answer.status, answer.json["command"], answer.json["env"]) == (200, "printf %s 'it'\\''s me'", MASK)
    assert TOKEN.encode() not in answer.body
    v1.bad("POST", "/custom-tools/render", call | {"arguments": {"name": 7}})
    v1.bad("POST", "/custom-tools/render", call | {"name": "missing"}, 404)
    v1.bad("GET", "/custom-tools/effective?agent=missing", status=404)
    v1.bad("PATCH", f"/custom-tools/{made['id']}", {"command": "echo '{{.name}}'"})


def test_a_refused_command_is_forbidden_and_names_the_rule(v1: V1Client) -> None:
    made = v1.good(
        "POST", "/secure-cli", {"binary_name": "gh", "env": {"TOKEN": TOKEN}, "deny_args": [r"repo\s+delete"]}, 201
    )
    assert made["env"] == MASK
    answer = v1.ask("POST", "/secure-cli/prepare", {"command": "gh pr list"})
    assert (answer.status, answer.json["argv"], answer.json["env"]) == (200, ["gh", "pr", "list"], MASK)
    assert TOKEN.encode() not in answer.body
    for command in ("gh repo delete x", "gh x; ls", "./gh x"):
        refused = v1.ask("POST", "/secure-cli/prepare", {"command": command})
        assert (refused.status, refused.json["type"]) == (403, "CommandRefused")
    v1.bad("POST", "/secure-cli/prepare", {"command": "curl x"}, 404)
    v1.bad("POST", "/secure-cli", {"binary_name": "aws", "deny_args": ["("]})


def test_builtin_tools_are_seeded_over_http(v1: V1Client) -> None:
    tools = [{"name": "web", "settings": {"a": 1}}, {"name": "exec"}]
    assert v1.good("POST", "/builtin-tools/seed", {"tools": tools})["created"] == ["web", "exec"]
    v1.good("PATCH", "/builtin-tools/exec", {"is_enabled": False})
    v1.bad("PATCH", "/builtin-tools/exec", {"description": "x"})
    v1.bad("POST", "/builtin-tools/seed", {"tools": []})
    assert v1.good("POST", "/builtin-tools/seed", {"tools": tools[:1], "prune": True})["removed"] == ["exec"]
    assert v1.good("GET", "/builtin-tools/web/settings") == {"a": 1}
