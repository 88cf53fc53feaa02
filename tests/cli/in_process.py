"""Runs commands in the process of the test. ``tests/cli/test_cli.py`` runs them in processes of their own."""

from __future__ import annotations

import os
import subprocess
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli.commands import root


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with Holdfast's settings from the arguments alone."""
    settings: dict[str, str | None] = dict.fromkeys(name for name in os.environ if name.startswith("HOLDFAST"))
    settings |= {"COLUMNS": "200", **environment}
    with chdir(cwd):
        result = CliRunner().invoke(root, arguments, env=settings, prog_name="holdfast", catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)
