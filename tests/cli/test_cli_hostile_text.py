"""No command prints control characters of stored text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from holdfast import Holdfast, NewAgent, NewChannelInstance, NewMessage
from holdfast.cli.commands import root
from holdfast.encryption import Secret, new_key
from holdfast.types import NewCustomTool, NewMcpServer, NewMcpTool, NewSecureCLI
from tests.cli.commands import commands, is_inherited
from tests.cli.test_cli_checkpoints import state
from tests.workspaces.fingerprints import put

HOSTILE = "h\x1b]0;title\x07\x1b[2J\r\x9b31m\u202edrow\u2066\u2028\x85\tname\nFORGED line"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that must not be printed: everything that a terminal interprets, except newlines and tabs."""
NOT_COVERED = {
    "serve": "prints its address, and no stored text",
    "worker": "prints its name, and no stored text",
    "sim": "uses a database of its own",
    "import langgraph": "requires langgraph; it prints threads in a table",
    "migrate distribute": "requires a cluster",
    "secrets new-key": "prints a key, and no stored text",
    "secrets rotate": "requires a table with secrets; covered by test_cli_secrets.py",
}


class Setup(NamedTuple):
    """The ids of the objects in the database."""

    folder: Path
    session: str
    run: str
    key: str
    hold: str
    snapshots: list[str]
    codes: list[str]
    requests: list[str]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A directory with a database in which every text, including the names of files, contains control characters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "agents.db")
    monkeypatch.setenv("HOLDFAST_TENANT", HOSTILE)
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", new_key())
    monkeypatch.setenv("HOSTILE_VALUE", HOSTILE)
    with Holdfast("agents.db") as hf:
        tenant = hf.tenant(HOSTILE)
        session = tenant.sessions.create(key=HOSTILE, user=HOSTILE, agent=HOSTILE, metadata={HOSTILE: HOSTILE})
        tenant.messages.append_many(
            session.id, [NewMessage(role="user", content=f"word {HOSTILE} {number}") for number in range(12)]
        )
        tenant.branches.fork(session.id, label=HOSTILE)
        run = tenant.runs.start(session.id, agent=HOSTILE, metadata={HOSTILE: HOSTILE})
        claimed = tenant.leases.claim(HOSTILE, run_id=run.id)
        assert claimed is not None
        snapshots = []
        for step, content in ((1, b"one\n"), (2, HOSTILE.encode() + b"\n")):
            put(tmp_path / "tree", f"d {HOSTILE}/{HOSTILE}", content)
            put(tmp_path / "tree", f"only {step} {HOSTILE}", content)
            if step == 2:
                (tmp_path / "tree" / f"only 1 {HOSTILE}").unlink()
            snapshots.append(tenant.workspaces.capture(run.id, tmp_path / "tree", step=step).snapshot.id)
            tenant.runs.step(
                run.id,
                epoch=claimed.epoch,
                iteration=step,
                state={},
                messages=[NewMessage(role="assistant", content=HOSTILE)],
                snapshot=snapshots[-1],
                last_tool_result=HOSTILE,
            )
        tenant.leases.release(run.id, epoch=claimed.epoch)
        for id in ("1", f"2 {HOSTILE}"):
            written = state([f"{id} {HOSTILE}"], {f"{id} {HOSTILE}": HOSTILE})
            tenant.checkpoints.put(HOSTILE, id=id, user=HOSTILE, **written, metadata={HOSTILE: HOSTILE})
        tenant.agents.create(NewAgent(HOSTILE, display_name=HOSTILE))
        tenant.channels.create(
            NewChannelInstance(
                name=HOSTILE,
                channel_type=HOSTILE,
                agent=HOSTILE,
                credentials=Secret({HOSTILE: HOSTILE}),
                config={HOSTILE: HOSTILE},
            )
        )
        tool = NewMcpTool(HOSTILE, HOSTILE)
        server = tenant.mcp_servers.create(NewMcpServer(HOSTILE, transport="stdio", command=HOSTILE, tools=[tool]))
        requests = [
            tenant.mcp_requests.create(server.id, scope="user", user=HOSTILE, reason=HOSTILE, tool_allow=[HOSTILE])
            for _ in range(4)
        ]
        shown = {"name": HOSTILE, "description": HOSTILE, "parameters": {"properties": {HOSTILE: {"default": HOSTILE}}}}
        tenant.custom_tools.create(NewCustomTool(command=f"echo {HOSTILE}", **shown))  # type: ignore[arg-type]
        tenant.secure_cli.create(NewSecureCLI("gh", description=HOSTILE, deny_args=["denied"]))
        tenant.secrets.set(HOSTILE, Secret(HOSTILE.replace("\n", "")))  # the lines of a secret are printed
        codes = [tenant.pairing.request(sender, HOSTILE, account=HOSTILE).code for sender in (HOSTILE, f"2 {HOSTILE}")]
        hold = tenant.retention.hold(HOSTILE).id
        key = hf.api_keys.create(f"hf_{'a1' * 24}", name=HOSTILE, scopes=["read"], tenant=HOSTILE).id
    return Setup(tmp_path, session.id, run.id, key, hold, snapshots, codes, [request.id for request in requests])


