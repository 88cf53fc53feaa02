"""``holdfast apply``: differences for people and programs, errors in one line, and stopping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.encryption import new_key
from tests.declared.manifests import FULL, SECRET, agent, manifest, write

KEY = new_key()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Holdfast(str(tmp_path / "holdfast.db"), encryption_key=KEY) as hf:
        hf.tenant("acme").sessions.create()
    (tmp_path / "manifests").mkdir()
    return tmp_path


def command(place: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *arguments, "--database", str(place / "holdfast.db"), "--tenant", "acme"]


def environment(place: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_ENCRYPTION_KEY": KEY,
        "OPENAI_API_KEY": SECRET,
        "HOME": str(place),
        "KUBECONFIG": "",
    }


def run(place: Path, *arguments: str, fails: int = 0) -> str:
    """Run a command and return what it prints, or its error."""
    done = subprocess.run(
        command(place, *arguments), check=False, env=environment(place), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == fails, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def apply(place: Path, *arguments: str, fails: int = 0) -> str:
    return run(place, "apply", "-f", str(place / "manifests"), *arguments, fails=fails)


def model(**fields: Any) -> dict[str, Any]:
    return manifest("ModelConfig", "m", {"model": "gpt", "apiKeySecret": "env:OPENAI_API_KEY", **fields})


def test_the_difference_is_shown_and_applied(place: Path) -> None:
    write(place / "manifests" / "all.yaml", agent("a"), model(defaultHeaders={"Authorization": SECRET}))
    planned = apply(place, "--dry-run")
    assert (
        apply(place, "--as", "ada").splitlines()[:2]
        == planned.splitlines()[:2]
        == [
            "+ ModelConfig/kagent/m created",
            "+ Agent/kagent/a created",
        ]
    )
    assert apply(place) == "0 of 2 resources changed.\n"
    assert run(place, "declared", "list").count("ada") == 2
    write(
        place / "manifests" / "all.yaml",
        agent("a", "Be helpful.\nBut not \x1b[2J too much."),
        model(defaultHeaders={"Authorization": f"{SECRET}2"}),
    )
    assert apply(place, "--prune") == (
        "~ ModelConfig/kagent/m changed\n"
        "    spec.defaultHeaders.Authorization: the secret is another\n"
        "~ Agent/kagent/a changed\n"
        '    spec.declarative.systemMessage: "Be helpful." -> "Be helpful.\\\\nBut not \\\\u001b[2J too much."\n'
        "2 of 2 resources changed.\n"
    ).replace("\\\\", "\\")
    with Holdfast(str(place / "holdfast.db"), encryption_key=KEY) as hf:
        hf.tenant("acme").sessions.create(agent="kagent__NS__a")
    write(place / "manifests" / "all.yaml", model(defaultHeaders={"Authorization": f"{SECRET}2"}))
    assert apply(place).startswith("0 of 1")
    assert apply(place, "--prune") == (
        "- Agent/kagent/a pruned; still referring to it: 1 sessions\n1 of 2 resources changed.\n"
    )


def test_json_is_for_programs(place: Path) -> None:
    write(place / "manifests" / "all.yaml", agent("a"))
    apply(place)
    write(place / "manifests" / "all.yaml", agent("a", "Be brief."))
    (change,) = json.loads(apply(place, "--json", "--dry-run"))["changes"]
    assert (change["ref"], change["action"]) == ("Agent/kagent/a", "changed")
    assert change["fields"] == [
        {"path": "spec.declarative.systemMessage", "before": "Be helpful.", "after": "Be brief."}
    ]


def test_the_end_of_a_long_text_is_shown_if_only_that_differs(place: Path) -> None:
    write(place / "manifests" / "all.yaml", agent("a", "x" * 500 + " old end"))
    apply(place)
    write(place / "manifests" / "all.yaml", agent("a", "x" * 500 + " new end"))
    assert "old end" in apply(place, "--dry-run")


def test_an_invalid_manifest_is_one_line_with_its_place(place: Path) -> None:
    write(place / "manifests" / "all.yaml", agent("a"), agent("b", tools=[{"type": "Typo"}]))
    error = apply(place, fails=1)
    assert error.count("\n") == 1
    assert f"{place / 'manifests' / 'all.yaml'}, document 2, spec.declarative.tools[0].type:" in error
    with Holdfast(str(place / "holdfast.db"), encryption_key=KEY) as hf:
        assert hf.tenant("acme").agents.count() == 0


def test_a_source_is_named_and_taken_over(place: Path) -> None:
    write(place / "manifests" / "all.yaml", agent("a"))
    apply(place, "--source", "team-1")
    assert "team-1" in apply(place, fails=1)
    assert apply(place, "--take-over").startswith("~ Agent/kagent/a changed")


def test_secrets_of_a_mounted_folder(place: Path) -> None:
    (place / "mounted" / "openai").mkdir(parents=True)
    (place / "mounted" / "openai" / "key").write_text(SECRET)
    spec = {"model": "gpt", "apiKeySecret": "openai", "apiKeySecretKey": "key"}
    write(place / "manifests" / "all.yaml", manifest("ModelConfig", "m", spec))
    assert "Secret kagent/openai" in apply(place, fails=1)
    apply(place, "--secrets", str(place / "mounted"))
    with Holdfast(str(place / "holdfast.db"), encryption_key=KEY) as hf:
        acme = hf.tenant("acme")
        (provider,) = acme.providers.list()
        assert acme.providers.reveal(provider.id)["api_key"] == SECRET


def test_no_secret_is_stored_or_printed_in_plain(place: Path) -> None:
    """Secrets at every path of every kind, and behind every reference, are only in the files that they come from."""
    referred = "r3ferred-value"
    for path in ("keys/token", "other/keys/token", "config/region"):
        (place / "mounted" / path).parent.mkdir(parents=True, exist_ok=True)
        (place / "mounted" / path).write_text(referred)
    write(place / "manifests" / "all.yaml", *FULL)
    options = ["--secrets", str(place / "mounted")]
    for arguments in (["--dry-run"], ["--json"], [], ["--prune", "--json"]):
        assert referred not in apply(place, *options, *arguments)
    (place / "mounted" / "keys" / "token").write_text(f"{referred}2")
    write(place / "manifests" / "all.yaml", *FULL[1:])
    done = subprocess.run(
        command(place, "apply", "-f", str(place / "manifests"), "--prune", *options),
        check=True, env={**environment(place), "HOLDFAST_DEBUG": "1"}, capture_output=True, timeout=120,
    )  # fmt: skip
    written = [path.read_bytes() for path in place.glob("holdfast.db*")]
    assert written
    for data in (done.stdout, done.stderr, *written):
        for secret in (SECRET, referred):
            plain = secret.encode()
            for form in (plain, plain[::-1], plain.hex().encode(), b64encode(plain)[:-4], secret.encode("utf-16-le")):
                assert form not in data
    with Holdfast(str(place / "holdfast.db"), encryption_key=KEY) as hf:
        acme = hf.tenant("acme")
        assert SECRET not in str(
            [acme.activity.list(), acme.declared.list(), acme.agents.list(), acme.providers.list()]
        )
        assert acme.declared.reveal("MCPServer/kagent/stdio")["secrets"]["deployment/env/TOKEN"] == SECRET


def test_one_place_to_read_from_must_be_given(place: Path) -> None:
    for arguments in ([], ["-f", str(place), "--kubernetes"], ["--watch", str(place), "--kubernetes"]):
        assert "one of --file, --watch and --kubernetes" in run(place, "apply", *arguments, fails=2)


def test_without_its_client_a_cluster_cannot_be_read(place: Path) -> None:
    assert "pip install 'holdfast[kubernetes]'" in run(place, "apply", "--kubernetes", fails=1)


def test_a_watched_folder_is_applied_until_the_command_is_stopped(place: Path) -> None:
    write(place / "manifests" / "all.yaml", agent("a"))
    arguments = command(place, "apply", "--watch", str(place / "manifests"), "--json")
    with subprocess.Popen(arguments, env=environment(place), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def until(ref: str, action: str) -> None:
            text = ""
            for line in process.stdout or ():
                text += line
                if line == "}\n":
                    document, text = json.loads(text), ""
                    if (ref, action) in {(change["ref"], change["action"]) for change in document["changes"]}:
                        return
            raise AssertionError("the command has ended")

        until("Agent/kagent/a", "created")
        write(place / "manifests" / "all.yaml", agent("b"))
        until("Agent/kagent/a", "pruned")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert run(place, "apply", "--watch", str(place / "manifests"), "--once").startswith("0 of 1")
