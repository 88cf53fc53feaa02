"""The deployment files use only options that the server supports, and pass their linters."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from holdfast.cli.serve import serve

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "holdfast"
TEMPLATES = sorted((CHART / "templates").iterdir())
FILES = [DEPLOY / "Dockerfile", DEPLOY / "compose.yaml", DEPLOY / "holdfast.service", *TEMPLATES]


def _serve() -> click.Command:
    return serve


def _variables(option: click.Parameter) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_server_supports_every_variable_and_option_in_deploy(file: Path) -> None:
    initial = {name for option in _serve().params for name in _variables(option)}
    initial |= {"HOLDFAST_ADMIN_KEY", "HOLDFAST_ENCRYPTION_KEY"}
    named = set(re.findall(r"\bHOLDFAST_[A-Z_]+\b", file.read_text()))
    assert named <= initial, named - initial
    options = {option for param in _serve().params for option in param.opts}
    for command in re.findall(r"holdfast serve(.*)", file.read_text()):
        assert set(re.findall(r"--[a-z-]+", command)) <= options


def _leaves(value: Any, path: str = "Values") -> set[str]:
    if not isinstance(value, dict) or not value:
        return {path}
    return {path} | {leaf for name, inner in value.items() for leaf in _leaves(inner, f"{path}.{name}")}


def test_the_chart_uses_exactly_its_declared_values() -> None:
    values = _leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    used = set(re.findall(r"\.(Values(?:\.\w+)+)", "".join(file.read_text() for file in TEMPLATES)))
    assert used <= values, used - values
    ends = {value for value in values if not any(other.startswith(f"{value}.") for other in values)}
    assert all(any(end == item or end.startswith(f"{item}.") for item in used) for end in ends), ends - used


def test_the_chart_is_for_this_release_and_keeps_acknowledged_data() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    from holdfast import __version__

    assert chart["appVersion"] == __version__
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["database"]["type"] == "postgres"
    deployment = (CHART / "templates" / "deployment.yaml").read_text()
    assert "volumeClaimTemplates" in deployment
    assert "medium: Memory" not in deployment


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.name)
def test_every_block_of_a_template_is_closed(file: Path) -> None:
    depth = 0
    for action in re.findall(r"{{-?\s*(\w+)", file.read_text()):
        depth += action in ("if", "range", "with")
        depth -= action == "end"
        assert depth >= 0
    assert depth == 0


def test_the_compose_file_has_a_health_check_and_no_secret() -> None:
    output = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(output["services"]) == {"holdfast", "postgres", "redis"}
    assert output["services"]["holdfast"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert output["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert not re.search(r"hf_[0-9a-f]{48}", (DEPLOY / "compose.yaml").read_text())


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    lines = (DEPLOY / "holdfast.service").read_text().splitlines()
    sections = [line for line in lines if line.startswith("[")]
    assert sections == ["[Unit]", "[Service]", "[Install]"]
    if shutil.which("systemd-analyze") is None:
        return
    text = "\n".join(lines).replace("/opt/holdfast/bin/holdfast", shutil.which("true") or "/bin/true")
    (tmp_path / "holdfast.service").write_text(text)
    actual = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "holdfast.service")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in actual.stderr.splitlines() if "holdfast.service" in line]
    assert complaints == []


def test_the_image_is_built_from_the_locks_and_runs_without_privileges() -> None:
    output = (DEPLOY / "Dockerfile").read_text()
    assert "--require-hashes -r requirements/run.txt" in output
    assert re.search(r"^USER 10001$", output, re.MULTILINE)
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", output, re.MULTILINE):
        for name in source.split():
            assert (DEPLOY.parent / name).exists(), name


def test_the_image_has_everything_that_an_option_of_the_server_needs() -> None:
    locked = (DEPLOY.parent / "requirements" / "run.txt").read_text()
    for package in ("asyncpg", "psycopg", "obstore", "redis", "cryptography"):
        assert re.search(rf"^{package}==", locked, re.MULTILINE), package


def test_deployed_servers_run_sweeps_and_can_be_given_a_redis() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["holdfast"]["environment"]
    assert {"REDIS_URL", "HOLDFAST_RETENTION_EVERY"} <= set(compose)
    deployment = (CHART / "templates" / "deployment.yaml").read_text()
    assert "name: REDIS_URL" in deployment
    assert "name: HOLDFAST_RETENTION_EVERY" in deployment
    assert "EnvironmentFile=-/etc/holdfast/environment" in (DEPLOY / "holdfast.service").read_text()
