"""Commands as a caller runs them: the environment that a process gets, and the output that a model sees."""

from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, TenantHandle
from holdfast.encryption import MASK, Secret, new_key
from holdfast.types import NewCustomTool, NewSecureCLI

TOKEN = "s3cret-token-0123"


@pytest.fixture
def acme() -> Iterator[TenantHandle]:
    with Holdfast(":memory:", encryption_key=new_key()) as hf:
        yield hf.tenant("acme")


def test_a_program_gets_its_credentials_and_a_minimal_environment(
    acme: TenantHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_SECRET", "other")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("PATH", f".:/usr/bin::relative/bin:{Path(sys.executable).parent}:")
    acme.secure_cli.create(NewSecureCLI("python3", env=Secret({"TOKEN": TOKEN, "HOME": "/elsewhere"})))
    prepared = acme.secure_cli.prepare("""python3 -S -c 'print(sorted(__import__("os").environ.items()))'""")
    done = subprocess.run(
        prepared.argv,
        env=prepared.environment(),
        timeout=prepared.timeout_seconds,
        capture_output=True,
        text=True,
        check=True,
    )
    environment = dict(literal_eval(done.stdout))
    environment.pop("LC_CTYPE", None)  # set by Python itself
    assert environment.pop("PATH") == f"/usr/bin:{Path(sys.executable).parent}"
    inherited = {name: os.environ[name] for name in ("LANG", "USER") if name in os.environ}
    assert environment == {"TOKEN": TOKEN, "HOME": "/elsewhere", **inherited}
    assert prepared.scrub(done.stdout) == done.stdout.replace(TOKEN, MASK).replace("/elsewhere", MASK)
    stream = prepared.scrub_stream()
    assert "".join([*map(stream.feed, done.stdout), stream.finish()]) == prepared.scrub(done.stdout)


def test_a_tool_runs_in_a_shell_with_its_variables(acme: TenantHandle, tmp_path: Path) -> None:
    schema = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    acme.custom_tools.create(
        NewCustomTool(
            "greet",
            'printf "%s|" {{.name}} "$TOKEN" "$PWD"',
            parameters=schema,
            working_dir=str(tmp_path),
            env=Secret({"TOKEN": TOKEN}),
        )
    )
    rendered = acme.custom_tools.render("greet", {"name": "$(id) 'Ada'"})
    done = subprocess.run(
        ["sh", "-c", rendered.command],
        env=rendered.environment(),
        cwd=rendered.working_dir or None,
        timeout=rendered.timeout_seconds,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"$(id) 'Ada'|{TOKEN}|{tmp_path}|"
    assert rendered.scrub(done.stdout) == f"$(id) 'Ada'|{MASK}|{tmp_path}|"
    for shown in (repr(rendered), repr(acme.custom_tools.list()), str(rendered.env)):
        assert TOKEN not in shown