def of_agents(setup: Setup) -> Iterator[list[str]]:
    """Yield the commands about agents and their users. The commands of all grant stores are the same code."""
    yield ["agents", "share", HOSTILE, "--user", HOSTILE]
    yield ["agents", "shares", HOSTILE]
    yield ["agents", "access", HOSTILE, "--user", HOSTILE]
    yield ["agents", "accessible", HOSTILE]
    yield ["agents", "revoke-share", HOSTILE, "--user", HOSTILE]
    yield ["profiles", "create", "--agent", HOSTILE, "--user", HOSTILE, "--workspace", HOSTILE]
    yield ["agents", "users", HOSTILE]
    yield ["agents", "messages", HOSTILE]
    (setup.folder / "soul.md").write_text(HOSTILE.replace("\n", ""))  # the lines of a file are printed
    for user in ([], ["--user", HOSTILE]):
        yield ["context-files", "set", "--agent", HOSTILE, "S.md", "--from", str(setup.folder / "soul.md"), *user]
    yield ["context-files", "list", "--agent", HOSTILE, "--user", HOSTILE]
    yield ["context-files", "show", "--agent", HOSTILE, "S.md"]
    yield ["context-files", "propagate", "--agent", HOSTILE, "S.md"]
    yield ["context-files", "seed", "--agent", HOSTILE, "--user", f"2 {HOSTILE}"]
    yield ["context-files", "delete", "--agent", HOSTILE, "S.md", "--user", HOSTILE, "--yes"]


def walk(setup: Setup) -> Iterator[list[str]]:
    """Yield every command with arguments that make it print as much as possible; commands that delete come last."""
    run, session, tree = ["--run", setup.run], ["--session", setup.session], str(setup.folder / "tree")
    thread = ["--thread", HOSTILE, "--user", HOSTILE]
    yield ["version"]
    yield ["completion", "--shell", "bash"]
    yield ["doctor"]
    yield ["keys", "list"]
    yield ["keys", "create", "--name", f"{HOSTILE} 2"]
    for name in ("list", "show", "diff"):
        yield ["checkpoints", name, *thread]
    yield from of_agents(setup)
    # The commands of all record stores are the same code.
    yield ["channels", "list"]
    yield ["channels", "show", HOSTILE]
    yield ["channels", "create", "--name", f"2 {HOSTILE}", "--channel-type", HOSTILE, "--agent", HOSTILE]
    yield ["channels", "update", HOSTILE, "--display-name", HOSTILE]
    yield ["channels", "reveal", HOSTILE]
    yield ["channels", "delete", HOSTILE, "--yes"]
    yield from walk_tools(setup.folder / "tools.json")
    yield from walk_mcp(setup)
    yield from walk_manifests(setup.folder / "manifests")
    yield ["secrets", "set", f"2 {HOSTILE}", "--value-env", "HOSTILE_VALUE"]
    yield ["secrets", "get", HOSTILE]
    yield ["secrets", "list"]
    yield ["secrets", "delete", HOSTILE, "--yes"]
    yield ["pairing", "list"]
    for name, code in zip(("approve", "deny"), setup.codes, strict=True):
        yield ["pairing", name, code]
    yield ["pairing", "devices"]
    yield ["pairing", "revoke", HOSTILE, HOSTILE]
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
    yield ["runs", "delete", *run, "--yes"]
    yield ["export", "--to", f"b{HOSTILE}"]
    yield ["import", "bundle", "--from", f"b{HOSTILE}", "--as", f"other {HOSTILE}"]
    yield ["import", "bundle", "--from", f"b{HOSTILE}", "--check"]
    yield ["checkpoints", "prune", *thread, "--keep", "0", "--yes"]
    yield ["retention", "release", "--hold", setup.hold, "--reason", HOSTILE]
    yield ["keys", "revoke", "--id", setup.key]
    yield ["sessions", "prune", "--idle-days", "0", "--archive-days", "0", "--yes"]
    yield ["migrate", "print", "--engine", "sqlite"]
    yield ["migrate", "adopt"]
    yield ["migrate", "down", "--to", "1", "--yes"]


