"""The documentation of the server and the command line is complete, and its commands work as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from holdfast.api import AccessOptions, ServerLimits, networks
from holdfast.api.problems import HttpError, status_of
from holdfast.api.resources import OPERATIONS
from holdfast.api.server import HOST, PORT
from holdfast.cli.commands import root
from holdfast.cli.record_commands import RecordGroup
from holdfast.cli.serve import serve
from holdfast.errors import HoldfastError
from tests.api.process import ADMIN_KEY, WAIT_S, ServerProcess, run_curl
from tests.cli.commands import commands, is_inherited

HERE = f"http://{HOST}:{PORT}"
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
HTTP = (GUIDE / "http.md").read_text()
COMMAND_LINE = (GUIDE / "command-line.md").read_text()


def _variables(option: click.Parameter) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


def _section(title: str) -> str:
    hits = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^## |\Z)", COMMAND_LINE, re.MULTILINE | re.DOTALL)
    assert hits, f"no section {title}"
    return hits.group()


def test_the_page_documents_every_command_and_option_and_no_others() -> None:
    by_name = {
        " ".join(["holdfast", *path]): command for path, command in commands(root) if not is_inherited(root, path)
    }
    assert set(re.findall(r"^##+ (holdfast .*)$", COMMAND_LINE, re.MULTILINE)) == set(by_name)
    for title, item in by_name.items():
        chapter = _section(" ".join(title.split()[:2]))
        for option in item.params:
            if getattr(option, "hidden", False) or isinstance(option, click.Argument):
                continue  # an option of every command is documented once, for the server; the help explains arguments
            assert option.opts[0] in chapter, f"{title} {option.opts[0]}"
            assert all(variable in chapter for variable in _variables(option)[:1])


def test_the_chapter_of_every_record_store_refers_to_the_commands_of_all() -> None:
    groups = [" ".join(["holdfast", *path]) for path, command in commands(root) if isinstance(command, RecordGroup)]
    assert groups
    for title in groups:
        assert "(#commands-of-records)" in _section(title), title


def test_the_reference_contains_every_operation_and_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \| `([^`]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted((operation.method, operation.path) for operation in OPERATIONS)
    made = subprocess.run([sys.executable, "tools/api_reference.py", "--check"], cwd=ROOT, timeout=WAIT_S, check=False)
    assert made.returncode == 0, "docs/reference/http-api.md is outdated: run make reference"


def test_the_page_lists_every_status_of_every_error() -> None:
    table = dict(re.findall(r"^\| (\d{3}) \| (.*?) \|", HTTP, re.MULTILINE))
    assert {int(status) for status in table} == {
        status for operation in OPERATIONS for status in operation.statuses if status >= 400
    } | {405, 431}
    for kind in {kind for operation in OPERATIONS for kind in operation.errors} - {HoldfastError}:
        name = kind.name if issubclass(kind, HttpError) else kind.__name__
        assert f"`{name}`" in table[str(status_of(kind))]


def test_the_conversation_on_the_page_works_as_printed(server: ServerProcess) -> None:
    lines = [item.replace("$HOLDFAST_KEY", ADMIN_KEY) for item in re.findall(r"^curl .*$", HTTP, re.MULTILINE)]
    session = run_curl(server.http, lines[0], HERE)["id"]
    answers = [run_curl(server.http, line.replace("$SESSION", session), HERE) for line in lines[1:]]
    assert answers[0]["seq"] == 1
    assert [response["seq"] for response in answers[1]["items"]] == [2, 3]
    assert [response["content"][0]["text"] for response in answers[2]["items"]] == ["Hi, Ada.", "Bye"]
    assert [response["id"] for response in answers[3]["items"]] == [session]
    server.http.delete("/v1/tenants/acme?cascade=true")


def test_the_page_lists_every_option_and_every_limit_with_its_default() -> None:
    page = (GUIDE / "configuration.md").read_text()
    for option in serve.params:
        (row,) = re.findall(rf"^\| `{re.escape(option.opts[0])}` \|.*$", page, re.MULTILINE)
        assert _variables(option)
        assert all(f"`{variable}`" in row for variable in _variables(option))
    limits = dict(re.findall(r"^\| `(\w+)` \| ([\d.,]+) \|", page, re.MULTILINE))
    assert {name: float(number.replace(",", "")) for name, number in limits.items()} == {
        name: float(getattr(ServerLimits(), name)) for name in ServerLimits.__struct_fields__
    }


def test_the_configuration_file_on_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (GUIDE / "configuration.md").read_text()
    (written,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "holdfast.toml").write_text(written)
    asked_for: dict[str, Any] = {}
    monkeypatch.setattr("holdfast.api.serve", lambda place, **options: asked_for.update(options, place=place))
    monkeypatch.setenv("HOLDFAST_PORT", "9999")
    result = CliRunner().invoke(
        root, ["serve", "--config", str(tmp_path / "holdfast.toml"), "--default-tenant", "acme"]
    )
    assert result.exit_code == 0, result.output
    assert (asked_for["place"], asked_for["migrate"]) == ("postgresql://holdfast@db/holdfast", True)
    assert (asked_for["host"], asked_for["port"], asked_for["allow_remote"]) == ("0.0.0.0", 9999, True)
    assert asked_for["access"] == AccessOptions(trusted=networks(["10.42.0.0/16"]), tenant="acme")
    assert asked_for["limits"] == ServerLimits(requests_per_s=200.0, request_bytes=8388608)