def walk_tools(seed: Path) -> Iterator[list[str]]:
    """Yield the commands of tools."""
    seed.write_text(json.dumps([{"name": HOSTILE, "description": HOSTILE}]))
    yield ["tools", "builtin", "seed", str(seed)]
    yield ["tools", "custom", "effective", "--agent", HOSTILE]
    yield ["tools", "custom", "render", HOSTILE, "--arguments", json.dumps({HOSTILE: HOSTILE})]
    yield ["tools", "cli", "effective", "--agent", HOSTILE]
    yield ["tools", "cli", "prepare", f"gh {HOSTILE}", "--agent", HOSTILE]


def walk_mcp(setup: Setup) -> Iterator[list[str]]:
    """Yield the commands of MCP servers, grants and requests."""
    yield ["mcp", "tools"]
    yield ["mcp", "grants", "grant", HOSTILE, "--agent", HOSTILE, "--tool-allow", HOSTILE]
    yield ["mcp", "grants", "list", HOSTILE, "--kind", "agent"]
    yield ["mcp", "access", HOSTILE, "--user", HOSTILE]
    yield ["mcp", "grants", "revoke", HOSTILE, "--agent", HOSTILE]
    yield ["mcp", "requests", "create", HOSTILE, "--user", HOSTILE, "--reason", HOSTILE]
    yield ["mcp", "requests", "list"]
    for name, id in zip(("show", "approve", "reject", "cancel"), setup.requests, strict=True):
        yield ["mcp", "requests", name, id]


def walk_manifests(folder: Path) -> Iterator[list[str]]:
    """Yield ``apply`` with a manifest that is valid, and with one that is not."""
    folder.mkdir()
    model = {"apiVersion": "kagent.dev/v1alpha2", "kind": "ModelConfig", "metadata": {"name": "model"}}
    for name, provider in (("valid", "Ollama"), ("invalid", HOSTILE)):
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**model, "spec": {"provider": provider, "model": HOSTILE}}))
        yield ["apply", "--file", str(path)]


def test_no_command_prints_control_characters(setup: Setup) -> None:
    walked: set[str] = set()
    outputs: dict[str, str] = {}
    for arguments in walk(setup):
        name = " ".join(command_words(arguments))
        as_json = [] if name in ("version", "completion", "migrate print") else ["--json"]
        for more in ([], as_json) if as_json else ([],):
            result = CliRunner().invoke(root, [*arguments, *more])
            output = result.stdout + result.stderr
            assert RAW.findall(output) == [], (arguments, output)
            assert "\nFORGED" not in output, (arguments, output)
            assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
            outputs.setdefault(name, "")
            outputs[name] += output
        walked.add(name)
    every = {
        " ".join(path)
        for path, entry in commands(root)
        if not isinstance(entry, click.Group) and (path[0] == "channels" or not is_inherited(root, path))
    }
    assert every - walked == set(NOT_COVERED)
    for name in (
        "sessions list",
        "runs show",
        "keys list",
        "retention holds",
        "checkpoints diff",
        "workspace diff",
        "tools custom render",
    ):
        assert "FORGED" in outputs[name], "the stored text is printed"


def command_words(arguments: list[str]) -> list[str]:
    """Return the words of a command without its arguments."""
    if arguments[0] in ("version", "completion", "doctor", "export", "apply"):
        return arguments[:1]
    if arguments[0] == "tools" or arguments[1] in ("grants", "requests"):
        return arguments[:3]
    return arguments[:2]


def test_an_error_with_hostile_text_is_one_escaped_line(setup: Setup) -> None:
    result = CliRunner().invoke(root, ["sessions", "show", "--session", f"none {HOSTILE}"])
    assert result.exit_code == 1
    assert RAW.findall(result.stderr) == []
    assert len(result.stderr.strip().split("\n")) == 1


def test_only_the_output_module_prints() -> None:
    folder = Path(__file__).parents[2] / "src" / "holdfast" / "cli"
    printing_modules = [
        file.name for file in folder.glob("*.py") if re.search(r"click\.s?echo|\bprint\(", file.read_text())
    ]
    assert printing_modules == ["output.py"]
